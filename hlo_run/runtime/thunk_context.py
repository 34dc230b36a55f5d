"""The state of the functions that make thunks: buffers, kernels, nested sequences; and helpers that read backend_config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from msgspec import Struct

from hlo_run.artifact import ArraySpec, ArrayTree, BufferSlice, Thunk
from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.backend_config import read_config
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.runtime.buffers import BufferAssignment
from hlo_run.runtime.kernel_requests import KernelRequests
from hlo_run.target import TargetSpec


class ThunkContext(Struct, frozen=True):
    """The state of the functions that make thunks. `sequence` makes the thunks of another computation, such as a loop body.

    `streams` has the number of the stream of every start of asynchronous work. `placed` has the memory of values in the body of a
    fusion that runs as a library call.
    """

    buffers: BufferAssignment
    kernels: KernelRequests
    sequence: Callable[[HloComputation], tuple[Thunk, ...]]
    target: TargetSpec
    streams: Mapping[HloInstruction, int]
    placed: Mapping[tuple[HloInstruction, ShapeIndex], BufferSlice] = {}

    def array(self, instruction: HloInstruction, index: tuple[int, ...] = ()) -> ArraySpec:
        """Return the array at the shape index `index` of a value, which must be an array."""
        tree = self.tree(instruction, index)
        assert isinstance(tree, ArraySpec), f"{instruction.name} at {index} is not an array"
        return tree

    def tree(self, instruction: HloInstruction, index: tuple[int, ...] = ()) -> ArrayTree:
        """Return the arrays of the value, or of its part at `index`. Tokens are empty tuples."""
        shape = instruction.shape
        for number in index:
            shape = shape.tuple_shapes[number]
        if shape.is_tuple:
            return tuple(self.tree(instruction, (*index, number)) for number in range(len(shape.tuple_shapes)))
        if not shape.is_array:
            return ()
        place = self.placed.get((instruction, index))
        place = self.buffers.slice(instruction, index) if place is None else place
        return ArraySpec(shape.element_type, shape.dims, shape.minor_to_major, place, shape.dynamic_dims)


EmitThunk: TypeAlias = Callable[[ThunkContext, HloInstruction], "list[Thunk]"]


def backend_config(instruction: HloInstruction) -> Mapping[str, object]:
    """Return the instruction's backend_config as JSON; empty if it has none. Raises ParseError for invalid JSON."""
    try:
        return read_config(instruction.backend_config)
    except ValueError as error:
        raise ParseError(f"the backend_config of %{instruction.name} is not valid JSON: {error}", instruction.where) from None


def record(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return the JSON object in a field of a JSON object; empty if the field has none."""
    value = config.get(name)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def text(config: Mapping[str, object], name: str, default: str) -> str:
    """Return the string in a field of a JSON object, or `default`."""
    value = config.get(name, default)
    return value if isinstance(value, str) else default


def number(config: Mapping[str, object], name: str, default: float) -> float:
    """Return the number in a field of a JSON object, or `default`. A string that spells a number counts as one."""
    value = config.get(name, default)
    try:
        return float(value) if isinstance(value, int | float | str) else default
    except ValueError:
        return default


def integers(config: Mapping[str, object], name: str) -> tuple[int, ...]:
    """Return the integers in a field of a JSON object; () if the field has none. A string that spells one counts as one."""
    value = config.get(name)
    parts = cast("list[object]", value) if isinstance(value, list) else []
    return tuple([int(part) for part in parts if isinstance(part, int | str)])
