"""Gather a value before it is broadcast, so that less is sent.

    b = f32[4,8] broadcast(f32[4] x), dimensions={0}
    g = f32[16,8] all-gather(b), dimensions={0}       =>   g = f32[16,8] broadcast(f32[16] all-gather(x)), dimensions={0}

If the gathered dimension is one of the broadcast, each device's value gets a place of its own in a new dimension.
XLA's `AllGatherBroadcastReorder`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, move_to_channel, pins_layouts
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class AllGatherBroadcastReorder(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-gather-bcast-reorder"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if pins_layouts(module, "all-gather"):
            return
        channels = free_channels(module)
        for gather in module.in_post_order("all-gather"):
            broadcast = gather.operands[0]
            if not gather.shape.is_array or broadcast.opcode != "broadcast":
                continue
            own = {*broadcast.dimensions, *gather.dimensions}
            if math.prod(size for dim, size in enumerate(gather.shape.dims) if dim not in own) == 1:
                continue
            is_own_dim = gather.dimensions[0] in broadcast.dimensions
            smaller, result = (_along_own_dim if is_own_dim else _along_new_dim)(gather, broadcast)
            move_to_channel(smaller, channels)
            module.replace_uses(gather, result)
            assert gather.parent is not None, "it is in a computation"
            gather.parent.remove(gather)
            remove_unused([broadcast])


def _along_own_dim(gather: HloInstruction, broadcast: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    """Return the new all-gather and the result if x has the gathered dimension."""
    (value,), (dim,) = broadcast.operands, gather.dimensions
    place = broadcast.dimensions.index(dim)
    dims = tuple(gather.shape.dims[dim] if d == place else size for d, size in enumerate(value.shape.dims))
    add = Editor(gather).computation.add
    smaller = add(copy_instruction(gather, [value], replace(value.shape, dims=dims)))
    smaller.attrs["dimensions"] = (place,)
    return smaller, add(copy_instruction(broadcast, [smaller], gather.shape))


def _along_new_dim(gather: HloInstruction, broadcast: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    """Return the new all-gather and the result if the gathered dimension is one of the broadcast."""
    (value,), (dim,) = broadcast.operands, gather.dimensions
    editor = Editor(gather, derives=False)
    size = broadcast.shape.dims[dim]
    count = gather.shape.dims[dim] // size
    one = editor.add("reshape", Shape.array(value.shape.element_type, (1, *value.shape.dims)), [value])
    shape = Shape.array(value.shape.element_type, (count, *value.shape.dims))
    smaller = editor.computation.add(copy_instruction(gather, [one], shape))
    smaller.attrs["dimensions"] = (0,)
    dims = (*gather.shape.dims[:dim], count, size, *gather.shape.dims[dim + 1 :])
    spread = editor.broadcast(smaller, dims, (dim, *(d + (d > dim) for d in broadcast.dimensions)))
    return smaller, editor.add("reshape", gather.shape, [spread])
