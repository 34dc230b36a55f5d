"""Every element-wise opcode on every element type, at edge values, emitted and run in numpy against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emitting import emit, run
from xla_gpu_interpreter import Interpreter

from hlo_run.codegen.elemental.elementwise import EMIT
from hlo_run.errors import Unsupported
from hlo_run.hlo.values.dtype import DTYPES

FLOATS = ("f64", "f32", "f16", "bf16")
SIGNED = ("s8", "s16", "s32", "s64")
UNSIGNED = ("u8", "u16", "u32", "u64")
ALL = (*FLOATS, *SIGNED, *UNSIGNED, "pred")

UNARY_FLOAT = """abs negate sign floor ceil round-nearest-afz round-nearest-even exponential exponential-minus-one exp2 log
    log2 log-plus-one sqrt rsqrt cbrt sine cosine tan tanh erf acos acosh asin asinh atanh sinh cosh logistic is-finite real
    imag""".split()
BINARY_FLOAT = "add subtract multiply divide remainder power maximum minimum atan2".split()
BINARY_INTEGER = """add subtract multiply divide remainder maximum minimum and or xor shift-left shift-right-logical
    shift-right-arithmetic""".split()
_LARGEST = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895313892515355e38}
# Tested with small values: results for large ones depend on the argument reduction.
_SMALL = "tan sine cosine sinh cosh power".split()


def edge_values(dtype: str, small: bool = False) -> np.ndarray[Any, Any]:
    """Return edge values of a type and some seeded random ones."""
    numpy = DTYPES[dtype].numpy
    random = np.random.default_rng(sum(map(ord, dtype)))
    if dtype == "pred":
        return np.array([True, False, True, True, False, False])
    if dtype in FLOATS:
        plain = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.25, 1e-3]
        wide = [] if small else [float("inf"), float("-inf"), float("nan"), _LARGEST[dtype], 1000.0]
        return np.array([*plain, *wide, *random.normal(size=9)]).astype(numpy)
    info = np.iinfo(numpy)
    plain = [0, 1, 2, 3, 5, 7, info.max, info.max - 1, info.min, info.min + 1]
    return np.concatenate([np.array(plain, numpy), random.integers(info.min, info.max, 8, numpy, endpoint=True)])


def pairs(dtype: str, small: bool = False) -> list[np.ndarray[Any, Any]]:
    values = edge_values(dtype, small)
    left, right = np.meshgrid(values, values)
    return [np.ascontiguousarray(left.reshape(-1)), np.ascontiguousarray(right.reshape(-1))]


def run_op(opcode: str, arguments: list[np.ndarray[Any, Any]], types: list[str], result: str, attributes: str = "") -> None:
    size = arguments[0].size
    lines = [f"p{n} = {type_}[{size}] parameter({n})" for n, type_ in enumerate(types)]
    operands = ", ".join(f"p{n}" for n in range(len(types)))
    body = "\n".join(lines)
    run(f"op {{\n{body}\nROOT r = {result}[{size}] {opcode}({operands}){attributes}\n}}", *arguments)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("opcode", UNARY_FLOAT)
def test_unary_float(opcode: str, dtype: str) -> None:
    result = "pred" if opcode == "is-finite" else dtype
    run_op(opcode, [edge_values(dtype, opcode in _SMALL)], [dtype], result)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("opcode", BINARY_FLOAT)
def test_binary_float(opcode: str, dtype: str) -> None:
    run_op(opcode, pairs(dtype, opcode in _SMALL), [dtype] * 2, dtype)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("opcode", BINARY_INTEGER)
def test_binary_integer(opcode: str, dtype: str) -> None:
    run_op(opcode, pairs(dtype), [dtype] * 2, dtype)


@pytest.mark.parametrize("dtype", ["s8", "s16", "s32", "u8", "u16", "u32"])
def test_multiply_high(dtype: str) -> None:
    run_op("mulhi", pairs(dtype), [dtype] * 2, dtype)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_integer_power(dtype: str) -> None:
    base, exponent = pairs(dtype)
    # Six rounds use only the low six bits of the exponent, and the reference gives 0 for (-1)^-n.
    run_op("power", [base, (exponent % 64).astype(base.dtype)], [dtype] * 2, dtype)


def test_power_with_negative_exponents() -> None:
    base = np.array([1, -1, -1, 2, 0, -3], np.int32)
    exponent = np.array([-5, -3, -2, -1, -1, -2], np.int32)
    text = "op {\nb = s32[6] parameter(0)\ne = s32[6] parameter(1)\nROOT r = s32[6] power(b, e)\n}"
    emitted = emit(text)
    kernel = emitted.kernel
    (result,) = Interpreter(kernel.module, kernel.launch).run("kernel", [base, exponent], [((6,), np.int32)])
    assert result.tolist() == [1, -1, 1, 0, 0, 0]


UNARY_INTEGER = (
    *(("not", dtype) for dtype in (*SIGNED, *UNSIGNED, "pred")),
    *((opcode, dtype) for opcode in ("abs", "sign") for dtype in SIGNED),
    *((opcode, dtype) for opcode in ("negate", "popcnt", "count-leading-zeros") for dtype in (*SIGNED, *UNSIGNED)),
)


@pytest.mark.parametrize(("opcode", "dtype"), UNARY_INTEGER)
def test_unary_integer(opcode: str, dtype: str) -> None:
    run_op(opcode, [edge_values(dtype)], [dtype], dtype)


@pytest.mark.parametrize("opcode", ["add", "multiply", "maximum", "minimum", "and", "or", "xor"])
def test_pred(opcode: str) -> None:
    run_op(opcode, pairs("pred"), ["pred"] * 2, "pred")


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("direction", ["EQ", "NE", "GE", "GT", "LE", "LT"])
def test_compare(direction: str, dtype: str) -> None:
    run_op("compare", pairs(dtype), [dtype] * 2, "pred", f", direction={direction}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("direction", ["EQ", "LT", "GE"])
def test_compare_total_order(direction: str, dtype: str) -> None:
    run_op("compare", pairs(dtype), [dtype] * 2, "pred", f", direction={direction}, type=TOTALORDER")


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("source", ALL)
def test_convert(source: str, target: str) -> None:
    run_op("convert", [edge_values(source)], [source], target)


@pytest.mark.parametrize(("source", "target"), [("f32", "s32"), ("u16", "bf16"), ("f64", "u64"), ("s8", "u8"), ("f16", "s16")])
def test_bitcast_convert(source: str, target: str) -> None:
    run_op("bitcast-convert", [edge_values(source)], [source], target)


@pytest.mark.parametrize(("exponent", "mantissa"), [(5, 10), (8, 7), (3, 2), (11, 52), (4, 0)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_reduce_precision(dtype: str, exponent: int, mantissa: int) -> None:
    random = np.random.default_rng(3).integers(0, 2**63, 400, np.uint64)
    numpy = DTYPES[dtype].numpy
    bits = random.astype(f"uint{numpy.itemsize * 8}").view(numpy)
    values = np.concatenate([edge_values(dtype), bits])
    run_op("reduce-precision", [values], [dtype], dtype, f", exponent_bits={exponent}, mantissa_bits={mantissa}")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s16", "u8"])
def test_select_and_clamp_take_scalars(dtype: str) -> None:
    numpy = DTYPES[dtype].numpy
    low, high = np.array(1, numpy), np.array(3, numpy)
    left, right = pairs(dtype)
    text = f"""op {{
      p = pred[] parameter(0)
      low = {dtype}[] parameter(1)
      high = {dtype}[] parameter(2)
      a = {dtype}[{left.size}] parameter(3)
      b = {dtype}[{left.size}] parameter(4)
      c = {dtype}[{left.size}] clamp(low, a, high)
      m = pred[{left.size}] compare(a, b), direction=LT
      s = {dtype}[{left.size}] select(p, c, b)
      ROOT t = {dtype}[{left.size}] select(m, s, a)
    }}"""
    for predicate in (True, False):
        run(text, np.array(predicate), low, high, left, right)


def test_every_row_is_run_by_a_test() -> None:
    covered = {*UNARY_FLOAT, *BINARY_FLOAT, *BINARY_INTEGER, "mulhi", "not", "popcnt", "count-leading-zeros", "compare"}
    covered |= {"select", "clamp", "convert", "bitcast-convert", "reduce-precision", "copy", "complex"}
    assert set(EMIT) == covered


def test_sixteen_bit_exponentials_may_be_approximate() -> None:
    assert "math.exp %extracted fastmath<afn> : bf16" in emit("e { p = bf16[4] parameter(0) ROOT r = exponential(p) }").text
    assert "math.exp %extracted : f32" in emit("e { p = f32[4] parameter(0) ROOT r = exponential(p) }").text


def test_unknown_element_type_names_type_and_instruction() -> None:
    with pytest.raises(Unsupported, match="type f6e2m3fn") as caught:
        emit("e { p = f6e2m3fn[4] parameter(0) ROOT r = f6e2m3fn[4] add(p, p) }")
    assert caught.value.where is not None


def test_ops_carry_the_name_of_their_instruction() -> None:
    text = emit("e { p = f32[4] parameter(0) ROOT total = f32[4] add(p, p) }").located_text
    assert 'arith.addf %extracted, %extracted {hlo.op = "total"} : f32' in text
    assert "hlo.op" not in emit("e { p = f32[4] parameter(0) ROOT total = f32[4] add(p, p) }").text
