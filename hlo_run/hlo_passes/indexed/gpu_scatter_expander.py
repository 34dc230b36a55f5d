"""Expand scatters that no kernel can compute to a loop with one update per iteration.

    s = (f32[8], s32[8]) scatter(p, q, i, u, v), to_apply=both
        =>   while (n < rows): slices of p and q at row n of i; both(slices, row n of u and v); write them back if in bounds

Atomics cannot update several results together, and none exist for elements of more than 64 bits. A scatter of several results
with unique indices needs no atomics and stays. With `--xla_gpu_deterministic_ops` or
`--xla_gpu_enable_scatter_determinism_expander` all scatters whose result depends on the order of the updates become loops, if
`scatter_determinism_expander` left them. XLA's `GpuScatterExpander`, and `ScatterExpander` for determinism.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.indexed.gather_scatter import depends_on_order
from hlo_run.hlo_passes.indexed.scatter_loop import scatter_loop
from hlo_run.pass_support.hlo_pass import PassContext

_WIDEST_ATOMIC_BITS = 64


class GpuScatterExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gpu_scatter_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        ordered = ctx.options.orders_scatters
        replaced = [
            s for s in module.in_post_order("scatter") if _may_loop(s) and (_needs_loop(s) or (ordered and depends_on_order(s)))
        ]
        replace_each(module, replaced, lambda scatter: scatter_loop(module, scatter))


def _may_loop(scatter: HloInstruction) -> bool:
    return not scatter.input_batching_dims and not scatter.control_predecessors


def _needs_loop(scatter: HloInstruction) -> bool:
    inputs = scatter.operands[: len(scatter.operands) // 2]
    if any(value.shape.dtype.bits > _WIDEST_ATOMIC_BITS for value in inputs):
        return True
    return len(inputs) > 1 and not scatter.unique_indices
