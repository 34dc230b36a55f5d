"""Invalid texts: each raises one of our errors with a location, a message and, for some, a hint."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlo_run
from hlo_run.errors import HloRunError, ParseError, Unsupported
from hlo_run.hlo.printer import PrintOptions, module_to_string

_P = "HloModule m\nENTRY e {\n  p = f32[2,3] parameter(0)\n"

# text, place, part of the message, part of the hint
_CASES: dict[str, tuple[str, str, str, str]] = {
    "empty": ("", "1:1", "the text is empty", "HloModule"),
    "binary": ("\x7fELF\x02\x01\x00", "1:1", "expects 'HloModule'", "HLO text file"),
    "prose": ("Dear sir", "1:1", "sees 'Dear'", "HloModule name"),
    "header only": ("HloModule m\n", "2:1", "the end of the text", "cut off"),
    "no closing brace": (_P, "4:1", "expects '}'", "'e' opened at line 2"),
    "cut in operands": (_P + "  n = f32[2,3] add(p,", "4:22", "expects an operand", "cut off"),
    "cut in a shape": (_P + "  n = f32[2,", "4:7", "cannot read the shape", "f32[2,3]"),
    "cut in a string": (_P + '  n = f32[2,3] abs(p), metadata={op_name="x\n}', "4:42", "the string is never closed", "cut off"),
    "open comment": (_P + "/* x", "4:1", "comment is never closed", "cut off"),
    "unknown opcode": (_P + "  n = f32[2,3] nagate(p)\n}", "4:16", "Unknown opcode: nagate", "did you mean 'negate'?"),
    "unknown type": (_P + "  n = f33[2,3] negate(p)\n}", "4:7", "unknown element type 'f33'", "did you mean 'f32'?"),
    "unknown operand": (_P + "  n = f32[2,3] negate(%pp)\n}", "4:23", "instruction does not exist: pp", ""),
    "forward reference": (_P + "  n = f32[2,3] negate(zz)\n}", "4:23", "does not exist: zz", "defined before it is used"),
    "declared operand": (
        _P + "  n = f32[2,3] negate(f32[4] p)\n}",
        "4:23",
        "The declared operand shape f32[4] is not compatible with the shape of the operand instruction f32[2,3].",
        "",
    ),
    "wrong shape": (_P + "  n = f32[3,2] negate(p)\n}", "4:3", "shape equal to f32[2,3], actual shape is f32[3,2]", ""),
    "wrong type": (_P + "  n = s32[2,3] negate(p)\n}", "4:3", "shape equal to f32[2,3], actual shape is s32[2,3]", ""),
    "no shape": (_P + "  n = reshape(p)\n}", "4:7", "cannot infer shape for opcode: reshape", "write the result's shape"),
    "arity": (_P + "  n = f32[2,3] add(p)\n}", "4:20", "expects 2 operands, but has 1 operands", ""),
    "unknown attribute": (
        _P + "  n = f32[2,3] abs(p), foo=1\n}",
        "4:24",
        'unexpected attribute "foo". Allowed attributes: b',
        "",
    ),
    "misspelt attribute": (
        _P + "  n = f32[3,2] transpose(p), dimension={1,0}\n}",
        "4:30",
        "Allowed attributes: backend_config, control-predecessors, dimensions, frontend_attributes",
        "did you mean 'dimensions'?",
    ),
    "repeated attribute": (
        _P + "  n = f32[3,2] transpose(p), dimensions={1,0}, dimensions={1,0}\n}",
        "4:48",
        "attribute dimensions already exists",
        "",
    ),
    "missing attribute": (_P + "  n = f32[3,2] transpose(p)\n}", "4:3", "attribute dimensions is expected but not seen", ""),
    "bad list": (_P + "  n = f32[3,2] transpose(p), dimensions={a}\n}", "4:42", "expects an integer", ""),
    "bad word": (_P + "  n = pred[2,3] compare(p, p), direction=LESS\n}", "4:42", "unexpected value 'LESS'", "EQ, NE"),
    "two roots": (_P + "  ROOT a = f32[2,3] abs(p)\n  ROOT b = f32[2,3] abs(p)\n}", "5:3", "only one ROOT", "a"),
    "two entries": (
        "HloModule m\nENTRY a { p = f32[] parameter(0) }\nENTRY b { p = f32[] parameter(0) }",
        "3:1",
        "only one ENTRY",
        "",
    ),
    "same name": (_P + "  p = f32[2,3] abs(p)\n}", "4:3", "instruction already exists: p", "f.hlo:3:3"),
    "same computation": (
        "HloModule m\na { p = f32[] parameter(0) }\na { p = f32[] parameter(0) }",
        "3:1",
        "already exists: a",
        "2:1",
    ),
    "bad name": (_P + "  f32 = f32[2,3] abs(p)\n}", "4:3", "expects an instruction name, but sees 'f32'", "%f32_"),
    "reserved name": (_P + "  __x = f32[2,3] abs(p)\n}", "4:3", "suggest renaming to: a_x", ""),
    "no blank": (_P + "  n= f32[2,3] abs(p)\n}", "4:3", "expects an instruction name", "blank before the '='"),
    "same parameter": (_P + "  q = f32[] parameter(0)\n}", "4:3", "Duplicate parameter number 0", "f.hlo:3:3"),
    "parameter gap": (_P + "  q = f32[] parameter(2)\n}", "4:3", "no instruction is parameter(1)", ""),
    "negative parameter": (_P + "  q = f32[] parameter(-1)\n}", "4:23", "negative", ""),
    "large parameter": (_P + "  q = f32[] parameter(" + "9" * 5000 + ")\n}", "4:23", "64 bits", ""),
    "empty body": ("HloModule m\nENTRY e { }", "2:9", "at least one instruction", ""),
    "unknown computation": (_P + "  n = f32[2,3] call(p), to_apply=f\n}", "4:34", "computation does not exist: f", "before"),
    "fusion of itself": (
        "HloModule m\nf {\n  p = f32[] parameter(0)\n  ROOT r = f32[] fusion(p), kind=kLoop, calls=f\n}",
        "4:47",
        "computation does not exist: f",
        "cannot call itself",
    ),
    "layout rank": (_P + "  q = f32[2,3]{0} parameter(1)\n}", "4:7", "Dimensions size is 2, but minor to major size is 1.", ""),
    "layout order": (_P + "  q = f32[2,3]{0,0} parameter(1)\n}", "4:7", "does not name each dimension once", ""),
    "size beyond 64 bits": (_P + "  q = f32[99999999999999999999999] parameter(1)\n}", "4:7", "64 bits", ""),
    "bytes beyond 64 bits": (_P + "  q = f32[99999999999,99999999999] parameter(1)\n}", "4:7", "64 bits", ""),
    "signature": (
        "HloModule m\nENTRY e (p: f32[]) -> f32[2] {\n  p = f32[] parameter(0)\n}",
        "2:7",
        "Shape of computation e, f32[2]",
        "",
    ),
    "entry layout": (
        "HloModule m, entry_computation_layout={(f32[2]{0})->f32[]}\nENTRY e {\n  p = f32[] parameter(0)\n}",
        "2:7",
        "expected f32[2], found f32[]",
        "",
    ),
    "header attribute": ("HloModule m, foo=1\nENTRY e { p = f32[] parameter(0) }", "1:14", 'unexpected attribute "foo"', ""),
    "tuple index": ("HloModule m\nENTRY e {\n  p = (f32[]) parameter(0)\n  n = f32[] abs(p#1)\n}", "4:17", "no element 1", ""),
    "not a tuple": (_P + "  n = f32[] get-tuple-element(p), index=0\n}", "4:3", "does not name an element", ""),
}


@pytest.mark.parametrize("name", _CASES)
def test_message_place_and_hint(name: str) -> None:
    text, place, message, hint = _CASES[name]
    with pytest.raises(ParseError) as caught:
        hlo_run.parse(text, "f.hlo")
    error = caught.value
    assert message in error.message
    assert str(error.where) == f"f.hlo:{place}"
    assert hint in error.hint


def test_rendered_error_points_with_a_caret() -> None:
    with pytest.raises(ParseError) as caught:
        hlo_run.parse(_P + "\tn = f32[2,3] nagate(p)\n}", "f.hlo")
    assert caught.value.render().splitlines() == [
        "f.hlo:4:15: error: expects opcode but sees: nagate, error: Unknown opcode: nagate",
        "  \tn = f32[2,3] nagate(p)",
        "  \t             ^",
        "hint: did you mean 'negate'?",
    ]


def test_shape_mismatch_names_the_operands() -> None:
    with pytest.raises(ParseError) as caught:
        hlo_run.parse(_P + "  q = f32[3,2] parameter(1)\n  ROOT n = f32[2,3] add(p, q)\n}")
    assert caught.value.message == "'n' (add): operand shapes differ in dimensions: f32[2,3] and f32[3,2]"
    assert caught.value.notes == ("operand 'p' has shape f32[2,3]", "operand 'q' has shape f32[3,2]")


@pytest.mark.parametrize("name", ["binary", "cut in a string", "large parameter"])
def test_errors_fit_on_a_screen(name: str) -> None:
    with pytest.raises(HloRunError) as caught:
        hlo_run.parse(_CASES[name][0])
    lines = caught.value.render().splitlines()
    assert len(lines) < 12
    assert max(map(len, lines)) < 300
    assert all(line.isprintable() for line in lines)


_DEEP = 20_000


@pytest.mark.parametrize(
    "text",
    [
        _P + "  n = f32[2,3] " + "abs(" * _DEEP + "p" + ")" * _DEEP + "\n}",
        _P + "  n = " + "(" * _DEEP + "f32[]" + ")" * _DEEP + " parameter(1)\n}",
        _P + "  n = f32[2,3] call(p), to_apply=" + "{ x = f32[] parameter(0) y = f32[] call(x), to_apply=" * _DEEP,
        _P + "  n = f32[2] constant(" + "{" * _DEEP,
        _P + "  n = f32[" + "1," * _DEEP + "1] constant(" + "{" * _DEEP,
        _P + "  n = f32[2,3] abs(p), metadata=" + "{" * _DEEP,
        "HloModule m, entry_computation_layout={" + "(" * _DEEP,
    ],
)
def test_deep_nesting_ends_in_an_error(text: str) -> None:
    with pytest.raises((ParseError, Unsupported)) as caught:
        hlo_run.parse(text)
    assert len(caught.value.render()) < 1000


def test_broken_async_chains_are_refused() -> None:
    start = "  s = ((f32[2,3]), f32[2,3], u32[]) abs-start(p)\n"
    hlo_run.parse(_P + start + "  d = f32[2,3] abs-done(s)\n}")
    for wrong, message in (
        ("  d = f32[2,3] negate-done(s)\n}", "Expect async wrapped opcode to be abs, but got negate"),
        ("  d = f32[2,3] async-done(p)\n}", "expect a single async op"),
        ('  d = f32[2,3] abs-done(s), async_execution_thread="t"\n}', "Expect async_execution_thread to be main"),
    ):
        with pytest.raises(ParseError) as caught:
            hlo_run.parse(_P + start + wrong)
        assert message in caught.value.message
        assert caught.value.where is not None


_SOURCE = """HloModule m, entry_computation_layout={(f32[4,6]{1,0}, s32[])->(f32[6,4]{1,0}, f32[])}

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }

