"""Sort elements of less than a byte as bytes, since two threads cannot exchange elements that share a byte.

    sort(x), to_apply=less           with x of s4
        =>  convert(sort(convert(x)), to_apply=less.wide)
            less.wide(a, b) = less(convert(a), convert(b))

XLA has no such pass; its kernels write whole bytes.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.copying import copy_into
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext

_BYTE_BITS = 8


class SubByteSortExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sub-byte-sort-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("sort",), _as_bytes, lambda sort: any(_is_narrow(operand.shape) for operand in sort.operands))


def _is_narrow(shape: Shape) -> bool:
    return shape.dtype.bits < _BYTE_BITS


def _wide_type(shape: Shape) -> str:
    """Return a type of at least a byte that holds every value of the element type."""
    if not _is_narrow(shape):
        return shape.element_type
    if shape.dtype.is_float:
        return "f8e4m3fn"
    return "s8" if shape.dtype.is_signed else "u8"


def _as_bytes(b: HloBuilder, old: HloInstruction, *values: HloValue) -> HloValue:
    narrow = [operand.shape for operand in old.operands]
    wide = [
        b.convert(value, _wide_type(shape)) if _is_narrow(shape) else value for value, shape in zip(values, narrow, strict=True)
    ]
    (dimension,) = old.dimensions
    result = b.sort(wide, dimension, _wide_comparator(old.to_apply, narrow))
    parts = [result[number] for number in range(len(narrow))] if len(narrow) > 1 else [result]
    back = [_narrowed(b, part, shape) if _is_narrow(shape) else part for part, shape in zip(parts, narrow, strict=True)]
    return b.tuple(back) if old.shape.is_tuple else back[0]


def _narrowed(b: HloBuilder, value: HloValue, shape: Shape) -> HloValue:
    made = b.convert(value, shape.element_type)
    made.instruction.shape = shape  # with the size of its elements
    return made


def _wide_comparator(old: HloComputation, shapes: list[Shape]) -> HloComputation:
    b = HloBuilder(f"{old.name}.wide")
    asked: list[HloValue] = []
    for number in range(2 * len(shapes)):
        shape = shapes[number // 2]
        value = b.leaf("parameter", Shape.array(_wide_type(shape), ()), {"parameter_number": number})
        asked.append(b.convert(value, shape.element_type) if _is_narrow(shape) else value)
    return b.build_computation(copy_into(b, old, asked))
