"""Recognises fusions that only copy a contiguous slice whose place `dynamic-slice-annotator` found.

    fusion(x, i), kind=kLoop, calls={ ROOT s = dynamic-slice(x, i) }     the fusion reads a slice
    fusion(x, u, i), kind=kLoop, calls={ ROOT d = dynamic-update-slice(x, u, i) }     it writes one into its operand

They run as copies, not as kernels. Needs layouts. XLA's `AnalyzeDynamicSliceCopyFusion`.
"""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of

_DYNAMIC: tuple[Opcode, ...] = ("dynamic-slice", "dynamic-update-slice")
_SAME_BYTES: tuple[Opcode, ...] = ("bitcast", "reshape")


def behind_bitcasts(value: HloInstruction) -> HloInstruction:
    """Return the value that bitcasts and reshapes turn into this one."""
    while value.opcode in _SAME_BYTES:
        value = value.operands[0]
    return value


def copied_value(fusion: HloInstruction) -> HloInstruction | None:
    """Return the value in a fusion that is copied: the slice that it reads, or the update that it writes.

    None for other fusions, and for those of kind kCustom.
    """
    if fusion.fusion_kind == "kCustom":
        return None
    root = fusion.fused_computation.root
    slice_ = behind_bitcasts(root)
    if slice_.opcode not in _DYNAMIC or not all(map(_is_placed, fusion.fused_computation.instructions)):
        return None
    value = root if slice_.opcode == "dynamic-slice" else slice_.operands[1]
    source = behind_bitcasts(value)
    if source.opcode in ("dynamic-slice", "slice"):
        is_whole, source = True, source.operands[0]
    else:
        is_whole = False
    source = behind_bitcasts(source)
    if source.opcode != "parameter" or not (is_whole or source.shape.size_bytes == value.shape.size_bytes):
        return None
    if slice_.opcode == "dynamic-update-slice" and value.shape.minor_to_major != slice_.operands[1].shape.minor_to_major:
        return None
    target = slice_.operands[0] if slice_.opcode == "dynamic-update-slice" else None
    return value if target is None or behind_bitcasts(target).opcode == "parameter" else None


def is_contiguous_slice(slice_: HloInstruction) -> bool:
    """True if the elements of a slice or an update lie side by side in the array (XLA's `IsContiguousSlice`)."""
    whole = slice_.operands[0].shape
    part = slice_.operands[1].shape if slice_.opcode == "dynamic-update-slice" else slice_.shape
    is_sliced = False
    for dim in whole.minor_to_major:
        if is_sliced and part.dims[dim] != 1:
            return False
        if part.dims[dim] < whole.dims[dim]:
            if slice_.opcode == "slice" and slice_.slice_ranges[dim][2] != 1 and part.dims[dim] > 1:
                return False
            is_sliced = True
    return True


def _is_placed(instruction: HloInstruction) -> bool:
    """True unless the instruction is a slice at an unknown place, or one that is not contiguous."""
    if instruction.opcode in _DYNAMIC:
        return "dynamic_slice_config" in config_of(instruction.backend_config)
    return instruction.opcode != "slice" or is_contiguous_slice(instruction)
