"""Interprets kernels of the gpu dialect as they are written: memrefs, ids, reductions, and barriers that all must reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects import memref
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.arrays import NumpyType
from hlo_run.dialects.types import is_memref
from hlo_run.interpret.kernel import Environment, KernelInterpreter, Step, Values, Work, dense_values, merged, symbol_of, turns
from hlo_run.interpret.memory import Memory, Tensor
from hlo_run.interpret.scalars import Array, NotInterpreted, dtype_of, function_of
from hlo_run.records import replace

_WARP = 32
LANES = 1 << 17
"""Threads that are interpreted at a time: whole blocks, at least one."""


class Fault(Exception):
    """A rule that the program breaks, at the operation `op`."""

    def __init__(self, op: Operation, message: str) -> None:
        super().__init__(message)
        self.op, self.message = op, message


class Buffer(Tensor, frozen=True):
    """A memref: an address per lane or one for all, sizes, and strides in elements."""

    strides: tuple[int, ...] = ()

    @staticmethod
    def packed(address: Array, dtype: NumpyType, dims: Sequence[int]) -> Buffer:
        """Return a buffer whose elements are in row-major order without gaps."""
        strides: list[int] = []
        step = 1
        for size in reversed(dims):
            strides.insert(0, step)
            step *= size
        return Buffer(address, dtype, tuple(dims), tuple(strides))


def buffer_dtype(type_: Attribute) -> NumpyType:
    """Return the numpy type of the elements of a memref. Raises NotInterpreted for others."""
    assert is_memref(type_), "a buffer is a memref"
    return dtype_of(str(type_.element_type))


class GpuKernel(KernelInterpreter):
    """Interprets one launch, block by block in groups. `functions` has the functions of the kernel's module by name."""

    work: ClassVar[dict[str, Work]]

    def __init__(
        self,
        functions: Mapping[str, Any],
        launch: LaunchDimensions,
        memory: Memory,
        until: float,
        blocks: range | None = None,
    ) -> None:
        self._memory, self._until, self._launch = memory, until, launch
        self._functions = dict(functions)
        self._globals: dict[str, Array] = {}
        threads = launch.threads_per_block
        self._first = blocks.start if blocks is not None else 0
        self._blocks = len(blocks) if blocks is not None else launch.blocks
        self.lanes = self._blocks * threads
        lane = np.arange(self.lanes)
        self._thread, self._block = lane % threads, lane // threads
        self._ids: dict[str, Array] = {}
        for kind, linear, sizes in (
            ("thread_id", self._thread, launch.block),
            ("block_id", self._block + self._first, launch.grid),
        ):
            for axis, size in zip("xyz", sizes, strict=True):
                self._ids[f"{kind}{axis}"] = (linear % size).astype(np.int64)
                linear = linear // size
        for kind, sizes in (("block_dim", launch.block), ("grid_dim", launch.grid)):
            self._ids |= {f"{kind}{axis}": np.asarray(size, np.int64) for axis, size in zip("xyz", sizes, strict=True)}
        for axis in "xyz":
            place = self._ids[f"block_id{axis}"] * self._ids[f"block_dim{axis}"] + self._ids[f"thread_id{axis}"]
            self._ids[f"global_id{axis}"] = place

    def run_body(self, region: Region, arguments: Values, outer: Mapping[SSAValue, Any]) -> None:
        """Run a kernel's body; `outer` has the values from outside that it uses."""
        blocks = [*region.blocks]
        mask = np.ones(self.lanes, bool)
        env = dict(outer)
        if len(blocks) == 1:
            self._region(blocks[0], arguments, mask, env)
        else:
            env[_JUMPS] = True
            self._graph(blocks, arguments, mask, env)

    def launch_arguments(self) -> list[Array]:
        """Return the 12 ids and sizes that the body of a gpu.launch gets."""
        kinds = ("block_id", "thread_id", "grid_dim", "block_dim")
        return [self._ids[f"{kind}{axis}"] for kind in kinds for axis in "xyz"]

    def attribution(self, type_: Attribute, *, shared: bool) -> Buffer:
        """Return a memref that each block or each thread has for itself."""
        dtype = buffer_dtype(type_)
        assert is_memref(type_), "an attribution is a memref"
        dims = tuple(type_.get_shape())
        room = max(1, int(np.prod(dims))) * dtype.itemsize
        room = -(-room // 16) * 16
        start = self._memory.allocate(room * (self._blocks if shared else self.lanes))
        return Buffer.packed(start + room * (self._block if shared else np.arange(self.lanes)), dtype, dims)

    def _run(self, op: Operation, values: list[Any], mask: Array, env: Environment) -> Values:
        try:
            return super()._run(op, values, mask, env)
        except NotInterpreted as error:
            if time.monotonic() > self._until:
                raise
            raise Fault(op, f"'{op.name}' cannot run here: {error}") from None

    # ---- memrefs

    def _address(self, op: Operation, buffer: Buffer, index: Sequence[Any], mask: Array) -> Array:
        """Return the addresses of elements. Raises Fault for an index that is out of bounds."""
        place: Any = np.zeros((), np.int64)
        for dim, (at, size, stride) in enumerate(zip(index, buffer.dims, buffer.strides, strict=True)):
            wide = np.broadcast_to(np.asarray(at, np.int64), mask.shape)
            bad = mask & ((wide < 0) | (wide >= size))
            if bad.any():
                lane = int(np.flatnonzero(bad)[0])
                where = f"dimension {dim} of a memref of {'x'.join(map(str, buffer.dims))}"
                raise Fault(op, f"index {wide[lane]} is out of bounds in {where}{self._lane_text(lane)}")
            place = place + wide * stride
        return buffer.address + place * buffer.dtype.itemsize

    def _lane_text(self, lane: int) -> str:
        thread, block = (tuple(int(self._ids[f"{kind}{axis}"][lane]) for axis in "xyz") for kind in ("thread_id", "block_id"))
        return f", thread {thread} of block {block}"

    def do_memref_load(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        buffer: Buffer = values[0]
        return [self._memory.load(self._address(op, buffer, values[1:], mask), buffer.dtype, mask)]

    def do_memref_store(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        buffer: Buffer = values[1]
        self._memory.store(self._address(op, buffer, values[2:], mask), np.asarray(values[0], buffer.dtype), mask)
        return []

    def do_memref_atomic(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        value, buffer = np.broadcast_to(values[0], mask.shape), values[1]
        address = np.broadcast_to(self._address(op, buffer, values[2:], mask), mask.shape)
        combine = _ATOMICS.get(op.kind.value.data)
        if combine is None:
            raise NotInterpreted("this kind of atomic")
        before = np.zeros(mask.shape, buffer.dtype)
        for turn in turns(address, mask):
            old = self._memory.load(address, buffer.dtype, turn)
            before[turn] = old[turn]
            self._memory.store(address, np.asarray(combine(old, value)).astype(buffer.dtype), turn)
        return [before]

    def do_alloca(self, step: Step) -> Values:
        op, values = step.op, step.values
        if values:
            raise NotInterpreted("sizes that are not constant")
        return [self.attribution(op.results[0].type, shared=str(op.results[0].type.memory_space) in _SHARED)]

    def do_dim(self, step: Step) -> Values:
        op, values, mask = step.op, step.values, step.mask
        sizes = np.asarray(values[0].dims or (0,), np.int64)
        index = np.broadcast_to(values[1], mask.shape)
        if (bad := mask & ((index < 0) | (index >= len(values[0].dims)))).any():
            raise Fault(op, f"a memref of rank {len(values[0].dims)} has no dimension {index[np.flatnonzero(bad)[0]]}")
        return [sizes[np.clip(np.asarray(values[1]), 0, len(sizes) - 1)]]

    def do_memref_cast(self, step: Step) -> Values:
        op, values = step.op, step.values
        type_ = op.results[0].type
        if is_memref(type_):
            for has, size in zip(values[0].dims, type_.get_shape(), strict=True):
                if size >= 0 and size != has:
                    raise Fault(op, f"a memref of {'x'.join(map(str, values[0].dims))} becomes one of {type_}")
        return [values[0]]

    def do_subview(self, step: Step) -> Values:
        op, values = step.op, step.values
        source: Buffer = values[0]
        rest = iter(values[1:])
        offsets, sizes, steps = (
            [next(rest) if number == -(1 << 63) else number for number in (int(n) for n in attribute.get_values())]
            for attribute in (op.static_offsets, op.static_sizes, op.static_strides)
        )
        address = source.address
        for offset, stride in zip(offsets, source.strides, strict=True):
            address = address + np.asarray(offset, np.int64) * stride * source.dtype.itemsize
        dims = [_one_for_all(size) for size in sizes]
        strides = [_one_for_all(step) * stride for step, stride in zip(steps, source.strides, strict=True)]
        kept = _kept_dims([*dims], [*op.results[0].type.get_shape()])
        return [Buffer(address, source.dtype, tuple(dims[d] for d in kept), tuple(strides[d] for d in kept))]

    def do_reinterpret(self, step: Step) -> Values:
        op, values = step.op, step.values
        source: Buffer = values[0]
        rest = iter(values[1:])
        (offset,), sizes, strides = (
            [next(rest) if number == -(1 << 63) else number for number in (int(n) for n in attribute.get_values())]
            for attribute in (op.static_offsets, op.static_sizes, op.static_strides)
        )
        address = source.address + np.asarray(offset, np.int64) * source.dtype.itemsize
        return [replace(source, address=address, dims=tuple(map(_one_for_all, sizes)), strides=tuple(map(_one_for_all, strides)))]

    # ---- blocks and warps

    def do_barrier(self, step: Step) -> Values:
        op, mask, env = step.op, step.mask, step.env
        if env.get(_JUMPS) is None:
            self._check_whole(op, mask, self._launch.threads_per_block)
        return []

    def _check_whole(self, op: Operation, mask: Array, group: int) -> None:
        """Raise Fault if some threads of a group, and not all, run an operation that they run together."""
        threads = self._launch.threads_per_block
        for first in range(0, threads, group):
            part = mask.reshape(-1, threads)[:, first : first + group]
            split = part.any(axis=1) & ~part.all(axis=1)
            if split.any():
                block = int(np.flatnonzero(split)[0])
                lane = block * threads + first + int(np.flatnonzero(~part[block])[0])
                what = "block" if group >= threads else "warp"
                raise Fault(op, f"'{op.name}' is not reached by all threads of a {what}: not{self._lane_text(lane)[1:]}")

    def do_all_reduce(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        return [self._reduced(op, values[0], mask, env, self._launch.threads_per_block)]

    def do_subgroup_reduce(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        return [self._reduced(op, values[0], mask, env, _WARP)]

    def _reduced(self, op: Any, value: Any, mask: Array, env: Environment, group: int) -> Array:
        """Combine the values of groups of threads, by halves."""
        if env.get(_JUMPS) is None:
            self._check_whole(op, mask, group)
        combine = self._combiner(op, mask, env)
        current = np.broadcast_to(value, mask.shape)
        threads = self._launch.threads_per_block
        place = self._thread % group
        end = np.minimum(group, threads - (self._thread - place))
        distance = 1
        while distance < min(group, threads):
            has = (place % (2 * distance) == 0) & (place + distance < end)
            other = current[np.where(has, np.arange(self.lanes) + distance, np.arange(self.lanes))]
            current = np.where(has, combine(current, other), current)
            distance *= 2
        return current[np.arange(self.lanes) - place]

    def _combiner(self, op: Any, mask: Array, env: Environment) -> Callable[[Array, Array], Array]:
        if "op" in op.properties:
            kind = str(op.properties["op"].data.value)
            return partial(_combine, kind, is_float=str(op.results[0].type)[0] in "fb")
        blocks: list[Block] = [*op.body.blocks]
        if len(blocks) != 1:
            raise NotInterpreted("a reduction of several blocks")
        return lambda one, two: np.broadcast_to(self._region(blocks[0], [one, two], mask, env)[0], mask.shape)

    def do_number(self, step: Step) -> Values:
        op = step.op
        match op.name.removeprefix("gpu."):
            case "lane_id":
                found = self._thread % _WARP
            case "subgroup_id":
                found = self._thread // _WARP
            case "num_subgroups":
                found = np.asarray(-(-self._launch.threads_per_block // _WARP))
            case _:
                found = np.asarray(_WARP)
        return [found.astype(np.int64)]

    # ---- control

    def do_while(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        going, carried = mask, list(values)
        results: list[Any] = [None] * len(op.results)
        while True:
            condition, *passed = self._region(op.before_region.block, carried, going, env)
            results = [merged(going, new, old) for new, old in zip(passed, results, strict=True)]
            going = going & np.broadcast_to(condition, mask.shape).astype(bool)
            if not going.any():
                return results
            new = self._region(op.after_region.block, passed, going, env)
            carried = [merged(going, value, old) for value, old in zip(new, carried, strict=True)]

    def do_switch(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        index = np.broadcast_to(values[0], mask.shape)
        left, results = mask, [None] * len(op.results)
        regions = [*op.regions]
        for number, region in zip([*op.cases.get_values()], regions[1:], strict=True):
            here = left & (index == int(number))
            left = left & ~here
            results = [merged(here, a, b) for a, b in zip(self._region(region.block, (), here, env), results, strict=True)]
        last = self._region(regions[0].block, (), left, env)
        return [merged(left, a, b) for a, b in zip(last, results, strict=True)]

    def do_device_call(self, step: Step) -> Values:
        op, values, mask, env = step.op, step.values, step.mask, step.env
        name = symbol_of(op.callee)
        function = self._functions.get(name)
        if function is None or not function.body.blocks:
            raise NotInterpreted(f"function @{name} has no body")
        blocks = [*function.body.blocks]
        inner: dict[Any, Any] = {_JUMPS: env.get(_JUMPS) or len(blocks) > 1 or None}
        if len(blocks) == 1:
            return self._region(blocks[0], values, mask, inner)
        return self._graph(blocks, values, mask, inner)

    def do_global(self, step: Step) -> Values:
        op = step.op
        name = symbol_of(op.properties["name"])
        given = self._functions.get(name)
        if not isinstance(given, memref.GlobalOp):
            raise NotInterpreted(f"there is no global @{name}")
        type_ = op.results[0].type
        if name not in self._globals:
            data: Any = given.initial_value
            if isinstance(data, DenseIntOrFPElementsAttr):
                values_ = dense_values(data)
                self._globals[name] = np.asarray(self._memory.allocate(values_.nbytes, values_.tobytes()))
            else:
                self._globals[name] = np.asarray(self.attribution(type_, shared=str(type_.memory_space) in _SHARED).address)
        return [Buffer.packed(self._globals[name], buffer_dtype(type_), type_.get_shape())]


# Marks the values of functions with jumps: threads of a block may then come to a barrier in turns.
_JUMPS: Any = "jumps"
_SHARED = ("3 : i64", "#gpu.address_space<workgroup>")


def _combine(kind: str, one: Array, two: Array, *, is_float: bool) -> Array:
    name = {"mul": "mul", "add": "add"}.get(kind)
    if name is not None:
        word = f"arith.{name}{'f' if is_float else 'i'}"
    else:
        word = f"arith.{kind}{'i' if kind in ('and', 'or', 'xor') else ''}"
    function = function_of(word)
    if function is None:
        raise NotInterpreted(f"the reduction '{kind}'")
    return np.asarray(function(one, two)).astype(one.dtype)


def _second(one: Array, two: Array) -> Array:
    del one
    return two


# By the number of the attribute `kind`, in the order of MLIR.
_ATOMICS: dict[int, Callable[[Array, Array], Any]] = {
    number: function
    for number, name in enumerate(
        "addf addi andi assign maximumf maxnumf maxsi maxui minimumf minnumf minsi minui mulf muli ori xori".split()
    )
    if (function := _second if name == "assign" else function_of(f"arith.{name}")) is not None
}


def _one_for_all(value: Any) -> int:
    found = np.unique(np.asarray(value))
    if found.size != 1:
        raise NotInterpreted("a size that differs between threads")
    return int(found[0])


def _kept_dims(dims: list[int], wanted: list[int]) -> list[int]:
    """Return the dimensions that a rank-reducing subview keeps: all but sizes of 1."""
    kept: list[int] = []
    for dim, size in enumerate(dims):
        rest = wanted[len(kept) :]
        if rest and (rest[0] == size or rest[0] < 0) and not (size == 1 and len(dims) - dim > len(rest) and rest[0] != 1):
            kept.append(dim)
    if len(kept) != len(wanted):
        raise NotInterpreted("a subview of another rank")
    return kept


GpuKernel.work = {
    **KernelInterpreter.work,
    **dict.fromkeys(("gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim", "gpu.global_id"), KernelInterpreter.do_id),
    **dict.fromkeys(("gpu.lane_id", "gpu.subgroup_id", "gpu.num_subgroups", "gpu.subgroup_size"), GpuKernel.do_number),
    **dict.fromkeys(("memref.cast", "memref.memory_space_cast"), GpuKernel.do_memref_cast),
    "memref.load": GpuKernel.do_memref_load,
    "memref.store": GpuKernel.do_memref_store,
    "memref.atomic_rmw": GpuKernel.do_memref_atomic,
    "memref.alloca": GpuKernel.do_alloca,
    "memref.dim": GpuKernel.do_dim,
    "memref.subview": GpuKernel.do_subview,
    "memref.reinterpret_cast": GpuKernel.do_reinterpret,
    "memref.get_global": GpuKernel.do_global,
    "gpu.barrier": GpuKernel.do_barrier,
    "gpu.all_reduce": GpuKernel.do_all_reduce,
    "gpu.subgroup_reduce": GpuKernel.do_subgroup_reduce,
    "scf.while": GpuKernel.do_while,
    "scf.index_switch": GpuKernel.do_switch,
    "func.call": GpuKernel.do_device_call,
}
