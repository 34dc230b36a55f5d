"""Rewrite a scaled dot to a dot of the operands multiplied by their scales.

    scaled-dot(x[m,k], y[k,n], sx[m,k/32], sy[k/32,n])   =>   dot(x * repeat(sx, 32), y * repeat(sy, 32))

Computes in f32 (f64 for f64), in which products of narrow types are exact. XLA's `scaled_dot_rewriter.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class ScaledDotRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scaled-dot-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("scaled-dot",), _scaled)


def _scaled(
    b: HloBuilder, old: HloInstruction, lhs: HloValue, rhs: HloValue, lhs_scale: HloValue, rhs_scale: HloValue
) -> HloValue:
    types = {old.shape.element_type, *(operand.shape.element_type for operand in old.operands)}
    computing = "f64" if "f64" in types else "f32"
    result = b.dot(
        _multiplied(b, lhs, lhs_scale, computing),
        _multiplied(b, rhs, rhs_scale, computing),
        lhs_batch_dims=old.lhs_batch_dims,
        rhs_batch_dims=old.rhs_batch_dims,
        lhs_contracting_dims=old.lhs_contracting_dims,
        rhs_contracting_dims=old.rhs_contracting_dims,
        element_type=computing,
    )
    return result if computing == old.shape.element_type else b.convert(result, old.shape.element_type)


def _multiplied(b: HloBuilder, operand: HloValue, scale: HloValue, computing: str) -> HloValue:
    value = operand if operand.shape.element_type == computing else b.convert(operand, computing)
    if not scale.shape.rank:
        return value  # a scalar means that the operand has no scale
    factor = scale if scale.shape.element_type == computing else b.convert(scale, computing)
    dims, scale_dims = value.shape.dims, scale.shape.dims
    # Each scale is repeated over its block: broadcast to a new dimension after its own, then merge both.
    spread = [part for size, count in zip(dims, scale_dims, strict=True) for part in (count, size // max(count, 1))]
    repeated = b.broadcast(factor, spread, range(0, 2 * len(dims), 2))
    return value * b.reshape(repeated, dims)
