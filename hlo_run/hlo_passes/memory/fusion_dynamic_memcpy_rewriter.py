"""Mark the fusions that only copy a contiguous slice whose place is known: they are copies, not kernels.

    f = f32[1,6] fusion(x, i), kind=kLoop, calls={ ROOT s = dynamic-slice(..) }
        =>   fusion(x, i), kind=kCustom, calls={ s = dynamic-slice(..)  ROOT copy = copy(s) },
             backend_config={.."fusion_backend_config":{"kind":"__custom_fusion",
                 "custom_fusion_config":{"name":"dynamic_slice_fusion",..}}..}

The fusion reads a slice, or writes one into its operand. `dynamic-slice-annotator` wrote where the slices are. Needs layouts.
XLA's `FusionDynamicMemcpyRewriter`. The thunk is XLA's kDynamicSliceFusion.
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config
from hlo_run.pass_support.hlo_pass import PassContext

_RECORD = {"kind": "__custom_fusion", "custom_fusion_config": {"name": "dynamic_slice_fusion", "kernel_index": 0}}
_COSTS = re.compile(r'"reification_cost":\[[^\]]*\]')
_DYNAMIC: tuple[Opcode, ...] = ("dynamic-slice", "dynamic-update-slice")
_SAME_BYTES: tuple[Opcode, ...] = ("bitcast", "reshape")


class FusionDynamicMemcpyRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "fusion-dynamic-memcpy-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for fusion in module.instructions_of("fusion"):
            source = None if fusion.fusion_kind == "kCustom" else _copied(fusion)
            if source is None:
                continue
            copy = Editor(source).add("copy", source.shape, [source])
            copy.attrs.pop("metadata", None)
            root, body = fusion.fused_computation.root, fusion.fused_computation
            if source is root:
                body.root = copy
            else:
                update = _behind(root)
                update.operands = (update.operands[0], copy, *update.operands[2:])
            fusion.attrs["kind"] = "kCustom"
            fusion.attrs["backend_config"] = _config(fusion.backend_config)
            fusion.touch()


def _config(before: str) -> str:
    """Return the backend_config with the record. Estimates of time that it holds stay, as they are written."""
    costs = _COSTS.search(before)
    config = gpu_backend_config("fusion_backend_config", _RECORD)
    return config if costs is None else _COSTS.sub(costs[0], config)


def _behind(value: HloInstruction) -> HloInstruction:
    while value.opcode in _SAME_BYTES:
        value = value.operands[0]
    return value


def _copied(fusion: HloInstruction) -> HloInstruction | None:
    """Return the value in a fusion that is copied: the slice that it reads, or the update that it writes."""
    root = fusion.fused_computation.root
    slice_ = _behind(root)
    if slice_.opcode not in _DYNAMIC or not all(map(_is_placed, fusion.fused_computation.instructions)):
        return None
    value = root if slice_.opcode == "dynamic-slice" else slice_.operands[1]
    source = _behind(value)
    if source.opcode in ("dynamic-slice", "slice"):
        is_whole, source = True, source.operands[0]
    else:
        is_whole = False
    source = _behind(source)
    if source.opcode != "parameter" or not (is_whole or source.shape.size_bytes == value.shape.size_bytes):
        return None
    if slice_.opcode == "dynamic-update-slice" and value.shape.minor_to_major != slice_.operands[1].shape.minor_to_major:
        return None
    target = slice_.operands[0] if slice_.opcode == "dynamic-update-slice" else None
    return value if target is None or _behind(target).opcode == "parameter" else None


def _is_placed(instruction: HloInstruction) -> bool:
    """True unless the instruction is a slice at an unknown place, or one that is not contiguous."""
    if instruction.opcode in _DYNAMIC:
        return "dynamic_slice_config" in config_of(instruction.backend_config)
    return instruction.opcode != "slice" or _is_contiguous(instruction, instruction.operands[0].shape)


def _is_contiguous(slice_: HloInstruction, whole: Shape) -> bool:
    is_sliced = False
    for dim in whole.minor_to_major:
        if is_sliced and slice_.shape.dims[dim] != 1:
            return False
        if slice_.shape.dims[dim] < whole.dims[dim]:
            if slice_.slice_ranges[dim][2] != 1 and slice_.shape.dims[dim] > 1:
                return False
            is_sliced = True
    return True
