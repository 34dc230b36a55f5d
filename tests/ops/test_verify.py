"""The verifier gives real XLA's verdicts (recorded by scripts/verify_conformance.py), and says what it expected and found."""

from __future__ import annotations

import json
from functools import cache

import pytest
import verify_cases

import hlo_run
from hlo_run.errors import ParseError
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.verify import COMPILING, LAID_OUT, READING, Strictness, verify
from hlo_run.records import replace


@cache
def _seeds() -> dict[str, list[str]]:
    return verify_cases.seeds()


def _recorded() -> dict[str, list[tuple[int, bool]]]:
    found: dict[str, list[tuple[int, bool]]] = {}
    for name, number, accepted in json.loads((verify_cases.FOLDER / "verdicts.json").read_text(encoding="utf-8")):
        found.setdefault(name, []).append((number, accepted))
    return found


_RECORDED = _recorded()


def _accepts(text: str, strictness: Strictness = COMPILING) -> bool:
    try:
        verify(parse_module(text), strictness)
    except ParseError:
        return False
    return True


@pytest.mark.parametrize("name", _RECORDED)
def test_verdicts_are_those_of_xla(name: str) -> None:
    for number, accepted in _RECORDED[name]:
        text = verify_cases.case(name, _seeds()[name], number, 0)
        if "= scaled-dot(" in text:
            # XLA infers an omitted shape from the first operand and a scale (docs/refused.md).
            continue
        assert _accepts(text) == accepted, verify_cases.changed_part(text)


def test_every_opcode_has_a_seed() -> None:
    halves = {name for name in OPCODES if name.endswith(("-done", "-update"))}
    assert OPCODES.keys() - halves <= _seeds().keys()
    assert _seeds().keys() == _RECORDED.keys()
    assert sum(accepted for rows in _RECORDED.values() for _, accepted in rows) > 200


_TEXT = """HloModule m, num_partitions=2
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
ENTRY e {
  x = f32[4,6] parameter(0)
  h = f16[4,6] parameter(1)
  t = f32[4,6]{0,1} parameter(2)
  v = f32[6] parameter(3)
  tok = token[] parameter(4)
LINES
}
"""

# The message names the instruction, what was expected and what was found.
_CANONICAL = replace(LAID_OUT, broadcasts=True)

_REFUSED: dict[str, tuple[Strictness, str]] = {
    "ROOT r = f32[4,6] add(x, h)": (COMPILING, "'r' (add): takes floats of one width, but its operands are f32[4,6], f16[4,6]"),
    "ROOT r = f32[4,6] reshape(h)": (COMPILING, "'r' (reshape): expected elements of type f16, found f32[4,6]"),
    "ROOT r = f32[8,6] all-gather(x), channel_id=1, replica_groups={{0,1,2}}, dimensions={0}, use_global_device_ids=true": (
        READING,
        "'r' (all-gather): in flattened_id mode, replica groups should contain 2 devices, but found 3",
    ),
    "ROOT r = f32[12,6] all-gather(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true": (
        READING,
        "'r' (all-gather): the shapes are for groups of 3 devices, but the groups have 2",
    ),
    "ROOT r = f32[4,6] all-reduce(x), replica_groups={{0,0}}, to_apply=add": (READING, "replica 0 is repeated"),
    "ROOT r = f32[4,6] collective-permute(x), source_target_pairs={{0,1},{1,1}}": (READING, "target 1 appears more than once"),
    "s = (f32[4,6], f32[4,6], u32[]) copy-start(x)\nROOT r = f32[4,6] negate(x)": (
        READING,
        "'s' (copy-start): requires one consumer, found 0",
    ),
    "s = (f32[4,6], u32[], token[]) send(x, tok), channel_id=1\nROOT r = token[] send-done(s), channel_id=1": (
        COMPILING,
        "'s' (send): expected the frontend attribute _xla_send_recv_source_target_pairs, found none",
    ),
    "ROOT r = (f32[4,6], token[]) infeed(v)": (READING, "'r' (infeed): operand 0: expected token[], found f32[6]"),
    "ROOT r = token[] outfeed(x, tok), outfeed_shape=f32[6]": (READING, "outfeed_shape: expected f32[4,6], found f32[6]"),
    'ROOT r = f32[4,6] custom-call(x), custom_call_target="t", output_to_operand_aliasing={{}: (1, {})}': (
        READING,
        "'r' (custom-call): output_to_operand_aliasing names operand 1 of 1",
    ),
    "ROOT r = f32[4,6]{1,0} negate(t)": (
        LAID_OUT,
        "'r' (negate): keeps the layout of operand 0: expected the layout of f32[4,6]{0,1}, found f32[4,6]{1,0}",
    ),
    "ROOT r = f32[4,8] bitcast(x)": (LAID_OUT, "'r' (bitcast): expected 96 bytes like f32[4,6]{1,0}, found f32[4,8]{1,0}"),
    "ROOT r = f32[6,4,2] broadcast(x), dimensions={1,0}": (_CANONICAL, "expected ascending dimensions, found {1,0}"),
    "ROOT r = (f32[4,6]{1,0}) tuple(t)": (LAID_OUT, "'r' (tuple): element 0: expected the layout of f32[4,6]{0,1}"),
}


