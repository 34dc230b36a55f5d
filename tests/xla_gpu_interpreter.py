"""Runs emitted `xla_gpu` kernels in numpy, all threads of the grid at once, to hold emission against the reference.

A scalar value is an array over lanes (block-major threads) or a numpy scalar; a mask says which lanes are active.
Tensors are arrays written in place: the IR has one chain of inserts per tensor. Out-of-bounds accesses, reads of
unwritten shared memory and two different writes to one output element fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from scipy.special import erf  # pyright: ignore[reportMissingTypeStubs] - scipy has none
from xdsl.dialects import arith, func, math, scf, tensor
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.dialects import xla_gpu
from hlo_run.dialects.arith_extra import IndexCastUIOp, RemFOp
from hlo_run.dialects.gpu import BlockIdOp, ThreadIdOp
from hlo_run.dialects.pdl import PdlWaitOp

Array = np.ndarray[Any, Any]
_DTYPES: dict[str, Any] = {
    "i1": np.bool_,
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    "index": np.int64,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


def dtype_of(type_: Attribute) -> np.dtype[Any]:
    return np.dtype(_DTYPES[str(type_)])


@dataclass
class _Tensor:
    """`data` has a leading axis: of blocks for shared memory, of size 1 else. `written` counts writes, None for inputs."""

    data: Array
    shared: bool = False
    written: Array | None = None


class Interpreter:
    def __init__(self, module: ModuleOp, launch: LaunchDimensions) -> None:
        self.functions = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, func.FuncOp)}
        self.lanes = launch.blocks * launch.threads_per_block
        lane = np.arange(self.lanes)
        thread, self.block = lane % launch.threads_per_block, lane // launch.threads_per_block
        self.blocks = launch.blocks
        self.ids: dict[tuple[type[Operation], str], Array] = {}
        for kind, linear, sizes in ((ThreadIdOp, thread, launch.block), (BlockIdOp, self.block, launch.grid)):
            for axis, size in zip("xyz", sizes, strict=True):
                self.ids[kind, axis] = linear % size
                linear = linear // size

    def run(self, entry: str, inputs: Sequence[Array], outputs: Sequence[tuple[tuple[int, ...], Any]]) -> list[Array]:
        """Return the outputs, given by (dims, dtype), after a launch; every element must have been written."""
        tensors = [_Tensor(array[None]) for array in inputs]
        results = [_Tensor(np.zeros((1, *dims), dtype), written=np.zeros((1, *dims), np.int32)) for dims, dtype in outputs]
        mask = np.ones(self.lanes, bool)
        returned = self._call(self.functions[entry], [*tensors, *results], mask)
        for given, result in zip(results, returned, strict=True):
            assert result is given, "a kernel returns the tensors that it got"
            assert given.written is not None
            assert (given.written > 0).all(), f"{(given.written == 0).sum()} elements were not written"
        return [result.data.reshape(dims) for result, (dims, _) in zip(results, outputs, strict=True)]

    def _call(self, function: func.FuncOp, arguments: Sequence[Any], mask: Array) -> list[Any]:
        return self._block_values(function.body.block, arguments, mask, {})

    def _block_values(self, block: Block, arguments: Sequence[Any], mask: Array, env: dict[SSAValue, Any]) -> list[Any]:
        """Run a block; returns the operands of its terminator."""
        env.update(zip(block.args, arguments, strict=True))
        for op in block.ops:
            values = [env[operand] for operand in op.operands]
            if isinstance(op, func.ReturnOp | scf.YieldOp | xla_gpu.YieldOp):
                return values
            results = self._run(op, values, mask, env)
            env.update(zip(op.results, results, strict=True))
        raise AssertionError("a block ends in a terminator")

    def _run(self, op: Operation, values: list[Any], mask: Array, env: dict[SSAValue, Any]) -> Sequence[Any]:
        match op:
            case ThreadIdOp() | BlockIdOp():
                return [self.ids[type(op), str(op.dimension.data)]]
            case xla_gpu.PureCallOp() | func.CallOp():
                return self._call(self.functions[op.callee.string_value()], values, mask)
            case xla_gpu.ApplyIndexingOp():
                dims = len(op.map.dims)
                return [np.asarray(r) for r in op.map.compiled.results(values[:dims], values[dims:])]
            case xla_gpu.AllocateSharedOp():
                shape = op.res.type
                assert isinstance(shape, TensorType)
                data = np.zeros((self.blocks, *shape.get_shape()), dtype_of(shape.element_type))
                return [_Tensor(data, True, np.zeros(data.shape, np.int32))]
            case xla_gpu.SyncThreadsOp():
                return values
            case xla_gpu.LoopOp():
                return self._loop(op, values, mask, env)
            case scf.ForOp():
                return self._for(op, values, mask, env)
            case scf.IfOp():
                return self._if(op, values[0], mask, env)
            case tensor.ExtractOp():
                return [self._extract(values[0], values[1:], mask)]
            case tensor.InsertOp():
                return [self._insert(values[0], values[1], values[2:], mask)]
            case arith.ConstantOp():
                return [_constant(op)]
            case PdlWaitOp():
                return []
            case _:
                with np.errstate(all="ignore"):
                    return [_scalar(op, [np.asarray(value) for value in values])]

    def _loop(self, op: xla_gpu.LoopOp, values: list[Any], mask: Array, env: dict[SSAValue, Any]) -> list[Any]:
        dims, carried = values[: len(op.dims)], values[len(op.dims) :]
        ranges = [range(v.bounds.lower, v.bounds.upper + 1) for v in op.map.ranges]
        for symbols in itertools.product(*ranges):
            inside = mask & np.asarray(op.map.compiled.contains(dims, symbols))
            places = [np.asarray(place) for place in op.map.compiled.results(dims, symbols)]
            arguments = [*map(np.asarray, symbols), *places, *carried]
            new = self._block_values(op.body.block, arguments, inside, env)
            carried = [_merge(inside, value, old) for value, old in zip(new, carried, strict=True)]
        return carried

    def _for(self, op: scf.ForOp, values: list[Any], mask: Array, env: dict[SSAValue, Any]) -> list[Any]:
        (lower, upper, step), carried = (int(value) for value in values[:3]), values[3:]
        for number in range(lower, upper, step):
            carried = self._block_values(op.body.block, [np.asarray(number), *carried], mask, env)
        return carried

    def _if(self, op: scf.IfOp, condition: Any, mask: Array, env: dict[SSAValue, Any]) -> list[Any]:
        taken = np.broadcast_to(condition, mask.shape)
        then = self._block_values(op.true_region.block, (), mask & taken, env)
        otherwise = self._block_values(op.false_region.block, (), mask & ~taken, env)
        return [_merge(taken, a, b) for a, b in zip(then, otherwise, strict=True)]

    def _place(self, target: _Tensor, index: Sequence[Any], mask: Array) -> tuple[Array, ...]:
        sizes = target.data.shape[1:]
        place = [np.broadcast_to(np.asarray(i, dtype=np.int64), mask.shape)[mask] for i in index]
        assert len(place) == len(sizes), "one index per dimension"
        for i, size in zip(place, sizes, strict=True):
            assert ((i >= 0) & (i < size)).all(), f"an index leaves [0, {size - 1}]"
        return (self.block[mask] if target.shared else np.zeros(int(mask.sum()), np.int64), *place)

    def _extract(self, source: _Tensor, index: Sequence[Any], mask: Array) -> Array:
        place = self._place(source, index, mask)
        result = np.zeros(mask.shape, source.data.dtype)
        if mask.any():
            result[mask] = source.data[place]
            assert source.written is None or (source.shared and (source.written[place] > 0).all()), "read before write"
        return result

    def _insert(self, value: Any, target: _Tensor, index: Sequence[Any], mask: Array) -> _Tensor:
        if mask.any():
            place = self._place(target, index, mask)
            assert target.written is not None, "an input is written"
            target.data[place] = np.broadcast_to(value, mask.shape)[mask]
            np.add.at(target.written, place, 1)
            assert (target.written[place] == 1).all(), "an element is written twice"
        return target


def _merge(mask: Array, new: Any, old: Any) -> Any:
    if isinstance(new, _Tensor):
        assert new is old, "tensors are written in one chain"
        return old
    return np.where(mask, np.asarray(new), np.asarray(old))


def _constant(op: arith.ConstantOp) -> Any:
    attribute = op.value
    match attribute:
        case IntegerAttr() | FloatAttr():
            # Converted from a Python number, so that i8 -1 and f16 infinities come out right.
            return np.asarray(attribute.value.data).astype(dtype_of(op.result.type))
        case DenseIntOrFPElementsAttr():
            data = np.frombuffer(attribute.data.data, dtype_of(attribute.get_element_type()))
            return _Tensor(data.reshape(1, *attribute.get_shape()))
        case _:
            raise AssertionError(f"constant {attribute}")


def _unsigned(value: Array) -> Array:
    return value.astype(np.uint8) if value.dtype == np.bool_ else value.view(f"uint{value.dtype.itemsize * 8}")


def _on_unsigned(function: Callable[..., Array]) -> Callable[..., Array]:
    def run(left: Array, right: Array) -> Array:
        return np.asarray(function(_unsigned(left), _unsigned(right))).view(left.dtype)

    return run


def _truncated(left: Array, right: Array) -> Array:
    assert (right != 0).all(), "division by zero"
    quotient = np.abs(left.astype(object)) // np.abs(right.astype(object))
    return np.where((left < 0) ^ (right < 0), -quotient, quotient).astype(left.dtype)


def _remainder(left: Array, right: Array) -> Array:
    return left - right * _truncated(left, right)


def _leading_zeros(value: Array) -> Array:
    bits = value.dtype.itemsize * 8
    lengths = [int(item).bit_length() for item in _unsigned(value).reshape(-1)]
    return (bits - np.array(lengths)).reshape(value.shape).astype(value.dtype)


def _ones(value: Array) -> Array:
    return np.bitwise_count(_unsigned(value)).astype(value.dtype)


def _round_away(value: Array) -> Array:
    whole = np.trunc(value)
    return np.where(np.abs(value - whole) >= 0.5, whole + np.copysign(1, value), whole)


def _rsqrt(value: Array) -> Array:
    return 1 / np.sqrt(value)


def _shift(function: Callable[..., Array]) -> Callable[..., Array]:
    # A long shift is poison, which a select throws away; any value will do.
    def run(left: Array, right: Array) -> Array:
        return function(left, np.minimum(_unsigned(right), left.dtype.itemsize * 8 - 1).astype(left.dtype))

    return run


def _float_function(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(*values: Array) -> Array:
        wide = [value.astype(np.float64) for value in values]
        return np.asarray(function(*wide)).astype(values[0].dtype)

    return run


_CMPI: tuple[Callable[..., Any], ...] = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.less, np.less_equal, np.greater, np.greater_equal),
)
_ORDERED: dict[int, Callable[..., Any]] = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal}

_BINARY: dict[type[Operation], Callable[..., Any]] = {
    arith.AddiOp: np.add,
    arith.SubiOp: np.subtract,
    arith.MuliOp: np.multiply,
    arith.AddfOp: np.add,
    arith.SubfOp: np.subtract,
    arith.MulfOp: np.multiply,
    arith.DivfOp: np.divide,
    RemFOp: np.fmod,
    arith.MaximumfOp: np.maximum,
    arith.MinimumfOp: np.minimum,
    arith.MaxSIOp: np.maximum,
    arith.MinSIOp: np.minimum,
    arith.MaxUIOp: _on_unsigned(np.maximum),
    arith.MinUIOp: _on_unsigned(np.minimum),
    arith.AndIOp: np.bitwise_and,
    arith.OrIOp: np.bitwise_or,
    arith.XOrIOp: np.bitwise_xor,
    arith.DivUIOp: _on_unsigned(np.floor_divide),
    arith.RemUIOp: _on_unsigned(np.remainder),
    arith.DivSIOp: _truncated,
    arith.RemSIOp: _remainder,
    arith.ShLIOp: _shift(np.left_shift),
    arith.ShRSIOp: _shift(np.right_shift),
    arith.ShRUIOp: _shift(_on_unsigned(np.right_shift)),
    math.PowFOp: _float_function(np.power),
    math.Atan2Op: _float_function(np.arctan2),
    math.CopySignOp: np.copysign,
}

_UNARY: dict[type[Operation], Callable[..., Any]] = {
    arith.NegfOp: np.negative,
    math.AbsFOp: np.abs,
    math.FloorOp: np.floor,
    math.CeilOp: np.ceil,
    math.RoundEvenOp: np.rint,
    math.RoundOp: _float_function(_round_away),
    math.RsqrtOp: _float_function(_rsqrt),
    math.ErfOp: _float_function(erf),
    math.CtPopOp: _ones,
    math.CountLeadingZerosOp: _leading_zeros,
    **{
        op: _float_function(function)
        for op, function in (
            (math.ExpOp, np.exp),
            (math.Exp2Op, np.exp2),
            (math.Log2Op, np.log2),
            (math.LogOp, np.log),
            (math.ExpM1Op, np.expm1),
            (math.Log1pOp, np.log1p),
            (math.SqrtOp, np.sqrt),
            (math.CbrtOp, np.cbrt),
            (math.SinOp, np.sin),
            (math.CosOp, np.cos),
            (math.TanOp, np.tan),
            (math.TanhOp, np.tanh),
            (math.AcosOp, np.arccos),
            (math.AcoshOp, np.arccosh),
            (math.AsinOp, np.arcsin),
            (math.AsinhOp, np.arcsinh),
            (math.AtanhOp, np.arctanh),
            (math.SinhOp, np.sinh),
            (math.CoshOp, np.cosh),
        )
    },
}


def _scalar(op: Operation, values: list[Array]) -> Array:
    result = dtype_of(op.results[0].type)
    match op:
        case arith.CmpiOp():
            predicate = op.predicate.value.data
            left, right = map(_unsigned, values) if predicate >= 6 else values
            return np.asarray(_CMPI[predicate](left, right))
        case arith.CmpfOp():
            return _compare_floats(op.predicate.value.data, *values)
        case arith.SelectOp():
            return np.where(values[0], values[1], values[2])
        case arith.BitcastOp():
            return values[0].view(result)
        case arith.ExtUIOp() | arith.UIToFPOp():
            return _unsigned(values[0]).astype(result)
        case IndexCastUIOp():
            return _unsigned(values[0]).astype(result)
        case arith.FPToSIOp() | arith.FPToUIOp():
            return _to_integer(values[0], result, isinstance(op, arith.FPToSIOp))
        case arith.TruncIOp() if result == np.bool_:
            return (values[0] & 1).astype(bool)
        case arith.ExtSIOp() | arith.TruncIOp() | arith.SIToFPOp() | arith.ExtFOp() | arith.TruncFOp() | arith.IndexCastOp():
            return values[0].astype(result)
        case _ if type(op) in _BINARY:
            return np.asarray(_BINARY[type(op)](*values)).astype(result)
        case _:
            return np.asarray(_UNARY[type(op)](*values)).astype(result)


def _compare_floats(predicate: int, left: Array, right: Array) -> Array:
    unordered = np.isnan(left) | np.isnan(right)
    if predicate in _ORDERED:
        return np.asarray(_ORDERED[predicate](left, right)) & ~unordered
    return {6: (left != right) & ~unordered, 13: (left != right) | unordered, 14: unordered}[predicate]


def _to_integer(value: Array, dtype: np.dtype[Any], signed: bool) -> Array:
    """Out of range is poison in the IR; the emitted selects must throw it away."""
    bits = dtype.itemsize * 8
    wide = value.astype(np.float64)
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (-1.0, 2.0**bits)
    fits = np.trunc(wide) == np.clip(np.trunc(wide), low, np.nextafter(high, 0))
    return np.where(fits, wide, 0).astype(dtype if signed else f"uint{bits}").view(dtype)
