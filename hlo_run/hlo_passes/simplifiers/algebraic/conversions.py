"""Algebraic rules of convert and bitcast-convert."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.literal import float_info
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules


def convert_to_own_type(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convert(f32 A) to f32 => A."""
    return i.operands[0] if i.operands[0].shape.element_type == i.shape.element_type else None


def convert_back(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convert to s8 (convert to s32 (s8 A)) => A if the intermediate type can hold all values."""
    inner = i.operands[0]
    if inner.opcode != "convert":
        return None
    source = inner.operands[0]
    is_back = source.shape.element_type == i.shape.element_type
    return source if is_back and _holds_all(inner.shape.dtype, source.shape.dtype) else None


def convert_at_once(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convert to f64 (convert to f32 (bf16 A)) => convert to f64 (A) if the intermediate type can hold all values."""
    inner = i.operands[0]
    if inner.opcode != "convert":
        return None
    source = inner.operands[0]
    if not _holds_all(inner.shape.dtype, source.shape.dtype) or source.shape.element_type == "pred":
        return None
    # Between types of one kind, the result is the same with or without the intermediate step.
    same_kind = {source.shape.dtype.is_float, inner.shape.dtype.is_float}
    return rw.like(i, [source]) if len(same_kind) == 1 else None


def convert_around_integers(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """convert to s8 (convert to s32 (s8 A) * convert to s32 (s8 B)) => A * B; also +, -, and for unsigned types /, %."""
    inner, narrow = i.operands[0], i.shape.dtype
    if inner.opcode not in ("add", "subtract", "multiply", "divide", "remainder") or len(inner.users) > 1:
        return None
    wide = inner.shape.dtype
    if not narrow.is_integer or wide.kind != narrow.kind or wide.bits < narrow.bits or narrow.bits < 8:
        return None
    if inner.opcode in ("divide", "remainder") and not narrow.is_unsigned:
        return None
    if any(o.opcode != "convert" or len(o.users) > 1 or o.operands[0].shape.dtype != narrow for o in inner.operands):
        return None
    return rw.like(inner, [o.operands[0] for o in inner.operands], i.shape)


def _holds_all(wide: DType, narrow: DType) -> bool:
    """Return True if the wide type can represent every value of the narrow type."""
    if narrow.kind == "pred":
        return wide.is_integer or wide.is_float
    if narrow.is_integer and wide.is_integer:
        return (
            wide.bits > narrow.bits and (wide.is_signed or narrow.is_unsigned)
            if wide.kind != narrow.kind
            else wide.bits >= narrow.bits
        )
    if wide.is_complex and narrow.is_complex:
        return wide.bits >= narrow.bits
    if not wide.is_float:
        return False
    high = float_info(wide)
    if narrow.is_integer:
        return narrow.bits - narrow.is_signed <= high.nmant + 1
    if not narrow.is_float or narrow.bits < 8 or wide.bits < 16:
        return False
    low = float_info(narrow)
    return high.nmant >= low.nmant and high.maxexp >= low.maxexp and high.minexp - high.nmant <= low.minexp - low.nmant


def bitcast_convert_to_own_type(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast-convert(f32 A) to f32 => A."""
    return i.operands[0] if i.operands[0].shape.element_type == i.shape.element_type else None


def bitcast_convert_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast-convert(bitcast-convert(A)) => bitcast-convert(A)."""
    inner = i.operands[0]
    if inner.opcode != "bitcast-convert" or inner.operands[0].shape.dims != i.shape.dims:
        return None
    return rw.like(i, [inner.operands[0]]) if inner.shape.dims == i.shape.dims else None


def bitcast_convert_of_joined(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast-convert to f32 (concatenate(bitcast-convert to s32 (f32 A), ..)) => concatenate(A, ..)."""
    joined = i.operands[0]
    if joined.opcode != "concatenate" or joined.shape.dims != i.shape.dims:
        return None
    for part in joined.operands:
        source = part.operands[0] if part.opcode == "bitcast-convert" else None
        if source is None or source.shape.element_type != i.shape.element_type or source.shape.dims != part.shape.dims:
            return None
    return rw.like(joined, [part.operands[0] for part in joined.operands], i.shape)


def bitcast_convert_as_bitcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast-convert(A) => bitcast(A): the same bytes, if the dimension that is split or merged is innermost."""
    source, target = i.operands[0].shape, i.shape
    if source.rank == target.rank:
        same = source.minor_to_major == target.minor_to_major and source.dtype.bits == target.dtype.bits
        return (
            rw.add("bitcast", target, [i.operands[0]])
            if same and "pred" not in (source.element_type, target.element_type)
            else None
        )
    fits = all(shape.has_default_layout and _is_packed(shape) for shape in (source, target))
    return (
        rw.add("bitcast", target, [i.operands[0]]) if fits and "pred" not in (source.element_type, target.element_type) else None
    )


def _is_packed(shape: Shape) -> bool:
    """True if no bits are between the elements."""
    return shape.dtype.bits >= 8 or (shape.layout is not None and shape.layout.element_size_bits == shape.dtype.bits)


RULES: Rules = {
    "bitcast-convert": (bitcast_convert_to_own_type, bitcast_convert_twice, bitcast_convert_of_joined),
    "convert": (convert_to_own_type, convert_back, convert_at_once, convert_around_integers),
}
LAYOUT_RULES: Rules = {"bitcast-convert": (bitcast_convert_as_bitcast,)}
