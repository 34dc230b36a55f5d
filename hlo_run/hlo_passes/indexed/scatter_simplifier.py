"""Simplify scatters to the form in which one row of indices is for one update, with all dimensions of the operand.

    scatter(f32[8,16] p, s32[5] i, f32[5,16] u), update_window_dims={1}, inserted_window_dims={0}
        =>   scatter(p, reshape s32[5,1] (i), reshape f32[5,1,16] (u)), update_window_dims={1,2}, index_vector_dim=1

A scatter of one scalar into a scalar becomes its computation of both. Scatters with batching dimensions stay;
`batched_gather_scatter_normalizer` removes those before. With `sees_layouts` (layouts are assigned), scatters whose operands
are not all in the default layout stay. XLA's `ScatterSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import InstructionMaker, remove_unused, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo_passes.indexed.gather_scatter import simple_scatter
from hlo_run.hlo_passes.subgraphs.inlining import inline_call
from hlo_run.pass_support.hlo_pass import PassContext


class ScatterSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    sees_layouts: bool = False
    name: ClassVar[str] = "scatter_simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        scalars = [s for s in module.in_post_order("scatter") if s.operands[0].shape.rank == s.operands[-1].shape.rank == 0]
        for scatter in scalars:
            _combine(module, scatter)
        remove_unused(scalars)
        scatters = [s for s in module.in_post_order("scatter") if not s.input_batching_dims]
        replaced = [s for s in scatters if not Indexed.of(s).is_simple and not (self.sees_layouts and _has_layouts(s))]
        replace_each(module, replaced, simple_scatter)


def _combine(module: HloModule, scatter: HloInstruction) -> None:
    """Replace a scatter of one scalar into a scalar by what its computation returns for both."""
    count, computation = len(scatter.operands) // 2, scatter.parent
    assert computation is not None, "the instruction is in a computation"
    operands = [*scatter.operands[:count], *scatter.operands[count + 1 :]]
    call = InstructionMaker(where=scatter.where).add("call", scatter.shape, operands, {"to_apply": (scatter.to_apply,)})
    module.replace(scatter, computation.add(call))
    inline_call(module, call)
    remove_unused([call])


def _has_layouts(scatter: HloInstruction) -> bool:
    return not all(operand.shape.has_default_layout for operand in scatter.operands)
