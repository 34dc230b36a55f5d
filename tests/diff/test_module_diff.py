"""The graph matcher: what it takes for the same instruction, and what it reports."""

from __future__ import annotations

import random
import re

import pytest

from hlo_run.diff.module_diff import ModuleDiff, diff_modules
from hlo_run.hlo.graph import HloModule
from hlo_run.ops.parse import parse

MODULE = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  p = f32[8,16] parameter(0)
  q = f32[8,16] parameter(1)
  x = f32[8,16] exponential(p)
  y = f32[8,16] multiply(x, q)
  s = f32[8,8] slice(y), slice={[0:8], [0:8]}
  z = f32[8,8] negate(s)
  t = f32[8,8] transpose(z), dimensions={0,1}
  zero = f32[] constant(0)
  r = f32[8] reduce(t, zero), dimensions={1}, to_apply=sum
  n = f32[8] negate(r)
  ROOT o = (f32[8], f32[8,8]) tuple(n, z)
}
"""
SCHEDULED = """HloModule m, is_scheduled=true

ENTRY e {
  p = f32[8]{0} parameter(0)
  a = f32[8]{0} negate(p)
  b = f32[8]{0} exponential(p)
  c = f32[8]{0} log(p)
  d = f32[8]{0} cosine(p)
  ROOT t = (f32[8]{0}, f32[8]{0}, f32[8]{0}, f32[8]{0}) tuple(a, b, c, d)
}
"""
ONE_FUSION = """HloModule m

f {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  a = f32[8] multiply(p, q)
  b = f32[8] exponential(a)
  ROOT c = f32[8] log(b)
}

ENTRY e {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  ROOT f = f32[8] fusion(p, q), kind=kLoop, calls=f
}
"""
TWO_FUSIONS = """HloModule m

f1 {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  ROOT a = f32[8] multiply(p, q)
}

f2 {
  a = f32[8] parameter(0)
  b = f32[8] exponential(a)
  ROOT c = f32[8] log(b)
}

