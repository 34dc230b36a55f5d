"""The results of lowered ops at edge cases: PTX for old and new GPUs, run on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context

from hlo_run.artifact import ArraySpec, BufferAllocation, BufferSlice, Executable, Kernel, KernelArgument, KernelThunk
from hlo_run.backends.host.backend import HostBackend
from hlo_run.codegen.kernel_passes.expand_float_ops import ExpandFloatOps
from hlo_run.codegen.kernel_passes.scf_to_cf import ScfToCf
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.print import llvm_ir_text
from hlo_run.codegen.llvm.toolkit import LIBDEVICE, find_in_toolkit
from hlo_run.codegen.to_llvm.lower_to_llvm_gpu import LowerToLlvmGpu
from hlo_run.dialects.parse import parse_module
from hlo_run.target import preset

pytestmark = pytest.mark.skipif(find_in_toolkit(LIBDEVICE) is None, reason="no libdevice on this machine")

Array = NDArray[Any]
# dtype, IR type and numpy type of each HLO type used here.
TYPES = {
    "f16": ("f16", np.float16),
    "bf16": ("bf16", ml_dtypes.bfloat16),
    "f32": ("f32", np.float32),
    "f64": ("f64", np.float64),
    "s8": ("i8", np.int8),
    "s32": ("i32", np.int32),
    "s64": ("i64", np.int64),
}
OLD_AND_NEW = ("v100", "h100")


def _run(body: str, operands: list[tuple[str, Array]], result: str, card: str) -> Array:
    """Run a kernel in which thread %i reads its element of each operand as %a, %b, .. and stores %r."""
    count = len(operands[0][1])
    names = "abc"[: len(operands)]
    arguments = [f"%p{name}: !llvm.ptr" for name in names]
    loads = [
        f"%q{name} = llvm.getelementptr inbounds %p{name}[%i] : (!llvm.ptr, i32) -> !llvm.ptr, {TYPES[dtype][0]}\n"
        f"%{name} = llvm.load %q{name} : !llvm.ptr -> {TYPES[dtype][0]}"
        for name, (dtype, _) in zip(names, operands, strict=True)
    ]
    out = TYPES[result][0]
    text = f"""
