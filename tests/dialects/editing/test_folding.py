"""Folding of integer ops agrees with numpy on 8-bit numbers; effects and index widths are correct."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Operation

from hlo_run.dialects.editing.effects import can_speculate, is_pure
from hlo_run.dialects.editing.folding import fold
from hlo_run.dialects.module_info import index_bits, set_index_bits
from hlo_run.dialects.parse import parse_module

I8 = IntegerType(8)
Wide = Callable[[int, int], int]


def signed(function: Wide) -> Wide:
    return lambda a, b: int(np.int64(function(a, b)).astype(np.int8))


def unsigned(function: Wide) -> Wide:
    return lambda a, b: int(np.int64(function(a & 255, b & 255)).astype(np.int8))


EXPECTED: list[tuple[type[arith.SignlessIntegerBinaryOperation], Wide]] = [
    (arith.AddiOp, signed(lambda a, b: a + b)),
    (arith.SubiOp, signed(lambda a, b: a - b)),
    (arith.MuliOp, signed(lambda a, b: a * b)),
    (arith.DivSIOp, signed(lambda a, b: int(np.trunc(a / b)))),
    (arith.RemSIOp, signed(lambda a, b: int(np.fmod(a, b)))),
    (arith.DivUIOp, unsigned(lambda a, b: a // b)),
    (arith.RemUIOp, unsigned(lambda a, b: a % b)),
    (arith.MaxUIOp, unsigned(max)),
    (arith.MinUIOp, unsigned(min)),
    (arith.MaxSIOp, signed(max)),
    (arith.MinSIOp, signed(min)),
    (arith.AndIOp, signed(lambda a, b: a & b)),
    (arith.OrIOp, signed(lambda a, b: a | b)),
    (arith.XOrIOp, signed(lambda a, b: a ^ b)),
]


@pytest.mark.parametrize(("kind", "expected"), EXPECTED, ids=lambda x: getattr(x, "name", ""))
def test_integer_ops(kind: type[arith.SignlessIntegerBinaryOperation], expected: Wide) -> None:
    numbers = [-128, -127, -3, -1, 0, 1, 2, 7, 100, 127]
    for a in numbers:
        for b in numbers:
            lhs, rhs = (arith.ConstantOp(IntegerAttr(n, I8)) for n in (a, b))
            folded = fold(kind(lhs, rhs))
            if b == 0 and "div" in kind.name + kind.name.replace("rem", "div"):
                assert not isinstance(folded, IntegerAttr) or a == b, f"{kind.name} {a} by 0"
                continue
            if not isinstance(folded, IntegerAttr):  # one of the operands replaces the result
                assert folded is lhs.result or folded is rhs.result
                folded = lhs.value if folded is lhs.result else rhs.value
            assert isinstance(folded, IntegerAttr)
            assert folded.value.data == expected(a, b), f"{kind.name} {a} {b}"


PREDICATES: tuple[Callable[[int, int], bool], ...] = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
)


@pytest.mark.parametrize("predicate", range(10))
def test_comparisons(predicate: int) -> None:
    for a in (-128, -1, 0, 1, 127):
        for b in (-128, -1, 0, 1, 127):
            lhs, rhs = (arith.ConstantOp(IntegerAttr(n, I8)) for n in (a, b))
            folded = fold(arith.CmpiOp(lhs, rhs, predicate))
            x, y = (a, b) if predicate < 6 else (a & 255, b & 255)
            expected = PREDICATES[predicate if predicate < 6 else predicate - 4](x, y)
            assert isinstance(folded, IntegerAttr)
            assert bool(folded.value.data) == expected


def _ops(text: str) -> dict[str, Operation]:
    module = parse_module(text)
    return {op.name: op for op in module.walk()}


def test_effects() -> None:
    ops = _ops(
        """
        func.func @f(%t: tensor<8xf32>, %i: index, %n: i32, %x: f32, %b: i8, %c: i1) {
          %0 = tensor.extract %t[%i] : tensor<8xf32>
          %1 = arith.extsi %b : i8 to i32
          %2 = arith.divsi %n, %1 : i32
          %c3 = arith.constant 3 : i32
          %3 = arith.remsi %n, %c3 : i32
          %4 = vector.transfer_read %t[%i], %x {in_bounds = [true]} : tensor<8xf32>, vector<4xf32>
          %5 = xla_gpu.allocate_shared : tensor<8xf32>
          %6 = xla_gpu.sync_threads %5 : tensor<8xf32>
          %7 = xla_gpu.pure_call @g(%x) : (f32) -> f32
          %8 = func.call @g(%x) : (f32) -> f32
          %9, %10 = gpu.shuffle down %x, %n, %n : f32
          scf.if %c {
            gpu.barrier
          }
          return
        }
        func.func private @g(%x: f32) -> f32 {
          return %x : f32
        }
        """
    )
    pure = {name for name, op in ops.items() if is_pure(op)}
    assert {"tensor.extract", "arith.extsi", "arith.divsi", "vector.transfer_read", "xla_gpu.pure_call", "gpu.shuffle"} < pure
    assert pure.isdisjoint({"xla_gpu.allocate_shared", "xla_gpu.sync_threads", "func.call", "scf.if", "gpu.barrier", "scf.yield"})
    speculated = {name for name, op in ops.items() if can_speculate(op)}
    assert {"tensor.extract", "arith.extsi", "arith.remsi", "xla_gpu.pure_call"} < speculated
    assert speculated.isdisjoint({"arith.divsi", "gpu.shuffle", "scf.if"})


def test_index_bits() -> None:
    module = ModuleOp([func.FuncOp.external("f", (), ())])
    assert index_bits(module) == 64
    set_index_bits(module, 32)
    assert index_bits(module) == 32
    assert index_bits(parse_module(str(module))) == 32
