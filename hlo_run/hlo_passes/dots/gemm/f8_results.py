"""Fuse the quantisation of an 8-bit float product into its call: scale, clamp and convert, and the absolute maximum.

    multiply(call(a, b, 1, sb), broadcast(s))                             =>   call(a, b, s, sb)
    f8e4m3fn convert(clamp(-448, divide(call(..), broadcast(s)), 448))    =>   f8e4m3fn call(.., 1 / s)
    reduce(abs(call(..)), 0), to_apply=maximum                            =>   element 1 of the call, with the line above

Follows XLA's `GemmRewriter`. Unlike in XLA, a scale after relu is fused into the operands' scales only if it is a constant
that is not negative, since relu(s * x) differs from s * relu(x) for a negative s.
"""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.dots.gemm.edits import Edits
from hlo_run.hlo_passes.dots.gemm.f8_call import reciprocal
from hlo_run.hlo_passes.dots.gemm.values import broadcast_number, either_way, has_one_user, scalar_constant
from hlo_run.hlo_passes.subgraphs.gemm_record import F8_MATMUL, beta_of, epilogue_of, is_call, update_record

_LARGEST = {"f8e4m3fn": 448.0, "f8e5m2": 57344.0}
_LEFT_SCALE = 2
_BIASES = frozenset(("bf16", "f16"))
_NEVER_NEGATIVE = ("RELU", "BIAS_RELU")


def scale_result(edits: Edits, instruction: HloInstruction) -> bool:
    """Fuse the scale of a wide result as the left operand's scale, if that is 1; return True if it was fused."""
    for call, factor in either_way(instruction):
        if is_call(call, F8_MATMUL) and has_one_user(call) and factor.opcode == "broadcast" and has_one_user(factor):
            scale = factor.operands[0]
            if scale.shape.dims or not _may_scale(call, scale):
                return False
            editor = Editor(instruction)
            new = reciprocal(editor, scale) if instruction.opcode == "divide" else editor.convert(scale, "f32")
            call.operands = (*call.operands[:_LEFT_SCALE], new, *call.operands[_LEFT_SCALE + 1 :])
            edits.replace(instruction, call)
            edits.drop(factor)
            return True
        if instruction.opcode == "divide":
            break
    return False


def _may_scale(call: HloInstruction, scale: HloInstruction) -> bool:
    if beta_of(call) or call.shape.is_tuple or scalar_constant(call.operands[_LEFT_SCALE]) != 1:
        return False
    epilogue, known = epilogue_of(call), scalar_constant(scale)
    return epilogue == "DEFAULT" or (epilogue == "RELU" and known is not None and known.real >= 0)


def round_result(edits: Edits, convert: HloInstruction) -> bool:
    """Fuse scale, clamp and conversion to 8 bits into the call, and the absolute maximum if it is used; return True if fused."""
    clamp = convert.operands[0]
    largest = _LARGEST.get(convert.shape.element_type)
    if largest is None or clamp.opcode != "clamp" or not has_one_user(clamp):
        return False
    low, value, high = clamp.operands
    if broadcast_number(low) != -largest or broadcast_number(high) != largest:
        return False
    call, scale = _call_and_scale(value)
    if call is None or call.is_root or call.shape.is_tuple:
        return False
    if scale is not None and (scale.shape.dims or not has_one_user(value)):
        return False
    maximum = None
    if len(call.users) > 1:
        maximum = _largest_magnitude(call, clamp if scale is None else value)
        if maximum is None:
            return False
    if beta_of(call) and call.operands[_LEFT_SCALE].shape.element_type not in _BIASES:
        return False
    editor = Editor(convert)
    divides = value.opcode == "divide"
    factor = editor.constant(1, "f32") if scale is None else editor.convert(scale, "f32")
    if scale is not None and divides:
        factor = reciprocal(editor, scale)
    call.operands = (*call.operands, factor)
    # The addend's type differs from the result's, so they cannot alias.
    call.attrs.pop("output_to_operand_aliasing", None)
    if maximum is None:
        call.shape = convert.shape
        edits.replace(convert, call)
        return True
    scalar = Shape.array("f32", ())
    call.shape = Shape.make_tuple((convert.shape, scalar))
    update_record(call, damax_output=True)
    found = editor.element(call, 1)
    edits.replace(maximum, editor.convert(found, maximum.shape.element_type))
    edits.replace(convert, editor.element(call, 0))
    return True


def _call_and_scale(value: HloInstruction) -> tuple[HloInstruction | None, HloInstruction | None]:
    """Return the call under a clamped value, and its factor or divisor; (None, None) if it does not match."""
    if is_call(value, F8_MATMUL):
        return value, None
    if value.opcode not in ("multiply", "divide"):
        return None, None
    for call, factor in either_way(value):
        if is_call(call, F8_MATMUL) and factor.opcode == "broadcast":
            return call, factor.operands[0]
        if value.opcode == "divide":
            break
    return None, None


def _largest_magnitude(call: HloInstruction, expected: HloInstruction) -> HloInstruction | None:
    """Return the absolute maximum reduction of the call's result, if it and `expected` are the only users.

    After relu the absolute value may be missing.
    """
    others = [user for user in call.users if user is not expected]
    if len(others) != 1 or expected not in call.users:
        return None
    reduce = others[0]
    if reduce.opcode == "abs":
        if not has_one_user(reduce):
            return None
        reduce = reduce.users[0]
    elif epilogue_of(call) not in _NEVER_NEGATIVE:
        return None
    return reduce if _is_maximum_of_all(reduce) else None


def _is_maximum_of_all(reduce: HloInstruction) -> bool:
    if reduce.opcode != "reduce" or len(reduce.operands) != 2 or reduce.shape.dims:
        return False
    start, body = reduce.operands[1], reduce.called_computations[0]
    found = scalar_constant(start)
    is_low = found is not None and not np.isnan(found.real) and found.real <= 0
    return is_low and body.root.opcode == "maximum" and {o.opcode for o in body.root.operands} == {"parameter"}