module attributes {{dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>}} {{
  func.func @k({", ".join(arguments)}, %out: !llvm.ptr) attributes {{xla.entry}} {{
    %t = gpu.thread_id  x
    %i = arith.index_cast %t : index to i32
    {chr(10).join(loads)}
    {body}
    %q = llvm.getelementptr inbounds %out[%i] : (!llvm.ptr, i32) -> !llvm.ptr, {out}
    llvm.store %r, %q : {out}, !llvm.ptr
    return
  }}
}}
"""
    module = parse_module(text)
    for row in (ExpandFloatOps(), ScfToCf(), LowerToLlvmGpu()):
        row.apply(Context(), module)
    ptx = compile_llvm(llvm_ir_text(module, "k", (1, 1, 1), (count, 1, 1)), preset(card)).ptx
    value = HostBackend().run(_executable(ptx, [dtype for dtype, _ in operands], result, count), [array for _, array in operands])
    assert isinstance(value, np.ndarray)
    return value


def _executable(ptx: str, inputs: list[str], result: str, count: int) -> Executable:
    specs = [
        ArraySpec(dtype, (count,), (0,), BufferSlice(number, 0, count * np.dtype(TYPES[dtype][1]).itemsize))
        for number, dtype in enumerate([*inputs, result])
    ]
    allocations = [
        BufferAllocation(number, spec.slice.size_bytes, number if number < len(inputs) else None, None, number == len(inputs))
        for number, spec in enumerate(specs)
    ]
    arguments = tuple(KernelArgument(spec.slice, number == len(inputs)) for number, spec in enumerate(specs))
    kernel = Kernel("k", ptx, (1, 1, 1), (count, 1, 1))
    thunks = (KernelThunk("k", "k", arguments),)
    return Executable("k", "h100", (kernel,), thunks, tuple(allocations), tuple(specs[:-1]), specs[-1])


def _floats(dtype: str, count: int = 256) -> Array:
    """Return random numbers of all magnitudes, after the special numbers."""
    rng = np.random.default_rng(7)
    numbers = rng.standard_normal(count) * 10.0 ** rng.uniform(-4, 4, count)
    numbers[:9] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.5]
    return numbers.astype(TYPES[dtype][1])


@pytest.mark.parametrize("card", OLD_AND_NEW)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(("op", "expected"), [("maximumf", np.maximum), ("minimumf", np.minimum)])
def test_extremes_keep_nan_and_order_zeros(dtype: str, card: str, op: str, expected: Callable[[Array, Array], Array]) -> None:
    left = _floats(dtype)
    # Combine every special number with every other.
    right = left.copy()
    left[:81], right[:81] = np.repeat(left[:9], 9), np.tile(right[:9], 9)
    got = _run(f"%r = arith.{op} %a, %b : {dtype}", [(dtype, left), (dtype, right)], dtype, card)
    np.testing.assert_array_equal(got.astype(np.float64), expected(left.astype(np.float64), right.astype(np.float64)))
    zeros = (left == 0) & (right == 0) & (np.signbit(left) != np.signbit(right))
    assert zeros.any()
    assert (np.signbit(got[zeros]) == (op == "minimumf")).all(), "+0 is greater than -0"


@pytest.mark.parametrize(("op", "expected"), [("tanh", np.tanh), ("erf", np.vectorize(math.erf))])
def test_polynomials(op: str, expected: Callable[[Array], Array]) -> None:
    numbers = _floats("f32", 512)
    numbers[9:200] = np.linspace(-9, 9, 191)
    numbers[200:240] = np.geomspace(1e-30, 1e-3, 40)
    got = _run(f"%r = math.{op} %a : f32", [("f32", numbers)], "f32", "h100")
    np.testing.assert_allclose(got, expected(numbers.astype(np.float64)), rtol=1e-6, atol=0)
    assert (np.abs(got[~np.isnan(numbers)]) <= 1).all()
    assert (np.signbit(got) == np.signbit(numbers))[~np.isnan(numbers)].all()


@pytest.mark.parametrize("card", OLD_AND_NEW)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    ("op", "expected"), [("absf", np.abs), ("roundeven", np.rint), ("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc)]
)
def test_exact_functions(dtype: str, card: str, op: str, expected: Callable[[Array], Array]) -> None:
    numbers = _floats(dtype)
    got = _run(f"%r = math.{op} %a : {dtype}", [(dtype, numbers)], dtype, card)
    wanted = expected(numbers.astype(np.float64)).astype(TYPES[dtype][1])
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))
    assert (np.signbit(got) == np.signbit(wanted))[~np.isnan(numbers)].all()


@pytest.mark.parametrize("card", OLD_AND_NEW)
def test_bf16_arithmetic_rounds_every_step(card: str) -> None:
    left, right = _floats("bf16"), _floats("bf16")[::-1].copy()
    body = "%m = arith.mulf %a, %b : bf16\n%r = arith.addf %m, %a : bf16"
    got = _run(body, [("bf16", left), ("bf16", right)], "bf16", card)
    with np.errstate(invalid="ignore"):
        wanted = (left * right) + left
    np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))


def test_remainder_has_the_sign_of_the_dividend() -> None:
    left, right = _floats("f32"), np.flip(_floats("f32")).copy()
    got = _run("%r = arith.remf %a, %b : f32", [("f32", left), ("f32", right)], "f32", "h100")
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, np.fmod(left, right))


@pytest.mark.parametrize(("dtype", "bits"), [("s8", 8), ("s32", 32), ("s64", 64)])
def test_counts_of_bits(dtype: str, bits: int) -> None:
    type_, numpy_type = TYPES[dtype]
    least = -(2 ** (bits - 1))
    rng = np.random.default_rng(3)
    numbers = (rng.integers(-(2**63), 2**63, 64) >> (64 - bits) >> rng.integers(0, bits, 64)).astype(numpy_type)
    numbers[:4] = [0, 1, -1, least]
    unsigned = [int(number) % 2**bits for number in numbers]
    leading = _run(f"%r = math.ctlz %a : {type_}", [(dtype, numbers)], dtype, "h100")
    ones = _run(f"%r = math.ctpop %a : {type_}", [(dtype, numbers)], dtype, "h100")
    absolute = _run(f"%r = math.absi %a : {type_}", [(dtype, numbers)], dtype, "h100")
    assert leading.tolist() == [bits - number.bit_length() for number in unsigned]
    assert ones.tolist() == [number.bit_count() for number in unsigned]
    assert absolute.tolist() == [int(number) if number == least else abs(int(number)) for number in numbers]


def test_control_flow() -> None:
    """A loop with a branch and a switch inside, against Python."""
    numbers = np.arange(64, dtype=np.int32)
    body = """
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %two = arith.constant 2 : i32
    %n = arith.index_cast %a : i32 to index
    %start = arith.constant 7 : i32
    %r = scf.for %j = %zero to %n step %one iter_args(%s = %start) -> (i32) {
      %k = arith.index_cast %j : index to i32
      %o = arith.remui %k, %two : i32
      %odd = arith.trunci %o : i32 to i1
      %u = scf.if %odd -> (i32) {
        %v = arith.muli %s, %two : i32
        scf.yield %v : i32
      } else {
        scf.yield %s : i32
      }
      %w = scf.index_switch %j -> i32
      case 3 {
        %x = arith.subi %u, %k : i32
        scf.yield %x : i32
      }
      case 5 {
        scf.yield %k : i32
      }
      default {
        %y = arith.addi %u, %k : i32
        scf.yield %y : i32
      }
      scf.yield %w : i32
    }
    """

    def expected(count: int) -> int:
        total = 7
        for step in range(count):
            total = total * 2 if step % 2 else total
            total = {3: total - step, 5: step}.get(step, total + step)
        return (total + 2**31) % 2**32 - 2**31

    got = _run(body, [("s32", numbers)], "s32", "h100")
    assert got.tolist() == [expected(count) for count in numbers.tolist()]
