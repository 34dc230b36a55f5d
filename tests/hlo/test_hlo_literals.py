"""Literals: parsing, elided constants, and the text of numbers."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hlo_run
from hlo_run.errors import ParseError
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Array, Literal, format_literal, literal_to_string
from hlo_run.hlo.values.shape import Shape


def _literal(shape: str, text: str) -> Literal:
    return hlo_run.parse(f"HloModule m\nENTRY e {{\n  ROOT c = {shape} constant({text})\n}}").entry.root.literal


def _array(shape: str, text: str) -> Array:
    literal = _literal(shape, text)
    assert not isinstance(literal, tuple)
    return literal


_FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_float]
_INTEGERS = [name for name, dtype in DTYPES.items() if dtype.is_integer]


@pytest.mark.parametrize("name", _FLOATS)
@pytest.mark.parametrize("dims", [(), (1,), (7,), (2, 3), (3, 1, 2), (2, 1, 2, 3)])
def test_printed_floats_read_back_equal(name: str, dims: tuple[int, ...]) -> None:
    dtype = DTYPES[name]
    values = (
        np.random.default_rng(7).normal(0, 2, dims) if name != "f8e8m0fnu" else 2.0 ** np.arange(math.prod(dims)).reshape(dims)
    )
    array = np.asarray(values).astype(dtype.numpy)
    shape = Shape.array(name, dims)
    again = _array(str(shape), format_literal(array, shape))
    assert again.dtype == dtype.numpy
    assert_array_equal(again.astype(np.float64), array.astype(np.float64))


@pytest.mark.parametrize("name", _INTEGERS)
def test_extreme_integers_read_back_equal(name: str) -> None:
    dtype = DTYPES[name]
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    high = (1 << (dtype.bits - dtype.is_signed)) - 1
    array = _array(f"{name}[3]", f"{{{low}, {high}, 0}}")
    assert [int(value) for value in array] == [low, high, 0]
    assert format_literal(array, Shape.array(name, (3,))) == f"{{{low}, {high}, 0}}"


_READINGS: list[tuple[str, str, object]] = [
    ("f32[]", "1.5", 1.5),
    ("f32[]", "-inf", -math.inf),
    ("f32[]", "0x", None),
    ("s32[]", "-7", -7),
    ("pred[]", "true", True),
    ("pred[]", "5", True),
    ("pred[2]", "{0, true}", [False, True]),
    ("f32[2,3]", "{{1,2,3},{4,5,6}}", [[1, 2, 3], [4, 5, 6]]),
    ("f32[2,3]", "{ /*i0=0*/ {1 2 3}, {4,,5,6,} }", [[1, 2, 3], [4, 5, 6]]),
    ("f32[2,3]{0,1}", "{{1,2,3},{4,5,6}}", [[1, 2, 3], [4, 5, 6]]),
    ("s32[0]", "{}", []),
    ("s32[2,0]", "{ {}, {} }", [[], []]),
    ("c64[2]", "{(1,2), (inf, -0.5)}", [1 + 2j, complex(math.inf, -0.5)]),
    ("u8[2]", "{255, 0}", [255, 0]),
    ("u64[1]", "{18446744073709551615}", [2**64 - 1]),
    ("s64[1]", "{18446744073709551615}", [-1]),
    ("bf16[]", "0.79785", 0.796875),
    ("f32[]", "16777217", 16777216),
    ("f8e4m3fn[]", "448", 448),
]


@pytest.mark.parametrize(("shape", "text", "expected"), _READINGS)
def test_reading(shape: str, text: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(ParseError):
            _array(shape, text)
        return
    assert_array_equal(_array(shape, text), np.array(expected))


def test_tuple_literal() -> None:
    literal = _literal("(f32[], (s32[2], pred[]))", "(1, ({2, 3}, true))")
    assert isinstance(literal, tuple)
    assert literal[0] == 1
    inner = literal[1]
    assert isinstance(inner, tuple)
    assert_array_equal(inner[0], [2, 3])
    shape = Shape.make_tuple((Shape.array("f32", ()), Shape.make_tuple((Shape.array("s32", (2,)), Shape.array("pred", ())))))
    assert format_literal(literal, shape) == "( 1, ( {2, 3}, true ) )"


@pytest.mark.parametrize(
    ("shape", "text", "message"),
    [
        ("s8[]", "128", "value 128 is out of range for literal's primitive type S8, namely [-128, 127]."),
        ("u8[]", "-1", "out of range"),
        ("s32[2]", "{1, 2147483648}", "value 2147483648 is out of range"),
        ("f32[]", "1e39", "out of range"),
        ("f64[]", "1e999", "out of range"),
        ("f16[2]", "{1, 65520}", "out of range"),
        ("f8e4m3fn[1]", "{500}", "out of range"),
        ("f32[2,2]", "{1,2}", "expects nested array in rank 2, but sees 1"),
        ("f32[2]", "{{1,2}}", "expects nested array in rank 1, but sees larger"),
        ("f32[2,2]", "{{1,2},{3}}", "expects 2 elements in the [1]th element, but sees 1"),
        ("f32[2]", "{1,2,3}", "expects 2 elements"),
        ("s32[]", "1.5", "expects an integer"),
        ("f32[]", "true", "expects a number"),
        ("f32[2]", "{1, x}", "sees 'x'"),
        ("c64[]", "1", "complex"),
        ("token[]", "1", "cannot have the shape"),
        ("f32[]", "nan(0x800000)", "NaN payload"),
        ("f8e4m3fn[]", "nan(0x1)", "NaN payload"),
        ("f32[3]", "{1, 2", "sees ')'"),
    ],
)
def test_refusals(shape: str, text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        _literal(shape, text)
    assert message in caught.value.message
    assert caught.value.where is not None


def test_place_of_an_element_inside_a_large_row() -> None:
    with pytest.raises(ParseError) as caught:
        hlo_run.parse("HloModule m\nENTRY e {\n  c = s8[4] constant({1, 2,\n    300, 4})\n}", "f.hlo")
    assert str(caught.value.where) == "f.hlo:4:5"


def test_nan_signs_and_payloads() -> None:
    array = _array("f32[4]", "{nan, -nan, nan(0x7), -nan(0x400001)}")
    assert [hex(word) for word in array.view(np.uint32)] == ["0x7fc00000", "0xffc00000", "0x7f800007", "0xffc00001"]
    assert format_literal(array, Shape.array("f32", (4,))) == "{nan, -nan, nan(0x7), -nan(0x400001)}"


def test_zero_keeps_its_sign_through_text() -> None:
    # XLA prints -0, which it parses as the integer 0. For text that is parsed again we print -0.0, which both parse as -0.
    array = np.array([-0.0, 0.0], dtype=np.float32)
    assert format_literal(array, Shape.array("f32", (2,))) == "{-0, 0}"
    text = format_literal(array, Shape.array("f32", (2,)), reads_back=True)
    assert text == "{-0.0, 0}"
    assert np.signbit(_array("f32[2]", text)).tolist() == [True, False]
    assert not np.signbit(_array("f32[2]", "{-0, 0}")).any()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bf16", 0.79785, "0.7969"),
        ("f16", 0.1, "0.099976"),
        ("f32", 0.1, "0.1"),
        ("f32", 1 / 3, "0.333333343"),
        ("f64", 1 / 3, "0.33333333333333331"),
        ("f64", 0.1, "0.1"),
        ("f32", 1e-8, "1e-08"),
        ("f32", 1e30, "1e+30"),
        ("f8e5m2", 0.1, "0.094"),
        ("f8e4m3b11fnuz", 0.1, "0.102"),
    ],
)
def test_number_texts(name: str, value: float, text: str) -> None:
    dtype = DTYPES[name]
    assert format_literal(np.array(value).astype(dtype.numpy), Shape.array(name, ())) == text


def test_text_with_shape_and_lines() -> None:
    array = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert literal_to_string(array, Shape.array("f32", (2, 2))) == "f32[2,2] {\n  { 0, 1 },\n  { 2, 3 }\n}"
    assert literal_to_string(np.array(True), Shape.array("pred", ())) == "pred[] true"
    four = np.arange(4, dtype=np.int32).reshape(2, 1, 1, 2)
    expected = "{ /*i0=0*/\n{ /*i1=0*/\n  { 0, 1 }\n}\n},\n{ /*i0=1*/\n{ /*i1=0*/\n  { 2, 3 }\n}\n}"
    assert literal_to_string(four, Shape.array("s32", (2, 1, 1, 2))) == f"s32[2,1,1,2] {{\n{expected}\n}}"


def test_elided_constants_count_words_and_leftover_bytes() -> None:
    text = """HloModule m
