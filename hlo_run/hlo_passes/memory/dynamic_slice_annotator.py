"""Annotate contiguous slices at dynamic indices with their byte offset, if the counter of a loop determines it.

    s = f32[1,48] dynamic-slice(x, i, zero), ..
        =>   .., backend_config={..,"dynamic_slice_config":{"loop_index":"0",..,"linear":{"byte_offset":"0","byte_stride":"192"}}}

The offset in iteration n is `byte_offset + n · byte_stride`. The pass computes it for every iteration, and annotates only if it
grows by the same step each time. It begins with few iterations, as most offsets that are not regular show it there. The index may
also be an element of the state that holds the counter of the iteration before, or a parameter of a computation that is called
once. With constant indices the offset is constant, and there is no `loop_index`.
XLA's `DynamicSliceAnnotator`, but for slices whose elements are not at the offset that it writes: XLA then copies others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.errors import HloRunError
from hlo_run.hlo.edit import InstructionMaker, has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_between, needed_for
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import DEVICE_ID
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.library_calls import NO_RECORD, to_json
from hlo_run.pass_support.hlo_pass import PassContext

_SLICES: tuple[Opcode, ...] = ("dynamic-slice", "dynamic-update-slice")
# Their values depend on more than the counter.
_UNKNOWN = DEVICE_ID | opcode_set("custom-call parameter")
# So many iterations the pass computes first, and then each time so many times as many.
_FIRST, _GROWTH = 8, 16


class DynamicSliceAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic-slice-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        search = _Search()
        for instruction in module.instructions_of(*_SLICES):
            found = _offsets(instruction, search)
            if found is not None:
                config = config_of(instruction.backend_config) or dict(NO_RECORD)
                instruction.attrs["backend_config"] = to_json({**config, "dynamic_slice_config": found})
                instruction.touch()


class _Counter(Struct, frozen=True):
    """Element `index` of a loop's state: `init`, `init + step`, .., in `trip_count` iterations."""

    index: int
    init: int
    step: int
    trip_count: int


class _Loop(Struct, frozen=True):
    """A loop that runs `trip_count` times, and the element of its state that has the value `init + n · step` in iteration n."""

    variable: HloInstruction
    init: int
    step: int
    trip_count: int


class _Search:
    """The values of indices in the first iterations, by instruction and number of iterations. Slices often share an index."""

    def __init__(self) -> None:
        self._counters: dict[HloComputation, _Counter | None] = {}
        self._loops: dict[HloInstruction, _Loop | None] = {}
        self._values: dict[tuple[HloInstruction, int], object] = {}

    def values(self, index: HloInstruction, limit: int) -> tuple[_Loop, Any] | None:
        """Return the loop that determines a scalar integer, and its int64 values in at most `limit` iterations; else None."""
        index = _at_call(index)
        if index not in self._loops:
            self._loops[index] = self._loop(index)
        loop = self._loops[index]
        if loop is None:
            return None
        count = min(limit, loop.trip_count)
        if (index, count) not in self._values:
            self._values[index, count] = _evaluate(index, loop, count)
        values = self._values[index, count]
        return None if values is None else (loop, values)

    def _loop(self, index: HloInstruction) -> _Loop | None:
        body = index.parent
        loop = body.callers[0] if body is not None and len(body.callers) == 1 else None
        if body is None or loop is None or loop.opcode != "while" or loop.while_body is not body:
            return None
        if body not in self._counters:
            self._counters[body] = _counter(loop)
        counter = self._counters[body]
        if counter is None or counter.trip_count < 1:
            return None
        parameter = body.parameters[0]
        state = {i for i in parameter.users if i.opcode == "get-tuple-element"}
        needed = needed_for(index, state | {parameter})
        used = [i for i in state if i is index or any(i in other.operands for other in needed)]
        if len(used) != 1 or any(i.opcode in _UNKNOWN or has_side_effect(i) or parameter in i.operands for i in needed):
            return self._delayed(index, loop, counter)
        if used[0].tuple_index != counter.index:
            return self._delayed(index, loop, counter)
        return _Loop(used[0], counter.init, counter.step, counter.trip_count)

    def _delayed(self, index: HloInstruction, loop: HloInstruction, counter: _Counter) -> _Loop | None:
        """Return the loop for an index that is an element which takes the counter's value at the end of each iteration."""
        element, start, parameter = _behind_copies(index), loop.operands[0], loop.while_body.parameters[0]
        root = loop.while_body.root
        if element.opcode != "get-tuple-element" or element.operands[0] is not parameter or root.opcode != "tuple":
            return None
        new = _behind_copies(root.operands[element.tuple_index])
        is_counter = new.opcode == "get-tuple-element" and new.operands[0] is parameter and new.tuple_index == counter.index
        if not is_counter or start.opcode != "tuple":
            return None
        init = _behind_copies(start.operands[element.tuple_index])
        if init.opcode != "constant":
            return None
        first = int(init.constant_array)
        # XLA counts on from the first value, also where the second one is another number than that.
        if counter.trip_count > 1 and first + counter.step != counter.init:
            return None
        return _Loop(element, first, counter.step, counter.trip_count)


