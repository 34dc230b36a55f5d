"""Replace a gather of one slice by a dynamic-slice with scalar indices.

    g = f32[1,3,128] gather(f32[64,128] p, s32[1,1] i), offset_dims={1,2}, slice_sizes={3,128}
        =>   reshape f32[1,3,128] (dynamic-slice f32[3,128] (p, reshape s32[] (i), 0), dynamic_slice_sizes={3,128})

Both clamp start indices so that the slice is in bounds. A gather of slices as large as the operand is a broadcast. XLA's
`GatherExpander`, in its mode for simple gathers.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from hlo_run.hlo.edit import Editor, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.gather_scatter import has_simple_gather_form, scalar_indices


class GatherExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gather_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        gathers = [gather for gather in module.in_post_order("gather") if not gather.control_predecessors]
        replaced = [gather for gather in gathers if _takes_all(gather) or _takes_one_slice(gather)]
        replace_each(module, replaced, lambda gather: _repeated(gather) if _takes_all(gather) else _sliced(gather))


def _takes_all(gather: HloInstruction) -> bool:
    dims = gather.operands[0].shape.dims
    return gather.gather_slice_sizes == dims and 0 not in dims


def _repeated(gather: HloInstruction) -> HloInstruction:
    operand = gather.operands[0]
    dropped = (*gather.collapsed_slice_dims, *gather.operand_batching_dims)
    editor, kept = Editor(gather), [size for dim, size in enumerate(operand.shape.dims) if dim not in dropped]
    # A reshape also where the dimensions are the same, as in XLA; algsimp removes it.
    reshape = editor.add("reshape", Shape.array(operand.shape.element_type, tuple(kept)), [operand])
    return editor.add("broadcast", gather.shape, [reshape], dimensions=gather.offset_dims)


def _takes_one_slice(gather: HloInstruction) -> bool:
    dims = gather.operands[1].shape.dims
    return all(size == 1 for dim, size in enumerate(dims) if dim != gather.index_vector_dim) and 0 not in dims


def _sliced(gather: HloInstruction) -> HloInstruction:
    editor, (operand, rows) = Editor(gather), gather.operands
    if not has_simple_gather_form(gather):
        rows = editor.reshape(rows, (1, len(gather.start_index_map)))
    sizes = gather.gather_slice_sizes
    starts = scalar_indices(editor, rows, gather.start_index_map, operand.shape.rank)
    shape = replace(operand.shape, dims=sizes)
    part = editor.add("dynamic-slice", shape, [operand, *starts], dynamic_slice_sizes=sizes)
    return editor.reshape(part, gather.shape.dims)
