"""Expand topk to a sort of all elements and slices of the first k.

    topk(x), k=5, largest=true   =>   sorted = sort(x, iota), is_stable=true, to_apply=(a > b in the total order)
                                      tuple(slice(sorted 0), slice(sorted 1))

Where only the values are read, they are sorted alone. A custom call `TopK` has its own comparator, of elements only or of
elements and positions. The largest of fewer than 2^16 numbers in bf16 are found in one array: the upper half of an s32 is the
number, in an order that integers have, the lower half the complement of the position. XLA's `topk_decomposer.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.comparators import with_positions
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.hlo_passes.subgraphs.library_calls import is_topk_call
from hlo_run.pass_support.hlo_pass import PassContext

_HALF = 16
_LOWER = (1 << _HALF) - 1


class TopkDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring. `TopK` calls stay unless `takes_calls`."""

    name: ClassVar[str] = "topk-decomposer"
    takes_calls: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("topk",), _packed, _can_be_packed)
        _sort_values_alone(module, module.in_post_order("topk"))
        if self.takes_calls:
            _sort_values_alone(module, [call for call in module.in_post_order("custom-call") if is_topk_call(call)])
        expand(module, ("topk",), _sorted_slices, described=True)
        if self.takes_calls:
            expand(module, ("custom-call",), _sorted_slices, is_topk_call, described=True)


def _can_be_packed(topk: HloInstruction) -> bool:
    """True if number and position fit into an s32 whose order is that of the numbers."""
    shape = topk.operands[0].shape
    return topk.largest and shape.element_type == "bf16" and shape.dims[-1] < 1 << _HALF


def _packed(b: HloBuilder, old: HloInstruction, x: HloValue) -> HloValue:
    last = x.shape.rank - 1
    positions = Shape.array("s32", x.shape.dims, x.shape.minor_to_major)
    key = _flipped(b, b.bitcast_convert(b.convert(x, "f32"), "s32"))
    packed = (key | _LOWER) ^ b.iota(positions, last)
    ordered = b.sort([packed], last, _comparator(("s32",), largest=True))
    values, numbers = old.shape.tuple_shapes
    first = b.instruction("slice", [ordered], numbers, slice=[(0, size) for size in values.dims])
    found = b.convert(b.bitcast_convert(_flipped(b, first) & ~_LOWER, "f32"), "bf16")
    return b.tuple([found, (first ^ _LOWER) & _LOWER])


def _flipped(b: HloBuilder, bits: HloValue) -> HloValue:
    """Turn the bits of floats into integers of the same order, or back: negative numbers have all other bits inverted."""
    return (bits & 0x7FFFFFFF) ^ b.shift_right_arithmetic(bits, 31)


def _sort_values_alone(module: HloModule, choices: Sequence[HloInstruction]) -> None:
    """Sort without positions where only the values are read, by one get-tuple-element, and no comparator reads positions."""
    for topk in choices:
        if len(topk.users) != 1 or topk.is_root or topk.users[0].opcode != "get-tuple-element" or topk.users[0].tuple_index:
            continue
        values, (x,), given = topk.users[0], topk.operands, topk.called_computations
        if given and len(given[0].parameters) != 2:
            continue
        comparator = given[0] if given else module.add_computation(_comparator((x.shape.element_type,), topk.largest))
        editor, order = Editor(topk), x.shape.rank - 1
        ordered = editor.add("sort", x.shape, [x], {"to_apply": [comparator]}, dimensions=(order,), is_stable=True)
        ranges = tuple((0, size, 1) for size in values.shape.dims)
        module.replace(values, editor.add("slice", values.shape, [ordered], slice=ranges))
        remove_unused([values])


def _sorted_slices(b: HloBuilder, old: HloInstruction, x: HloValue) -> HloValue:
    last = x.shape.rank - 1
    indices = b.iota(Shape.array("s32", x.shape.dims, x.shape.minor_to_major), last)
    given = old.called_computations
    comparator = with_positions(given[0]) if given else _comparator((x.shape.element_type, "s32"), old.largest)
    # Equal keys are ordered by index, as `is_stable=false` allows. It stays in a sort of which `topk-rewriter` makes a call.
    may_mix = old.opcode == "topk" and x.shape.element_type in ("f32", "bf16") and old.attrs.get("is_stable") is False
    ordered = b.sort([x, indices], last, comparator, is_stable=not may_mix)
    ranges = [(0, size) for size in old.shape.tuple_shapes[0].dims]
    shapes = zip(range(2), old.shape.tuple_shapes, strict=True)
    return b.tuple([b.instruction("slice", [ordered[number]], shape, slice=ranges) for number, shape in shapes])


def _comparator(element_types: Sequence[str], largest: bool) -> HloComputation:
    """Return a comparator of the first of several values."""
    # XLA makes the comparator in a module of its own, which numbers all names by 1.
    b = HloBuilder("compare-greater-than.1" if largest else "compare-less-than.1")
    sides = [
        b.leaf("parameter", Shape.array(kind, ()), {"parameter_number": n}).annotate(name=f"p.{n // 2}.{'lr'[n % 2]}hs.1")
        for n, kind in enumerate(kind for kind in element_types for _ in range(2))
    ]
    order = "TOTAL" if sides[0].shape.dtype.is_float else None
    return b.build_computation(b.compare(sides[0], sides[1], "GT" if largest else "LT", order=order).annotate(name="compare.1"))