def _counter(loop: HloInstruction) -> _Counter | None:
    """Return the counter that `while-loop-trip-count-annotator` wrote into the loop's config."""
    try:
        config = config_of(loop.backend_config)
        count, steps, place = (config[name] for name in ("known_trip_count", "known_init_step", "known_induction_variable"))
        return _Counter(int(place.get("tuple_index", 0)), int(steps.get("init", 0)), int(steps.get("step", 0)), int(count["n"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _at_call(index: HloInstruction) -> HloInstruction:
    """Return the value that an only caller, a call or an async-start, hands over as a parameter; any other value itself."""
    while index.opcode == "parameter" and index.parent is not None and len(index.parent.callers) == 1:
        caller = index.parent.callers[0]
        if caller.opcode not in ("call", "async-start"):
            break
        index = caller.operands[index.parameter_number]
    return index


def _behind_copies(value: HloInstruction) -> HloInstruction:
    while value.opcode == "copy":
        value = value.operands[0]
    return value


def _evaluate(index: HloInstruction, loop: _Loop, count: int) -> object:
    """Return the values of an index in the first iterations; None if it cannot be evaluated."""
    dtype = loop.variable.shape.dtype.numpy
    counted = (loop.init + np.arange(count, dtype=np.int64) * loop.step).astype(dtype)
    if index is loop.variable:
        return counted.astype(np.int64)
    from hlo_run.reference.evaluate.evaluate import folded  # most indices are the counter itself

    try:
        return np.asarray(folded(_iterations(index, loop, count), [counted])).astype(np.int64)
    except HloRunError:
        return None


def _iterations(index: HloInstruction, loop: _Loop, count: int) -> HloModule:
    """Return a module that maps `count` values of the counter to values of an index."""
    module = isolate_between(index, [loop.variable], "offsets")
    one, entry = module.entry, HloComputation("all")
    counter = InstructionMaker(entry).parameter(0, Shape.array(loop.variable.shape.element_type, (count,)), "counter")
    shape = Shape.array(index.shape.element_type, (count,))
    entry.root = InstructionMaker(entry).add("map", shape, [counter], {"to_apply": (one,)}, dimensions=(0,))
    module.add_computation(entry, is_entry=True)
    return module


def _offsets(instruction: HloInstruction, search: _Search) -> dict[str, object] | None:
    """Return the record of a slice; None if its offset is not known."""
    limit = _FIRST
    while (found := _first_offsets(instruction, search, limit)) is not None:
        loop, record = found
        if loop is None or loop.trip_count <= limit:
            return record
        limit *= _GROWTH
    return None


def _first_offsets(instruction: HloInstruction, search: _Search, limit: int) -> tuple[_Loop | None, dict[str, object]] | None:
    """Return a slice's loop, if it has one, and the record that at most `limit` iterations give; None if they give none."""
    whole = instruction.operands[0].shape
    part = instruction.shape if instruction.opcode == "dynamic-slice" else instruction.operands[1].shape
    strides = _strides_bytes(whole)
    indices = instruction.operands[1 if instruction.opcode == "dynamic-slice" else 2 :]
    if len(indices) != whole.rank or any(whole.dynamic_dims) or not _is_contiguous(whole, part):
        return None
    fixed, moving, loop = 0, None, None
    clamped: Any = 0
    for index, stride, size, taken in zip(indices, strides, whole.dims, part.dims, strict=True):
        if size == taken:
            continue
        if stride is None:
            return None
        if index.opcode == "constant":
            number = int(index.constant_array)
            fixed += number * stride
            clamped = clamped + min(max(number, 0), size - taken) * stride
            continue
        found = search.values(index, limit)
        if found is None or (loop is not None and found[0] != loop):
            return None
        loop = found[0]
        moving = found[1] * stride + (0 if moving is None else moving)
        clamped = clamped + np.clip(found[1], 0, size - taken) * stride
    # A copy moves only the sum of the offsets inside; a dynamic-slice moves each index.
    if np.any(np.clip(fixed + (0 if moving is None else moving), 0, whole.size_bytes - part.size_bytes) != clamped):
        return None
    if moving is None:
        return loop, _record({}, fixed, 0)
    steps = np.diff(moving)
    if np.any(steps != steps[:1]):
        return None
    stride_bytes = int(steps[0]) if steps.size else 0
    return loop, _record({"loop_index": "0"}, int(moving[0]) + fixed, stride_bytes)


def _record(loop: dict[str, str], offset: int, stride: int) -> dict[str, object]:
    linear = {"byte_offset": str(offset), "byte_stride": str(stride)}
    return {**loop, "byte_offset": "0", "byte_stride": "0", "linear": linear}


def _strides_bytes(shape: Shape) -> Sequence[int | None]:
    """Return the distance between neighbours along each dimension; None if it is not a whole number of bytes."""
    strides: list[int | None] = [None] * shape.rank
    bits = 8 if shape.element_type == "pred" else shape.dtype.bits
    for dim in shape.minor_to_major:
        strides[dim] = bits // 8 if bits % 8 == 0 else None
        bits *= shape.dims[dim]
    return strides


def _is_contiguous(whole: Shape, part: Shape) -> bool:
    """True if all dimensions above the innermost sliced one have size 1."""
    is_sliced = False
    for dim in whole.minor_to_major:
        if is_sliced and part.dims[dim] != 1:
            return False
        is_sliced |= part.dims[dim] < whole.dims[dim]
    return True
