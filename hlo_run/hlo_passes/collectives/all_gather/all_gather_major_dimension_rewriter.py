"""Gather along the major dimension between two transposing copies, so that one of the copies goes.

    c = f32[4,8]{0,1} copy(f32[4,8]{1,0} x)
    g = f32[4,32]{0,1} all-gather(c), dimensions={1}
    o = f32[4,32]{1,0} copy(g)          =>   f32[16,8]{1,0} all-gather(x), dimensions={0}, then one copy between two bitcasts

XLA's `AllGatherMajorDimensionRewriter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Layout
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class AllGatherMajorDimensionRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-gather-major-dimension-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for gather in module.in_post_order("all-gather"):
            if len(gather.operands) != 1 or len(gather.users) != 1:
                continue
            (before,), (after,) = gather.operands, gather.users
            if before.opcode == after.opcode == "copy" and len(before.users) == 1:
                _gather_before_copy(module, gather, before.operands[0], after)


def _gather_before_copy(module: HloModule, gather: HloInstruction, value: HloInstruction, after: HloInstruction) -> None:
    (dim,) = gather.dimensions
    count = gather.shape.dims[dim] // gather.operands[0].shape.dims[dim]
    major = value.shape.minor_to_major[-1]
    dims = value.shape.dims
    editor = Editor(gather, keeps_frontend_attributes=False)
    shape = replace(value.shape, dims=tuple(count * size if d == major else size for d, size in enumerate(dims)))
    made = copy_instruction(gather, [value], shape)
    made.attrs["dimensions"] = (major,)
    editor.computation.add(made)
    # A dimension of its own for the devices, at the place of the major one.
    split = replace(value.shape, dims=(*dims[:major], count, *dims[major:]))
    extra = value.shape.layout.extra if value.shape.layout else ""
    by_device = replace(split, layout=Layout(_with_dim(value.shape.minor_to_major, major, major), extra))
    wanted = replace(split, layout=Layout(_with_dim(after.shape.minor_to_major, major, dim), extra))
    moved = editor.add("copy", wanted, [editor.bitcast(made, by_device)])
    module.replace(after, editor.bitcast(moved, after.shape))
    computation, before = editor.computation, gather.operands[0]
    for gone in (after, gather, before):
        computation.remove(gone)


def _with_dim(minor_to_major: Sequence[int], new_dim: int, inner: int) -> tuple[int, ...]:
    """Return the order with a new dimension around the old dimension `inner`; later dimensions move up by one."""
    order: list[int] = []
    for dim in minor_to_major:
        order.append(dim + (dim >= new_dim))
        if dim == inner:
            order.append(new_dim)
    return tuple(order)