@pytest.mark.parametrize("lines", _REFUSED)
def test_message(lines: str) -> None:
    strictness, message = _REFUSED[lines]
    text = _TEXT.replace("LINES", lines)
    with pytest.raises(ParseError) as caught:
        verify(parse_module(text, "f.hlo"), strictness)
    assert message in caught.value.message
    assert str(caught.value.where).startswith("f.hlo:")


_SELF = ', custom_call_target="t", output_to_operand_aliasing={{}: (0, {})}'
_PIN, _UNPIN = _SELF.replace('"t"', '"Pin"'), _SELF.replace('"t"', '"Unpin"')

# What real XLA accepts beyond the recorded cases: a buffer's whole way, transfers that end behind a tuple, channel 0, groups of
# several sizes, and several slices from one device in place.
_ACCEPTED = [
    f"p = b(f32[4,6]) custom-call(x){_PIN}\nq = b(f32[4,6]) custom-call(p){_SELF}\nROOT r = f32[4,6] custom-call(q){_UNPIN}",
    f'p = b(f32[4,6]) custom-call(), custom_call_target="CreateBuffer"\nROOT r = f32[4,6] custom-call(p){_UNPIN}',
    f"z = s32[] constant(0)\np = b(f32[4,6]) custom-call(x){_PIN}\n"
    f"q = b(f32[4,6]) dynamic-update-slice(p, x, z, z)\nROOT r = f32[4,6] custom-call(q){_UNPIN}",
    "s = (f32[4,6], u32[], token[]) send(x, tok), channel_id=1\nu = ((f32[4,6], u32[], token[])) tuple(s)\n"
    "g = (f32[4,6], u32[], token[]) get-tuple-element(u), index=0\nROOT r = token[] send-done(g), channel_id=1",
    "s = (f32[4,6], u32[], token[]) recv(tok), channel_id=1\nu = ((f32[4,6], u32[], token[])) tuple(s)\n"
    "g = (f32[4,6], u32[], token[]) get-tuple-element(u), index=0\nROOT r = (f32[4,6], token[]) recv-done(g), channel_id=1",
    "ROOT r = f32[8,6] all-gather(x), channel_id=0, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true",
    "i = s32[] constant(0)\nt1 = tuple(i, i)\nt2 = tuple(t1, t1)\nst = tuple(t2, t2)\nin = tuple(x, x)\n"
    "ROOT r = (f32[4,6], f32[4,6]) collective-permute(in, in, st, st), channel_id=1, "
    "source_target_pairs={{0,1},{1,0},{0,1},{1,0}}, slice_sizes={{1,6},{1,6},{1,6},{1,6}}",
]


