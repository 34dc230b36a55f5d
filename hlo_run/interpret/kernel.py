"""Interprets a kernel after any row: all threads at once, each value an array over them, with masks for branches.

Blocks that end in branches run in the order of their text, each for the threads that wait at it. Barriers need no work then.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from xdsl.dialects import llvm
from xdsl.dialects.builtin import ArrayAttr, DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, ModuleOp, SymbolRefAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.arrays import Array, NumpyType
from hlo_run.dialects import gpu, llvm_extra, nvvm
from hlo_run.dialects.types import is_tensor, is_vector
from hlo_run.interpret.memory import Memory, Tensor
from hlo_run.interpret.scalars import (
    NotInterpreted,
    compare_floats,
    compare_integers,
    device_function,
    dtype_of,
    function_of,
    to_integer,
    unsigned,
)
from hlo_run.records import replace

_WARP = 32
_SHARED = 3
# What operations take and return: arrays with an item per lane, tensors and buffers.
Values: TypeAlias = "Sequence[Any]"
Environment: TypeAlias = "dict[SSAValue, Any]"


class Step(Struct):
    """One operation: the values of its operands, the lanes that execute it, and all values in scope."""

    op: Any
    values: list[Any]
    mask: Array
    env: Environment


Work: TypeAlias = "Callable[[Any, Step], Values]"
_TERMINATORS = frozenset(
    ("func.return", "scf.yield", "xla_gpu.yield", "llvm.return", "gpu.return", "gpu.yield", "gpu.terminator", "scf.condition")
)


def interpret(
    module: ModuleOp, kernel: str, launch: LaunchDimensions, memory: Memory, arguments: Sequence[int], until: float
) -> None:
    """Run a launch: `arguments` are the addresses of the kernel's arguments.

    Raises NotInterpreted, also after `until` (time.monotonic).
    """
    with np.errstate(all="ignore"):
        KernelInterpreter(module, launch, memory, until).run(kernel, arguments)


class KernelInterpreter:
    """Runs functions of a module for all threads of a launch. `work` has the operations by name that are not plain arithmetic."""

    work: ClassVar[dict[str, Work]]

    def __init__(self, module: ModuleOp, launch: LaunchDimensions, memory: Memory, until: float) -> None:
        self._memory, self._until = memory, until
        self._functions: dict[str, Any] = {}
        self._globals: dict[str, Array] = {}
        self.lanes = launch.blocks * launch.threads_per_block
        lane = np.arange(self.lanes)
        self._thread, self._block = lane % launch.threads_per_block, lane // launch.threads_per_block
        self._launch = launch
        self._ids: dict[str, Array] = {}
        for kind, names, linear, sizes in (
            ("thread_id", "tid", self._thread, launch.block),
            ("block_id", "ctaid", self._block, launch.grid),
        ):
            for axis, size in zip("xyz", sizes, strict=True):
                self._ids[f"{kind}{axis}"] = (linear % size).astype(np.int64)
                self._ids[f"{names}.{axis}"] = (linear % size).astype(np.int32)
                linear = linear // size
        for op in module.body.block.ops:
            if isinstance(op, llvm.GlobalOp):
                self._global(op)
            elif op.regions and "sym_name" in op.properties:
                self._functions[op.properties["sym_name"].data] = op  # type: ignore[attr-defined]

    def run(self, entry: str, arguments: Sequence[int]) -> None:
        function = self._functions[entry]
        values = [self._argument(arg.type, address) for arg, address in zip(function.body.blocks[0].args, arguments, strict=True)]
        self._call(entry, values, np.ones(self.lanes, bool))

    def _argument(self, type_: Attribute, address: int) -> Any:
        where = np.asarray(address, np.int64)
        return self._tensor(type_, where) if is_tensor(type_) else where

    def _tensor(self, type_: Any, address: Array) -> Tensor:
        if str(type_.encoding) != "none" or is_vector(type_.element_type):
            raise NotInterpreted(f"type {type_}")
        return Tensor(address, dtype_of(str(type_.element_type)), tuple(type_.get_shape()))

    def _global(self, op: llvm.GlobalOp) -> None:
        shared = op.addr_space.value.data == _SHARED
        size = _size_bytes(op.global_type)
        if shared:
            room = -(-size // 256) * 256
            start = self._memory.allocate(room * self._launch.blocks)
            self._globals[op.sym_name.data] = start + self._block * room
        else:
            value: Any = op.value
            if not isinstance(value, DenseIntOrFPElementsAttr):
                raise NotInterpreted(f"global {op.sym_name.data}")
            self._globals[op.sym_name.data] = np.asarray(self._memory.allocate(size, dense_values(op.value).tobytes()))

    # ---- control

    def _call(self, name: str, values: list[Any], mask: Array) -> list[Any]:
        function = self._functions.get(name)
        if function is None or not function.body.blocks or function.body.blocks[0].first_op is None:
            device = device_function(name)
            if device is None:
                raise NotInterpreted(f"function {name}")
            return [np.asarray(device(*values)).astype(values[0].dtype)]
        blocks = list(function.body.blocks)
        if len(blocks) == 1:
            return self._region(blocks[0], values, mask, {})
        return self._graph(blocks, values, mask)

    def _region(self, block: Block, arguments: Values, mask: Array, env: Environment) -> list[Any]:
        """Run a block without branches; return the operands of its terminator."""
        env.update(zip(block.args, arguments, strict=True))
        for op in block.ops:
            values = [env[operand] for operand in op.operands]
            if op.name in _TERMINATORS:
                return values
            env.update(zip(op.results, self._run(op, values, mask, env), strict=True))
        return []

    def _graph(self, blocks: list[Block], arguments: Values, mask: Array, env: Environment | None = None) -> list[Any]:
        """Run the blocks of a function: always the first one in the text at which threads wait."""
        numbers = {block: number for number, block in enumerate(blocks)}
        at = np.where(mask, 0, len(blocks))
        env = {} if env is None else env
        env.update(zip(blocks[0].args, arguments, strict=True))
        returned: list[Any] = []
        while (number := int(at.min())) < len(blocks):
            here = at == number
            for op in blocks[number].ops:
                if op.next_op is None:
                    returned = self._leave(op, here, at, env, numbers, returned)
                    break
                values = [env[operand] for operand in op.operands]
                for result, value in zip(op.results, self._run(op, values, here, env), strict=True):
                    env[result] = merged(here, value, env.get(result))
        return returned

    def _leave(
        self, op: Operation, here: Array, at: Array, env: Environment, numbers: dict[Block, int], returned: list[Any]
    ) -> list[Any]:
        """Move the threads at a terminator to their next blocks."""
        if op.name in _TERMINATORS:
            at[here] = len(numbers)
            values = [env[operand] for operand in op.operands]
            return [merged(here, value, old) for value, old in itertools.zip_longest(values, returned)]
        ways: list[tuple[Array, Block, Sequence[SSAValue]]] = []
        match op.name:
            case "cf.br" | "llvm.br":
                ways.append((here, op.successors[0], op.operands))
            case "cf.cond_br" | "llvm.cond_br":
                taken = np.broadcast_to(env[op.operands[0]], here.shape).astype(bool)
                then, otherwise = op.successors
                count = len(then.args)
                ways.append((here & taken, then, op.operands[1 : 1 + count]))
                ways.append((here & ~taken, otherwise, op.operands[1 + count :]))
            case _:
                raise NotInterpreted(op.name)
        moved = [(mask, block, [env[value] for value in values]) for mask, block, values in ways]
        for mask, block, values in moved:
            at[mask] = numbers[block]
            for argument, value in zip(block.args, values, strict=True):
                env[argument] = merged(mask, value, env.get(argument))
        return returned

    # ---- operations

    def _run(self, op: Operation, values: list[Any], mask: Array, env: Environment) -> Values:
        if time.monotonic() > self._until:
            raise NotInterpreted("the kernel takes too long to interpret")
        work = self.work.get(op.name)
        if work is not None:
            return work(self, Step(op, values, mask, env))
        if op.name.startswith("nvvm.read.ptx.sreg."):
            return [self._ids[op.name.removeprefix("nvvm.read.ptx.sreg.")]]
        function = function_of(op.name)
        if function is not None and op.results:
            arrays = [np.asarray(value) for value in values]
            return [np.asarray(function(*arrays)).astype(value_dtype(op.results[0].type))]
        raise NotInterpreted(op.name)

    def do_called(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        return self._call(symbol_of(op.callee), values, mask)

    def do_id(self, step: Step) -> Values:
        op = step.op
        return [self._ids[op.name.removeprefix("gpu.") + op.dimension.data.value]]

    def do_indexing(self, step: Step) -> Values:
        op, values = step.op, step.values
        count = len(op.map.dims)
        wide = [np.asarray(value, np.int64) for value in values]
        return [np.asarray(r, np.int64) for r in op.map.compiled.results(wide[:count], wide[count:])]

    def do_loop(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        dims, carried = values[: len(op.dims)], values[len(op.dims) :]
        ranges = [range(v.bounds.lower, v.bounds.upper + 1) for v in op.map.ranges]
        for symbols in itertools.product(*ranges):
            inside = mask & np.asarray(op.map.compiled.contains(dims, symbols))
            places = [np.asarray(place) for place in op.map.compiled.results(dims, symbols)]
            new = self._region(op.body.block, [*map(np.asarray, symbols), *places, *carried], inside, env)
            carried = [merged(inside, value, old) for value, old in zip(new, carried, strict=True)]
        return carried

    def do_for(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        lower, upper, stride = (np.broadcast_to(value, mask.shape).astype(np.int64) for value in values[:3])
        carried, at = values[3:], lower
        while (going := mask & (at < upper)).any():
            new = self._region(op.body.block, [at.astype(value_dtype(op.body.block.args[0].type)), *carried], going, env)
            carried = [merged(going, value, old) for value, old in zip(new, carried, strict=True)]
            at = at + stride
        return carried

    def do_if(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        taken = np.broadcast_to(values[0], mask.shape).astype(bool)
        then = self._region(op.true_region.block, (), mask & taken, env)
        otherwise = self._region(op.false_region.block, (), mask & ~taken, env) if op.false_region.blocks else []
        return [merged(taken, a, b) for a, b in zip(then, otherwise, strict=True)]

    def do_constant(self, step: Step) -> Values:
        op = step.op
        value: Any = op.properties["value"]
        type_ = op.results[0].type
        if isinstance(op.properties["value"], ArrayAttr):
            real, imaginary = (part.value.data for part in value.data)
            return [np.asarray(complex(real, imaginary), value_dtype(type_))]
        if isinstance(value, IntegerAttr | FloatAttr):
            return [np.asarray(value.value.data).astype(value_dtype(type_))]
        if not isinstance(value, DenseIntOrFPElementsAttr):
            raise NotInterpreted(f"constant {value}")
        data = dense_values(op.properties["value"])
        if is_tensor(type_):
            return [self._tensor(type_, np.asarray(self._memory.allocate(data.nbytes, data.tobytes())))]
        return [np.broadcast_to(data.reshape(-1), (1, *_vector_dims(type_)))]

    # ---- tensors

    def do_extract(self, step: Step) -> Values:
        values, mask = step.values, step.mask
        source: Tensor = values[0]
        return [self._memory.load(source.place(values[1:]), source.dtype, mask)]

    def do_insert(self, step: Step) -> Values:
        values, mask = step.values, step.mask
        target: Tensor = values[1]
        self._memory.store(target.place(values[2:]), np.asarray(values[0]), mask)
        return [target]

    def do_extract_if(self, step: Step) -> Values:
        values, mask = step.values, step.mask
        source, *index, condition, fallback = values
        taken = mask & condition
        return [merged(taken, self._memory.load(source.place(index), source.dtype, taken), fallback)]

    def do_insert_if(self, step: Step) -> Values:
        values, mask = step.values, step.mask
        value, target, *index, condition = values
        self._memory.store(target.place(index), np.asarray(value), mask & condition)
        return [target]

    def do_shared(self, step: Step) -> Values:
        op = step.op
        tensor = self._tensor(op.res.type, np.asarray(0))
        room = -(-tensor.count * tensor.dtype.itemsize // 256) * 256
        start = self._memory.allocate(room * self._launch.blocks)
        return [Tensor(start + self._block * room, tensor.dtype, tensor.dims)]

    def do_read_vector(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        source: Tensor = values[0]
        if len(values) != 3:
            raise NotInterpreted("a vector read with several indices")
        return [self._load_vector(source.place([values[1]]), source.dtype, _vector_dims(op.results[0].type), mask)]

    def do_write_vector(self, step: Step) -> Values:
        values, mask = step.values, step.mask
        value, target, index = values[:3]
        self._store_vector(target.place([index]), value, mask)
        return [target]

    def _load_vector(self, address: Array, dtype: NumpyType, dims: tuple[int, ...], mask: Array) -> Array:
        parts = [self._memory.load(address + n * dtype.itemsize, dtype, mask) for n in range(dims[0])]
        return np.stack(parts, axis=-1)

    def _store_vector(self, address: Array, value: Array, mask: Array) -> None:
        wide = np.broadcast_to(value, (self.lanes, value.shape[-1]))
        for n in range(value.shape[-1]):
            self._memory.store(address + n * value.dtype.itemsize, wide[:, n], mask)

    def do_atomic(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        target: Tensor = values[0]
        if is_vector(op.body.block.args[0].type):
            raise NotInterpreted("an atomic update of a vector")
        address = np.broadcast_to(target.place(values[1:]), mask.shape)
        for turn in turns(address, mask):
            (new,) = self._region(op.body.block, [self._memory.load(address, target.dtype, turn)], turn, env)
            self._memory.store(address, np.asarray(new), turn)
        return [target]

    # ---- warps

    def do_shuffle(self, step: Step) -> Values:
        op: gpu.ShuffleOp = step.op
        values, mask = step.values, step.mask
        moved = self._shuffled(str(op.mode.data.value), values[0], values[1], values[2])
        return [moved, np.ones(mask.shape, bool)]

    def do_shuffle_sync(self, step: Step) -> Values:
        op: nvvm.ShuffleSyncOp = step.op
        values = step.values
        kind = {"bfly": "xor"}.get(str(op.kind.data.value), str(op.kind.data.value))
        clamp = np.asarray(values[3])
        width = _WARP - clamp if kind == "up" else (clamp & 31) + 1
        return [self._shuffled(kind, values[1], values[2], width)]

    def _shuffled(self, kind: str, value: Any, offset: Any, width: Any) -> Array:
        lane = self._thread % _WARP
        begin = lane // width * width
        end = np.minimum(begin + width, np.minimum(_WARP, self._launch.threads_per_block - (self._thread - lane)))
        other = {"down": lane + offset, "up": lane - offset, "xor": lane ^ np.asarray(offset), "idx": begin + offset}[kind]
        valid = (other >= begin) & (other < end)
        place = np.arange(self.lanes) + np.where(valid, other - lane, 0)
        return np.broadcast_to(value, (self.lanes,))[place]

    def do_shuffle_reduce(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        distance = op.max_distance.value.data
        while distance:
            moved = [self._shuffled("down", value, distance, _WARP) for value in values]
            values = self._call(symbol_of(op.combiner), [*values, *moved], mask)
            distance //= 2
        return values

    def do_nothing(self, step: Step) -> Values:
        values = step.values
        return values

    # ---- vectors, casts, comparisons

    def do_vector_extract(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        wide = np.broadcast_to(values[0], (mask.size, values[0].shape[-1]))
        place = np.broadcast_to(_position(op, values[1:]), mask.shape)
        return [np.take_along_axis(wide, np.clip(place, 0, wide.shape[1] - 1)[:, None], axis=1)[:, 0]]

    def do_vector_insert(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        element, vector_, at = (
            (values[0], values[1], _position(op, values[2:])) if op.name == "vector.insert" else (values[1], values[0], values[2])
        )
        wide = np.broadcast_to(vector_, (mask.size, vector_.shape[-1])).copy()
        np.put_along_axis(
            wide, np.broadcast_to(at, mask.shape)[:, None].astype(np.int64), np.broadcast_to(element, mask.shape)[:, None], 1
        )
        return [wide]

    def do_splat(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        count = _vector_dims(op.results[0].type)[0]
        return [np.repeat(np.broadcast_to(values[0], mask.shape)[:, None], count, axis=1)]

    def do_cast(self, step: Step) -> Values:
        op, values = step.op, step.values
        value, result, name = np.asarray(values[0]), value_dtype(op.results[0].type), op.name.partition(".")[2]
        match name:
            case "extui" | "zext" | "uitofp" | "index_castui":
                return [unsigned(value).astype(result)]
            case "fptosi" | "fptoui":
                return [to_integer(value, result, signed=name == "fptosi")]
            case "trunci" | "trunc" if result == np.bool_:
                return [(value & 1).astype(bool)]
            case "bitcast":
                return [value if value.dtype == result else _bits(value, op.results[0].type, result)]
            case "extsi" | "sext" if value.dtype == np.bool_:
                return [-value.astype(result)]
            case _:
                return [value.astype(result)]

    def do_compare(self, step: Step) -> Values:
        op, values = step.op, step.values
        compare = compare_integers if op.name in ("arith.cmpi", "llvm.icmp") else compare_floats
        return [compare(op.predicate.value.data, np.asarray(values[0]), np.asarray(values[1]))]

    def do_select(self, step: Step) -> Values:
        values, mask = step.values, step.mask
        condition, one, two = values
        if isinstance(one, Tensor):
            return [merged(np.broadcast_to(condition, mask.shape), one, two)]
        wide = one.ndim > 1 and condition.ndim == 1
        return [np.where(condition[:, None] if wide else condition, one, two)]

    def do_complex(self, step: Step) -> Values:
        op, values = step.op, step.values
        match op.name:
            case "complex.create":
                return [(np.asarray(values[0]) + 1j * np.asarray(values[1])).astype(value_dtype(op.results[0].type))]
            case "complex.re":
                return [np.real(values[0])]
            case _:
                return [np.imag(values[0])]

    # ---- pointers

    def do_address(self, step: Step) -> Values:
        op = step.op
        return [self._globals[symbol_of(op.global_name)]]

    def do_element(self, step: Step) -> Values:
        op: llvm_extra.GEPOp = step.op
        values = step.values
        rest, address = iter(values[1:]), np.asarray(values[0], np.int64)
        type_: Any = op.elem_type
        for number, index in enumerate(op.mixed_indices()):
            at = index if isinstance(index, int) else np.asarray(next(rest), np.int64)
            if number:
                type_ = type_.type if isinstance(type_, llvm.LLVMArrayType) else type_.get_element_type()
            address = address + at * _size_bytes(type_)
        return [address]

    def do_load(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        type_ = op.results[0].type
        if is_vector(type_):
            return [self._load_vector(values[0], dtype_of(str(type_.get_element_type())), _vector_dims(type_), mask)]
        return [self._memory.load(values[0], value_dtype(type_), mask)]

    def do_store(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        if is_vector(op.operands[0].type):
            self._store_vector(np.asarray(values[1]), np.asarray(values[0]), mask)
        else:
            self._memory.store(np.asarray(values[1]), np.asarray(values[0]), mask)
        return []

    def do_poison(self, step: Step) -> Values:
        op = step.op
        type_ = op.results[0].type
        return [np.zeros((1, *_vector_dims(type_)) if is_vector(type_) else (), value_dtype(type_))]


def symbol_of(attribute: Attribute) -> str:
    assert isinstance(attribute, SymbolRefAttr), "the callee is a symbol"
    return attribute.string_value()


def value_dtype(type_: Attribute) -> NumpyType:
    return dtype_of(str(type_.get_element_type() if is_vector(type_) else type_))


def _vector_dims(type_: Any) -> tuple[int, ...]:
    dims = tuple(type_.get_shape())
    if len(dims) != 1:
        raise NotInterpreted(f"type {type_}")
    return dims


def _size_bytes(type_: Any) -> int:
    if isinstance(type_, llvm.LLVMArrayType):
        return type_.size.data * _size_bytes(type_.type)
    if is_vector(type_) or is_tensor(type_):
        return int(np.prod(type_.get_shape())) * dtype_of(str(type_.get_element_type())).itemsize
    return dtype_of(str(type_)).itemsize


def dense_values(value: Any) -> Array:
    dtype = dtype_of(str(value.get_element_type()))
    if dtype == np.bool_:
        return np.array([bool(number) for number in value.get_values()])
    data: Array = np.frombuffer(value.data.data, dtype)
    count = math.prod(value.get_shape())
    return np.repeat(data, count) if data.size == 1 else data


def _bits(value: Array, type_: Attribute, dtype: NumpyType) -> Array:
    if is_vector(type_) or value.ndim > 1 or value.dtype.itemsize != dtype.itemsize:
        raise NotInterpreted(f"a bitcast to {type_}")
    return np.ascontiguousarray(value).view(dtype).reshape(value.shape)


def _position(op: Any, dynamic: list[Any]) -> Any:
    if op.name.startswith("llvm."):
        return np.asarray(dynamic[0], np.int64)
    (position,) = op.get_mixed_position()
    return np.asarray(position if isinstance(position, int) else dynamic[0], np.int64)


def turns(address: Array, mask: Array) -> list[Array]:
    """Return masks of lanes, each with different addresses, that together are the mask."""
    lanes = np.flatnonzero(mask)
    order = lanes[np.argsort(address[lanes], kind="stable")]
    first = np.concatenate(([True], address[order][1:] != address[order][:-1])) if order.size else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(first, np.arange(order.size), 0)) if order.size else first
    rank = np.arange(order.size) - starts
    found: list[Array] = []
    for number in range(int(rank.max(initial=-1)) + 1):
        turn = np.zeros(mask.shape, bool)
        turn[order[rank == number]] = True
        found.append(turn)
    return found


def merged(mask: Array, new: Any, old: Any) -> Any:
    if old is None or new is old:
        return new
    if isinstance(new, Tensor):
        if np.array_equal(np.broadcast_to(new.address, mask.shape), np.broadcast_to(old.address, mask.shape)):
            return new
        return replace(new, address=np.where(mask, new.address, old.address))
    one, two = np.asarray(new), np.asarray(old)
    wide = max(one.ndim, two.ndim) > 1
    return np.where(mask[:, None] if wide else mask, one, two)


_CASTS = (
    *"arith.extui arith.extsi arith.trunci arith.uitofp arith.sitofp arith.extf arith.truncf arith.index_cast".split(),
    *"arith.index_castui arith.fptosi arith.fptoui arith.bitcast llvm.zext llvm.sext llvm.trunc llvm.uitofp llvm.sitofp".split(),
    *"llvm.fpext llvm.fptrunc llvm.fptosi llvm.fptoui llvm.bitcast llvm.addrspacecast".split(),
)
_WAITS = (
    *"xla_gpu.sync_threads gpu.barrier nvvm.barrier".split(),
    *"xla_gpu.pdl_wait xla_gpu.pdl_launch_dependents nvvm.griddepcontrol".split(),
)
KernelInterpreter.work = {
    **dict.fromkeys(("xla_gpu.pure_call", "func.call", "llvm.call"), KernelInterpreter.do_called),
    **dict.fromkeys(("gpu.thread_id", "gpu.block_id"), KernelInterpreter.do_id),
    **dict.fromkeys(("arith.constant", "llvm.mlir.constant", "complex.constant"), KernelInterpreter.do_constant),
    **dict.fromkeys(_WAITS, KernelInterpreter.do_nothing),
    **dict.fromkeys(("vector.extract", "llvm.extractelement"), KernelInterpreter.do_vector_extract),
    **dict.fromkeys(("vector.insert", "llvm.insertelement"), KernelInterpreter.do_vector_insert),
    **dict.fromkeys(("arith.cmpi", "arith.cmpf", "llvm.icmp", "llvm.fcmp"), KernelInterpreter.do_compare),
    **dict.fromkeys(("arith.select", "llvm.select"), KernelInterpreter.do_select),
    **dict.fromkeys(("complex.create", "complex.re", "complex.im"), KernelInterpreter.do_complex),
    **dict.fromkeys(_CASTS, KernelInterpreter.do_cast),
    "xla_gpu.apply_indexing": KernelInterpreter.do_indexing,
    "xla_gpu.loop": KernelInterpreter.do_loop,
    "xla_gpu.allocate_shared": KernelInterpreter.do_shared,
    "xla_gpu.predicated_extract": KernelInterpreter.do_extract_if,
    "xla_gpu.predicated_insert": KernelInterpreter.do_insert_if,
    "xla_gpu.shuffle_reduce": KernelInterpreter.do_shuffle_reduce,
    "xla_gpu.atomic_rmw": KernelInterpreter.do_atomic,
    "scf.for": KernelInterpreter.do_for,
    "scf.if": KernelInterpreter.do_if,
    "tensor.extract": KernelInterpreter.do_extract,
    "tensor.insert": KernelInterpreter.do_insert,
    "vector.transfer_read": KernelInterpreter.do_read_vector,
    "vector.transfer_write": KernelInterpreter.do_write_vector,
    "vector.broadcast": KernelInterpreter.do_splat,
    "gpu.shuffle": KernelInterpreter.do_shuffle,
    "nvvm.shfl.sync": KernelInterpreter.do_shuffle_sync,
    "llvm.mlir.addressof": KernelInterpreter.do_address,
    "llvm.getelementptr": KernelInterpreter.do_element,
    "llvm.load": KernelInterpreter.do_load,
    "llvm.store": KernelInterpreter.do_store,
    "llvm.mlir.poison": KernelInterpreter.do_poison,
}
