"""Rewrite a scaled dot to a dot of the operands multiplied by their scales.

    scaled-dot(x[m,k], y[k,n], sx[m,k/32], sy[k/32,n])   =>   dot(x * repeat(sx, 32), y * repeat(sy, 32))

Two narrow types are multiplied in bf16, which is exact but for products out of its range; others in the wider of both. A dot of
such operands has the result's type if that is as wide, and is converted else. XLA's `scaled_dot_rewriter.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class ScaledDotRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scaled-dot-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("scaled-dot",), _scaled, inherits=False)


def _scaled(
    b: HloBuilder, old: HloInstruction, lhs: HloValue, rhs: HloValue, lhs_scale: HloValue, rhs_scale: HloValue
) -> HloValue:
    factors = _multiplied(b, lhs, lhs_scale), _multiplied(b, rhs, rhs_scale)
    lhs, rhs = _as_one_type(b, *factors)
    result = b.dot(
        lhs,
        rhs,
        lhs_batch_dims=old.lhs_batch_dims,
        rhs_batch_dims=old.rhs_batch_dims,
        lhs_contracting_dims=old.lhs_contracting_dims,
        rhs_contracting_dims=old.rhs_contracting_dims,
        element_type=_common_type(lhs.shape.dtype, old.shape.dtype),
    )
    return _converted(b, result, old.shape.element_type)


def _common_type(one: DType, other: DType) -> str:
    """Return the type in which values of two types are multiplied."""
    if max(one.bits, other.bits) < 16:
        return "bf16"
    if one is not other and one.bits == other.bits:
        return "f32"
    return (one if one.bits > other.bits else other).name


def _converted(b: HloBuilder, value: HloValue, element_type: str) -> HloValue:
    return value if value.shape.element_type == element_type else b.convert(value, element_type)


def _as_one_type(b: HloBuilder, one: HloValue, other: HloValue) -> tuple[HloValue, HloValue]:
    common = _common_type(one.shape.dtype, other.shape.dtype)
    return _converted(b, one, common), _converted(b, other, common)


def _multiplied(b: HloBuilder, operand: HloValue, scale: HloValue) -> HloValue:
    if not scale.shape.rank:
        return operand  # a scalar means that the operand has no scale
    value, factor = _as_one_type(b, operand, scale)
    # Each scale is repeated over its block: broadcast to a new dimension after its own, then merge both.
    sizes: list[int] = []
    places: list[int] = []
    for size, count in zip(value.shape.dims, scale.shape.dims, strict=True):
        places.append(len(sizes))
        sizes += [count] if size == count else [count, size // max(count, 1)]
    repeated = b.broadcast(factor, sizes, places)
    return value * b.reshape(repeated, value.shape.dims)
