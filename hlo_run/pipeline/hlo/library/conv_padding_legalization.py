"""Give cuDNN the padding that it knows, the same on both sides and no holes: all other padding is done before.

    custom-call(x, k), window={size=3 pad=1_2}          =>   p = pad(x, 0), padding=..x1_2x..
                                                             custom-call(p, k), window={size=3}
    custom-call(x, k), window={size=3 pad=-1_0}         =>   custom-call(slice(x), k), window={size=3}

Holes between elements (`lhs_dilate`) become interior padding. XLA's `ConvPaddingLegalization` for forward convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hlo_run.hlo.attributes import DimLabels, Window
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.passes import PassContext

_TARGETS = ("__cudnn$convForward", "__cudnn$convBiasActivationForward")


@dataclass(frozen=True)
class ConvPaddingLegalization:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conv-padding-legalization"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        replaced = [call for call in module.instructions_of("custom-call") if _needs_padding(call)]
        for call in replaced:
            assert call.parent is not None, "it stands in a computation"
            source, *others = call.operands
            made = copy_instruction(call, [_padded(Editor(call), call, source), *others])
            window: Window = call.attrs["window"]
            made.attrs["window"] = Window(tuple(replace(dim, pad_low=0, pad_high=0, base_dilation=1) for dim in window.dims))
            module.replace(call, call.parent.add(made))
        remove_unused(replaced)


def _needs_padding(call: HloInstruction) -> bool:
    if call.attrs.get("custom_call_target") not in _TARGETS:
        return False
    window: Window = call.attrs.get("window") or Window()
    return any(dim.base_dilation != 1 or dim.pad_low != dim.pad_high or dim.pad_low < 0 for dim in window.dims)


def _padded(editor: Editor, call: HloInstruction, source: HloInstruction) -> HloInstruction:
    labels: DimLabels = call.attrs["dim_labels"]
    window: Window = call.attrs["window"]
    edges = [(0, 0, 0)] * source.shape.rank
    starts, limits = [0] * source.shape.rank, [0] * source.shape.rank
    for place, dim in zip(labels.input.spatial_dims, window.dims, strict=True):
        edges[place] = (max(dim.pad_low, 0), max(dim.pad_high, 0), dim.base_dilation - 1)
        starts[place], limits[place] = max(-dim.pad_low, 0), max(-dim.pad_high, 0)
    if any(edge != (0, 0, 0) for edge in edges):
        source = editor.pad(source, editor.constant(0, source.shape.element_type), edges)
    if any(starts) or any(limits):
        ends = [size - limit for size, limit in zip(source.shape.dims, limits, strict=True)]
        source = editor.slice(source, starts, ends)
    return source