@pytest.mark.parametrize("lines", _ACCEPTED)
def test_accepted(lines: str) -> None:
    verify(parse_module(_TEXT.replace("LINES", lines)), READING)


def test_groups_of_an_all_reduce_may_differ_in_size() -> None:
    line = "ROOT r = f32[4,6] all-reduce(x), replica_groups={{0,1,2},{3}}, to_apply=add"
    verify(parse_module(_TEXT.replace("LINES", line).replace("num_partitions=2", "replica_count=4")), COMPILING)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            f"p = b(f32[6]) custom-call(x){_PIN}\nROOT r = f32[6] custom-call(p){_UNPIN}",
            "shares a buffer: expected f32[6], found f32[4,6]",
        ),
        (f"ROOT p = f32[4,6] custom-call(x){_PIN}", "Pin takes an array and makes a buffer of it"),
        (f"p = b(f32[4,6]) custom-call(x){_PIN}\nROOT r = b(f32[4,6]) copy(p)", "a buffer is not allowed here"),
        (
            f"p = b(f32[4,6]) custom-call(x){_PIN}\nq = f32[4,6] custom-call(p){_UNPIN}\nw = f32[4,6] custom-call(p){_UNPIN}\n"
            "ROOT r = f32[4,6] add(q, w)",
            "the buffer 'p' is written, or unpinned, more than once",
        ),
        (
            f'p = b(f32[4,6]) custom-call(x){_PIN}\nROOT r = f32[4,6] custom-call(p), custom_call_target="t"',
            "the buffer in operand 0 needs one result",
        ),
    ],
)
def test_a_buffer_is_made_written_and_ended_once(lines: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        verify(parse_module(_TEXT.replace("LINES", lines)), READING)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("lines", "strictness"),
    [
        ("ROOT r = f32[4,6] add(x, h)", READING),
        ("ROOT r = f32[4,6]{1,0} negate(t)", COMPILING),
        ("ROOT r = f32[6,4,2] broadcast(x), dimensions={1,0}", COMPILING),
    ],
)
def test_less_strict_ways_accept_more(lines: str, strictness: Strictness) -> None:
    verify(parse_module(_TEXT.replace("LINES", lines)), strictness)


def test_what_is_not_verified_is_believed() -> None:
    text = _TEXT.replace("LINES", "n = negate(x)\nROOT r = f32[7] add(n, v)")
    with pytest.raises(ParseError):
        hlo_run.parse(text)
    root = hlo_run.parse(text, verified=False).entry.root
    assert [i.shape.to_string(layout=False) for i in (root.operands[0], root)] == ["f32[4,6]", "f32[7]"]


def test_a_schedule_holds_everything_in_order() -> None:
    text = "HloModule m, is_scheduled=true\nENTRY e { x = f32[2] parameter(0)\n n = f32[2] negate(x)\n ROOT r = f32[2] abs(n) }"
    module = hlo_run.parse(text)
    assert module.schedule is not None
    x, n, r = module.schedule[module.entry]
    module.schedule[module.entry] = [x, r, n]
    with pytest.raises(ParseError, match="'r' is scheduled before 'n', which it waits for"):
        verify(module)
    module.schedule[module.entry] = [x, r]
    with pytest.raises(ParseError, match="must hold each of its 3 instructions once, but has 2 entries"):
        verify(module)
    module.schedule = {}
    with pytest.raises(ParseError, match="computation 'e' is not scheduled"):
        verify(module)


def test_order_of_broadcast_dimensions_is_free_until_they_are_canonical() -> None:
    """A layout that transposes keeps its broadcast's dimensions in any order until layout_normalization."""
    text = "ENTRY e { x = f16[6,4] parameter(0) ROOT r = f16[4,3,6]{0,2,1} broadcast(x), dimensions={2,0} }"
    verify(parse_module(text), LAID_OUT)
    with pytest.raises(ParseError, match="expected ascending dimensions"):
        verify(parse_module(text), _CANONICAL)
