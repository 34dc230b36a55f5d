"""Expand a scan to a while loop over its dimension.

    scan(x, carry), dimensions={0}, num_carries=1, to_apply=f
        =>   while (i < n): element = x[i];  (out, carry) = f(element, carry);  outs[i] = out

A scan over zero elements returns its initial carries. XLA's `scan_expander.cc`, which calls the scan's body; here its
instructions are copied into the loop's body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.copying import copy_into
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class ScanExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scan_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        # The body of a scan may contain a scan, of which the loop has a copy.
        while module.instructions_of("scan"):
            expand(module, ("scan",), _loop)


def _loop(b: HloBuilder, old: HloInstruction, *operands: HloValue) -> HloValue:
    scan = _Scan(old)
    carries, inputs = operands[len(operands) - scan.carry_count :], operands[: len(operands) - scan.carry_count]
    outputs = [b.broadcast(b.constant(0, shape.element_type), shape.dims) for shape in scan.output_shapes]
    size = inputs[0].shape.dims[scan.dimension] if inputs else scan.output_shapes[0].dims[scan.dimension]
    if not size:
        # The body of a loop would read an element although there is none.
        results = [*outputs, *carries]
        return b.tuple(results) if old.shape.is_tuple else results[0]
    state = b.tuple([b.constant(0, "s64"), *carries, *inputs, *outputs])

    def condition(value: HloValue) -> HloValue:
        return value[0] < size

    result = b.while_(state, condition, lambda value: scan.step(value, size))
    first_output = 1 + len(carries) + len(inputs)
    stacked = [result[first_output + number] for number in range(len(outputs))]
    results = [*stacked, *(result[1 + number] for number in range(len(carries)))]
    return b.tuple(results) if old.shape.is_tuple else results[0]


class _Scan:
    """The attributes of a scan, and its loop step."""

    def __init__(self, old: HloInstruction) -> None:
        self.body = old.to_apply
        self.carry_count: int = old.num_carries
        self.dimension: int = old.dimensions[0]
        self._is_reverse = old.is_reverse
        shapes = old.shape.tuple_shapes if old.shape.is_tuple else (old.shape,)
        self.output_shapes: Sequence[Shape] = shapes[: len(shapes) - self.carry_count]

    def step(self, state: HloValue, size: int) -> HloValue:
        """Return the loop state after one more element."""
        b = state.builder
        assert isinstance(b, HloBuilder), "the loop is built by an HloBuilder"
        values = [state[number] for number in range(len(state))]
        counter, carries, rest = values[0], values[1 : 1 + self.carry_count], values[1 + self.carry_count :]
        inputs, outputs = rest[: len(rest) - len(self.output_shapes)], rest[len(rest) - len(self.output_shapes) :]
        place = (size - 1) - counter if self._is_reverse else counter
        result = copy_into(b, self.body, [*(self._element(b, value, place) for value in inputs), *carries])
        parts = [result[number] for number in range(len(result))] if result.shape.is_tuple else [result]
        written = [
            b.dynamic_update_slice(output, b.reshape(part, self._thin(output)), self._starts(b, output, place))
            for part, output in zip(parts, outputs, strict=False)
        ]
        return b.tuple([counter + 1, *parts[len(outputs) :], *inputs, *written])

    def _thin(self, array: HloValue) -> tuple[int, ...]:
        return tuple(1 if dim == self.dimension else size for dim, size in enumerate(array.shape.dims))

    def _starts(self, b: HloBuilder, array: HloValue, place: HloValue) -> list[HloValue]:
        return [place if dim == self.dimension else b.constant(0, "s64") for dim in range(array.shape.rank)]

    def _element(self, b: HloBuilder, array: HloValue, place: HloValue) -> HloValue:
        """Return the element at `place` along the scanned dimension, without that dimension."""
        thin = self._thin(array)
        one = b.dynamic_slice(array, self._starts(b, array, place), thin)
        return b.reshape(one, [size for dim, size in enumerate(thin) if dim != self.dimension])
