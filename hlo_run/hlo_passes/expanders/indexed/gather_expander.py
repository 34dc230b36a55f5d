"""Replace a gather of one slice by a dynamic-slice with scalar indices.

    g = f32[1,3,128] gather(f32[64,128] p, s32[1,1] i), offset_dims={1,2}, slice_sizes={3,128}
        =>   reshape f32[1,3,128] (dynamic-slice f32[3,128] (p, reshape s32[] (i), 0), dynamic_slice_sizes={3,128})

Both clamp start indices so that the slice is in bounds. Needs the form of `gather_simplifier`. XLA's `GatherExpander`, in its
mode for simple gathers.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.gather_scatter import has_simple_gather_form, scalar_indices


class GatherExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gather_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [g for g in module.in_post_order("gather") if _takes_one_slice(g)]
        replace_each(module, replaced, _sliced)


def _takes_one_slice(gather: HloInstruction) -> bool:
    return has_simple_gather_form(gather) and gather.operands[1].shape.dims[0] == 1 and not gather.control_predecessors


def _sliced(gather: HloInstruction) -> HloInstruction:
    editor, (operand, rows) = Editor(gather), gather.operands
    sizes = gather.gather_slice_sizes
    starts = scalar_indices(editor, rows, gather.start_index_map, operand.shape.rank)
    shape = replace(operand.shape, dims=sizes)
    part = editor.add("dynamic-slice", shape, [operand, *starts], dynamic_slice_sizes=sizes)
    return editor.reshape(part, gather.shape.dims)