ENTRY e {
  k = s4[3] constant({...})
  l = s4[7] constant({...})
  a = f32[3] constant({...})
  m = u8[3,2]{0,1} constant({...})
  ROOT p = pred[5] constant({ ... })
}
"""
    values = {i.name: i.constant_array for i in hlo_run.parse(text).entry.instructions}
    # The numbers of XLA's parser in a new process.
    assert values["k"].astype(int).tolist() == [0, 1, 2]
    assert values["l"].astype(int).tolist() == [0, 3, 4, 5, 0, 0, 0]
    assert values["a"].view(np.uint32).tolist() == [1, 2, 3]
    assert values["m"].tolist() == [[4, 6], [7, 0], [0, 0]]
    assert values["p"].tolist() == [True, False, False, False, False]


def test_elided_constants_are_the_same_every_time() -> None:
    first, second = (_array("s32[4]", "{...}") for _ in range(2))
    assert first.tolist() == second.tolist() == [0, 1, 2, 3]


def test_signed_small_integers_of_an_elided_constant_are_in_range() -> None:
    array = _array("s4[64]", "{...}")
    assert array.dtype == ml_dtypes.int4
    assert -8 <= array.astype(int).min() <= array.astype(int).max() <= 7


def test_large_constants_are_read() -> None:
    values = np.random.default_rng(3).integers(-1000, 1000, 200_000)
    array = _array("s32[200000]", "{" + ", ".join(map(str, values)) + "}")
    assert_array_equal(array, values)


def test_dynamic_arrays_show_their_sizes() -> None:
    shape = hlo_run.parse("ENTRY e {\n  ROOT p = (f32[<=8,2], s32[<=4], token[]) parameter(0)\n}").entry.root.shape
    literal = (np.ones((1, 2), np.float32), np.arange(3, dtype=np.int32), ())
    text = "(\nf32[<=8,2](1,2) {\n  { 1, 1 }\n},\ns32[<=4](3) {0, 1, 2},\ntoken[]\n)"
    assert literal_to_string(literal, shape) == text


@pytest.mark.parametrize("blank", ["\x0b", "\x1c", "\x85", "\xa0", "\u2003", "\u2028"])
def test_only_four_characters_are_blanks(blank: str) -> None:
    with pytest.raises(ParseError):
        hlo_run.parse(f"HloModule m\nENTRY e {{ ROOT c = s32[2] constant({{3{blank}4}}) }}")


def test_many_empty_rows_are_not_printed() -> None:
    text = "HloModule m\nENTRY e {\n  ROOT c = f32[300000000,0] constant({...})\n}"
    (constant,) = hlo_run.parse(text).entry.instructions
    assert constant.constant_array.shape == (300000000, 0)
    printed = hlo_run.parse(text).to_string()
    assert "constant({...})" in printed
    assert hlo_run.parse(printed).to_string() == printed
    assert "constant({ {}, {} })" in hlo_run.parse(text.replace("300000000", "2")).to_string()