ENTRY e {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  g = f32[8] fusion(p, q), kind=kLoop, calls=f1
  ROOT f = f32[8] fusion(g), kind=kLoop, calls=f2
}
"""


def _diff(one: str, two: str) -> ModuleDiff:
    return diff_modules(parse(one, "one.hlo"), parse(two, "two.hlo"))


def _edited(text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def _names(diff: ModuleDiff, kind: str) -> list[str]:
    found = [change.after or change.before for change in diff.changes if change.kind == kind]
    return [line.removeprefix("ROOT ").split(" ")[0] for line in found]


def test_equal_modules_have_no_differences() -> None:
    diff = _diff(MODULE, MODULE)
    assert (diff.changes, diff.renamed, diff.matched) == ((), 0, 14)


def _renamed(text: str) -> HloModule:
    """Return the module with other names for everything, some of which are names of other instructions in `text`."""
    module = parse(text, "two.hlo")
    names = [instruction.name for instruction in module.instructions]
    for number, instruction in enumerate(module.instructions):
        instruction.name = names[-number] if number % 2 else f"new.{number}"
    for number, computation in enumerate(module.computations):
        computation.name = f"body.{number}"
    module.name = "other"
    return module


@pytest.mark.parametrize("text", [MODULE, SCHEDULED, ONE_FUSION, TWO_FUSIONS])
def test_new_names_are_no_difference(text: str) -> None:
    diff = diff_modules(parse(text, "one.hlo"), _renamed(text))
    assert diff.changes == ()
    assert diff.renamed > 4


def test_a_change_is_found_under_new_names() -> None:
    other = _renamed(_edited(MODULE, ("slice={[0:8], [0:8]}", "slice={[0:8], [8:16]}"), ("add(a, b)", "maximum(a, b)")))
    diff = diff_modules(parse(MODULE, "one.hlo"), other)
    assert sorted(detail.what for change in diff.changes for detail in change.details) == ["opcode", "slice"]


def test_swapped_names_are_no_difference() -> None:
    """Names say the opposite of the graph."""
    swapped = re.sub(r"\b[zn]\b(?=[ ,)])", lambda found: {"z": "n", "n": "z"}[found[0]], MODULE)
    assert _diff(MODULE, swapped).changes == ()


def test_the_operands_of_a_commutative_instruction_may_swap() -> None:
    assert _diff(MODULE, _edited(MODULE, ("multiply(x, q)", "multiply(q, x)"))).changes == ()


def test_the_operands_of_another_instruction_may_not() -> None:
    one = _edited(MODULE, ("multiply(x, q)", "subtract(x, q)"))
    diff = _diff(one, _edited(one, ("subtract(x, q)", "subtract(q, x)")))
    assert [(change.kind, change.details[0].what) for change in diff.changes] == [("changed", "operands 0, 1")]
    assert (diff.changes[0].details[0].before, diff.changes[0].details[0].after) == ("x, q", "q, x")


def test_a_changed_attribute_is_reported_once() -> None:
    diff = _diff(MODULE, _edited(MODULE, ("slice={[0:8], [0:8]}", "slice={[0:8], [8:16]}")))
    assert diff.counts == {"changed": 1}
    detail = diff.changes[0].details[0]
    assert (detail.what, detail.before, detail.after) == ("slice", "{[0:8], [0:8]}", "{[0:8], [8:16]}")


def test_a_changed_opcode_is_reported_once() -> None:
    diff = _diff(MODULE, _edited(MODULE, ("exponential(p)", "tanh(p)")))
    assert diff.counts == {"changed": 1}
    assert (diff.changes[0].details[0].before, diff.changes[0].details[0].after) == ("exponential", "tanh")


def test_a_changed_body_is_reported_there() -> None:
    diff = _diff(MODULE, _edited(MODULE, ("add(a, b)", "maximum(a, b)")))
    assert [(change.kind, change.computation) for change in diff.changes] == [("changed", "sum")]


def test_a_changed_constant() -> None:
    diff = _diff(MODULE, _edited(MODULE, ("constant(0)", "constant(-0.0)")))
    assert [(d.what, d.before, d.after) for change in diff.changes for d in change.details] == [("literal", "0", "-0.0")]


def test_an_inserted_instruction() -> None:
    edits = (("z = f32[8,8] negate(s)", "w = f32[8,8] negate(s)\n  z = f32[8,8] negate(w)"),)
    diff = _diff(MODULE, _edited(MODULE, *edits))
    assert diff.counts == {"added": 1}
    assert _names(diff, "added") in (["w"], ["z"])
    back = _diff(_edited(MODULE, *edits), MODULE)
    assert back.counts == {"removed": 1}


def test_a_moved_instruction() -> None:
    line = "  a = f32[8]{0} negate(p)\n"
    moved = _edited(SCHEDULED, (line, "")).replace("  ROOT", line + "  ROOT")
    diff = _diff(SCHEDULED, moved)
    assert diff.counts == {"moved": 1}
    assert _names(diff, "moved") == ["a"]
    assert (diff.changes[0].details[0].before, diff.changes[0].details[0].after) == ("the start", "d")


def test_the_order_of_a_module_without_a_schedule_is_no_difference() -> None:
    one = SCHEDULED.replace(", is_scheduled=true", "")
    line = "  a = f32[8]{0} negate(p)\n"
    assert _diff(one, _edited(one, (line, "")).replace("  ROOT", line + "  ROOT")).changes == ()


def test_another_fusion_boundary() -> None:
    diff = _diff(ONE_FUSION, TWO_FUSIONS)
    assert diff.counts == {"moved": 1, "added": 1}
    moved = diff.changes[0]
    assert "multiply" in moved.before
    assert moved.computation == "f -> f1"
    assert "fusion" in diff.changes[1].after


def test_the_operands_of_a_fusion_in_another_order() -> None:
    swapped = _edited(
        ONE_FUSION,
        ("p = f32[8] parameter(0)\n  q = f32[8] parameter(1)\n  a", "p = f32[8] parameter(1)\n  q = f32[8] parameter(0)\n  a"),
        ("fusion(p, q)", "fusion(q, p)"),
    )
    assert _diff(ONE_FUSION, swapped).changes == ()
    divided = ONE_FUSION.replace("multiply(p, q)", "divide(p, q)")
    assert _diff(divided, _edited(divided, ("fusion(p, q)", "fusion(q, p)"))).counts == {"changed": 1}


def test_the_header() -> None:
    diff = _diff(MODULE, _edited(MODULE, ("HloModule m", "HloModule m, replica_count=2")))
    assert [detail.what for detail in diff.changes[0].details] == ["replica_count"]


@pytest.mark.parametrize("count", [3000])
def test_many_equal_instructions_are_matched(count: int) -> None:
    """A long chain with a change in the middle, and equal leaves everywhere: one difference, in few steps."""

    def text(middle: str) -> str:
        lines = ["  v0 = f32[4] parameter(0)"]
        for number in range(1, count):
            lines.append(f"  k{number} = f32[4] constant({{1, 1, 1, 1}})")
            opcode = middle if number == count // 2 else "add"
            lines.append(f"  v{number} = f32[4] {opcode}(v{number - 1}, k{number})")
        return "HloModule m\n\nENTRY e {\n" + "\n".join(lines) + f"\n  ROOT r = f32[4] negate(v{count - 1})\n}}\n"

    diff = _diff(text("add"), text("multiply"))
    assert diff.counts == {"changed": 1}
    assert diff.matched == 2 * count


_UNARY = ("negate", "exponential", "log", "tanh", "sine", "cosine")
_BINARY = ("add", "multiply", "subtract", "divide", "maximum")
_Op = tuple[str, list[int]]


def _random_ops(chance: random.Random) -> list[_Op]:
    ops: list[_Op] = [("parameter(0)", []), ("parameter(1)", []), ("constant(2)", [])]
    for _ in range(chance.randrange(5, 60)):
        if chance.random() < 0.5:
            ops.append((chance.choice(_UNARY), [chance.randrange(len(ops))]))
        else:
            ops.append((chance.choice(_BINARY), [chance.randrange(max(0, len(ops) - 10), len(ops)) for _ in range(2)]))
    return ops


def _text(ops: list[_Op], names: list[int]) -> str:
    used = {operand for _, operands in ops for operand in operands}
    lines = [
        f"  v{names[place]} = f32[] {opcode}" + (f"({', '.join(f'v{names[o]}' for o in operands)})" if operands else "")
        for place, (opcode, operands) in enumerate(ops)
    ]
    ends = [place for place in range(len(ops)) if place not in used]
    root = f"  ROOT r = ({', '.join('f32[]' for _ in ends)}) tuple({', '.join(f'v{names[e]}' for e in ends)})"
    return "HloModule m\n\nENTRY e {\n" + "\n".join([*lines, root]) + "\n}\n"


@pytest.mark.parametrize("seed", range(40))
def test_edits_of_random_modules(seed: int) -> None:
    chance = random.Random(seed)
    ops = _random_ops(chance)
    plain, other = list(range(len(ops) + 1)), list(range(len(ops)))
    chance.shuffle(other)
    text = _text(ops, plain)
    assert _diff(text, _text(ops, other)).changes == ()
    place = chance.choice([place for place, (_, operands) in enumerate(ops) if operands])
    opcode, operands = ops[place]
    changed = [*ops]
    changed[place] = (chance.choice([o for o in (_UNARY if len(operands) == 1 else _BINARY) if o != opcode]), operands)
    assert _diff(text, _text(changed, plain)).counts == {"changed": 1}
    # One instruction more, between the instruction and its first operand.
    later = [(opcode, [o + (o >= place) for o in operands]) for opcode, operands in ops]
    later[place][1][0] = place
    inserted = [*later[:place], ("floor", [operands[0]]), *later[place:]]
    assert _diff(text, _text(inserted, plain)).counts == {"added": 1}
