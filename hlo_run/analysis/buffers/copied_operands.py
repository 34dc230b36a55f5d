"""Recognises fusions that only copy operands, or a contiguous part of an operand, and so need no kernel.

    ROOT c = f32[8] copy(p1)                                result 0 is operand 1
    ROOT s = f32[2,6] slice(p0), slice={[3:5], [0:6]}       the result is 48 bytes of operand 0, from byte 72

Mirrors the choices of XLA's `MemcpyFusion` and of its copies of static slices.
"""

from __future__ import annotations

from msgspec import Struct

from hlo_run.analysis.buffers.slice_copies import behind_bitcasts, copied_value
from hlo_run.analysis.fusion_owner import is_slice_copy
from hlo_run.analysis.tiling.fusion_roots_and_heroes import fusion_roots
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.backend_config import read_config


class CopiedOperand(Struct, frozen=True):
    """A part of operand `number`: the bytes from `offset_bytes` on, as many as the result has."""

    number: int
    offset_bytes: int


def copied_operands(fusion: HloInstruction) -> tuple[CopiedOperand, ...]:
    """Return the part of an operand that each result copies; empty if a result is not a copy."""
    roots = fusion_roots(fusion)
    copied = [_copied_part(fusion, root, may_be_slice=len(roots) == 1) for root in roots]
    return tuple(part for part in copied if part is not None) if None not in copied else ()


def _copied_part(fusion: HloInstruction, root: HloInstruction, *, may_be_slice: bool) -> CopiedOperand | None:
    if root.opcode not in ("copy", "slice") or root.operands[0].opcode != "parameter" or not root.shape.is_array:
        return None
    number = root.operands[0].parameter_number
    if fusion.operands[number].shape.minor_to_major != root.shape.minor_to_major:
        return None
    if root.opcode == "copy":
        return CopiedOperand(number, 0) if root.shape == root.operands[0].shape else None
    offset_bits = _offset_bits(root) if may_be_slice else None
    if offset_bits is None or offset_bits % 8 or root.shape.element_count * root.shape.dtype.bits % 8:
        return None
    return CopiedOperand(number, offset_bits // 8)


def _offset_bits(slice_: HloInstruction) -> int | None:
    """Return the offset in bits of a slice in its operand; None if its elements are not contiguous there."""
    whole, part = slice_.operands[0].shape, slice_.shape
    ranges = slice_.slice_ranges
    offset, stride, is_whole = 0, part.dtype.bits, True
    for dim in part.minor_to_major:
        start, _, step = ranges[dim]
        if part.dims[dim] > 1 and (step != 1 or not is_whole):
            return None
        offset += start * stride
        stride *= whole.dims[dim]
        is_whole = is_whole and part.dims[dim] == whole.dims[dim]
    return offset


class SlicePlace(Struct, frozen=True):
    """The start of a slice of operand `number`: `first_bytes`, and `step_bytes` more in each iteration after the first.

    The iterations are those of a loop around the fusion; `loop` counts from the innermost one, 0.
    """

    number: int
    first_bytes: int = 0
    step_bytes: int = 0
    loop: int = 0


class CopiedSlice(Struct, frozen=True):
    """A copy of `size_bytes` from `source` to `target`, or to all of the result; `copy` is the instruction in the body."""

    copy: HloInstruction
    size_bytes: int
    source: SlicePlace
    target: SlicePlace | None


def copied_slice(fusion: HloInstruction) -> CopiedSlice | None:
    """Return the copy of a fusion that only copies a part of an operand at a dynamic offset, or into its result; else None.

    `dynamic-slice-annotator` wrote the offsets. A fusion that `fusion-dynamic-memcpy-rewriter` marked has the copy in its body.
    None for elements that are not whole bytes, and for a fusion outside of the loop that determines the offset.
    """
    copy = _marked_copy(fusion) if is_slice_copy(fusion) else copied_value(fusion)
    if copy is None or copy.shape.dtype.bits % 8:
        return None
    depth = loops_around(fusion.parent)
    source = source_place(behind_bitcasts(copy.operands[0] if is_slice_copy(fusion) else copy))
    root = behind_bitcasts(fusion.fused_computation.root)
    if root is behind_bitcasts(copy):
        target = None
    elif root.opcode == "dynamic-update-slice" and behind_bitcasts(root.operands[1]) is behind_bitcasts(copy):
        target = update_place(root)
        if target is None:
            return None
    else:
        return None
    if source is None or any(place is not None and place.step_bytes and place.loop >= depth for place in (source, target)):
        return None
    return CopiedSlice(copy, copy.shape.size_bytes, source, target)


def _marked_copy(fusion: HloInstruction) -> HloInstruction | None:
    copies = [inner for inner in fusion.fused_computation.instructions if inner.opcode == "copy"]
    return copies[0] if len(copies) == 1 else None


def loops_around(computation: HloComputation | None) -> int:
    """Return how many loops run a computation, one in the other."""
    callers = computation.callers if computation is not None else ()
    return min((loops_around(caller.parent) + (caller.opcode == "while") for caller in callers), default=0)


def source_place(value: HloInstruction) -> SlicePlace | None:
    """Return the place of a value in a parameter of its computation: a parameter, or a slice of one; None for other values."""
    if value.opcode == "dynamic-slice":
        return update_place(value)
    if value.opcode == "slice":
        whole, bits = behind_bitcasts(value.operands[0]), _offset_bits(value)
        return SlicePlace(whole.parameter_number, bits // 8) if whole.opcode == "parameter" and bits is not None else None
    return SlicePlace(value.parameter_number) if value.opcode == "parameter" else None


def update_place(slice_: HloInstruction) -> SlicePlace | None:
    """Return the place that the record in a dynamic slice's config says; None without a record that can be read."""
    whole = behind_bitcasts(slice_.operands[0])
    if whole.opcode != "parameter":
        return None
    try:
        found = read_config(slice_.backend_config)["dynamic_slice_config"]
        linear = found.get("linear", found)  # jaxlib 0.10.2 has the two numbers in the record itself
        numbers = [int(linear.get("byte_offset", 0)), int(linear.get("byte_stride", 0)), int(found.get("loop_index", 0))]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return SlicePlace(whole.parameter_number, *numbers) if numbers[2] >= 0 else None