%body (p: f32[4,6]) -> f32[6,4] {
  %p = f32[4,6]{1,0} parameter(0), metadata={op_name="x" source_line=3}
  c = f32[2,3]{0,1} constant({ { 1, -2.5, inf }, { nan, 1e-3, 4 } })
  %z = f32[] constant(0)
  d = f32[4,6] pad(c, z), padding=1_1x0_1_1
  w = f32[4,6] reduce-window(p, z), window={size=1x3 pad=0_0x1_1}, to_apply=add
  e = pred[4,6] compare(d, w), direction=LT
  s = f32[4,6] select(e, d, w), backend_config={"k":[1,"}"]}
  ROOT t = f32[6,4]{1,0} transpose(s), dimensions={1,0}
}

ENTRY %main {
  p = f32[4,6]{1,0} parameter(0)
  i = s32[] parameter(1)
  f = f32[6,4]{1,0} fusion(p), kind=kLoop, calls=%body
  y = f32[2,6]{1,0} dynamic-slice(p, i, /*index=2*/i), dynamic_slice_sizes={2,6}
  l = f32[2,3] slice(y), slice={[0:2], [0:6:2]}
  z = f32[] constant(0)
  r = f32[] reduce(l, z), dimensions={0,1}, to_apply=add
  ROOT t = (f32[6,4]{1,0}, f32[]) tuple(f, r)
}
"""
_WORDS = sorted({*_SOURCE.split(), *"{ } ( ) [ ] , = : # ->".split(), "f64[2]", "-1", "9999999999999999999", "tuple", "?", "%"})


def test_the_source_of_damage_is_valid() -> None:
    assert hlo_run.parse(_SOURCE).entry.name == "main"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(_WORDS), max_size=60))
def test_word_salad_never_escapes_our_errors(words: list[str]) -> None:
    _read_or_refuse(" ".join(["HloModule m ENTRY e {", *words]))


@pytest.mark.parametrize("seed", range(8))
def test_binary_junk_never_escapes_our_errors(seed: int) -> None:
    source = random.Random(seed)
    _read_or_refuse("".join(map(chr, source.choices(range(256), k=4000))))
    _read_or_refuse("HloModule " + "".join(source.choices(string.printable, k=4000)))


@pytest.mark.parametrize("end", range(0, len(_SOURCE), 7))
def test_truncated_text_is_refused(end: int) -> None:
    with pytest.raises(HloRunError) as caught:
        hlo_run.parse(_SOURCE[:end])
    assert caught.value.where is not None


def _read_or_refuse(text: str) -> None:
    """Parse; an accepted text must print to a text that parses and prints the same."""
    options = PrintOptions(large_constants=True)
    try:
        module = hlo_run.parse(text)
    except HloRunError as refusal:
        refusal.render()
        return
    once = module_to_string(module, options)
    assert module_to_string(hlo_run.parse(once), options) == once
