"""Fuse epilogues of a product other than adds into its call: a constant factor, relu, and gelu by tanh.

    maximum(call(a, b, bias), 0)    =>   call(a, b, bias), epilogue BIAS_RELU

If the argument of gelu has other users, the call returns the argument as well (`GELU_AUX`); not for 8-bit floats, for which
XLA cannot run such a call. Follows XLA's `GemmRewriter`.
"""

from __future__ import annotations

import cmath
import math

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.dots.gemm.bias import rename
from hlo_run.hlo_passes.dots.gemm.edits import Edits
from hlo_run.hlo_passes.dots.gemm.values import broadcast_number, either_way, has_one_user, is_near, scalar_constant
from hlo_run.hlo_passes.subgraphs.gemm_record import (
    F8_MATMUL,
    beta_of,
    epilogue_of,
    gemm_record,
    is_call,
    takes_epilogues,
    update_record,
)

_WITH_RELU = {"DEFAULT": "RELU", "BIAS": "BIAS_RELU"}
_WITH_GELU = {"DEFAULT": "GELU", "BIAS": "BIAS_GELU"}
_CUBIC, _SLOPE = 0.044715, math.sqrt(2 / math.pi)
# The number of gelu's instructions that read its argument.
_READERS_IN_GELU = 4


def scale_by_constant(edits: Edits, multiply: HloInstruction) -> bool:
    """Fuse a constant factor into the call. Return True if it was fused, or if the product is one of integers."""
    for call, factor in either_way(multiply):
        if not is_call(call) or not has_one_user(call) or factor.opcode != "broadcast" or not has_one_user(factor):
            continue
        number = scalar_constant(factor.operands[0])
        if number is None or call.shape.is_tuple:
            continue
        if call.shape.element_type == "s32":
            return True
        if beta_of(call) or epilogue_of(call) != "DEFAULT" or not cmath.isfinite(number):
            return False
        record = gemm_record(call)
        alpha = number * complex(record.get("alpha_real", 1), record.get("alpha_imag", 0))
        update_record(call, alpha_real=alpha.real, alpha_imag=alpha.imag)
        edits.replace(multiply, call)
        edits.drop(factor)
        return True
    return False


def _step_behind(value: HloInstruction) -> HloInstruction | None:
    """Return the call that a value is, or is a slice or bitcast of; None if it is neither."""
    source = value.operands[0] if value.opcode in ("slice", "bitcast") else value
    if not is_call(source) or source.shape.is_tuple or value.shape.element_type != source.shape.element_type:
        return None
    return source


def clip_at_zero(edits: Edits, maximum: HloInstruction) -> bool:
    """Fuse a maximum with 0 into the call as relu; return True if it was fused."""
    for value, bound in either_way(maximum):
        call = _step_behind(value)
        if call is None or broadcast_number(bound) != 0 or not has_one_user(value) or not has_one_user(call):
            continue
        epilogue = _WITH_RELU.get(epilogue_of(call))
        if epilogue is None or not takes_epilogues(call):
            return False
        update_record(call, epilogue=epilogue)
        # XLA's copy has another suffix here, so it takes no number.
        call.name = f"{call.name}.clone"
        rename(edits, call, *([value] if value is not call else []))
        edits.replace(maximum, value)
        edits.drop(bound)
        return True
    return False


# ---- gelu -----------------------------------------------------------------------------------------------------------


def apply_gelu(edits: Edits, multiply: HloInstruction) -> bool:
    """Fuse x * (0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * (x * (x * x)))))) into the call; return True if it was fused."""
    for x, rest in either_way(multiply):
        call = _step_behind(x)
        if call is not None and x is not rest and has_one_user(rest) and _is_distribution(rest, x):
            return _with_gelu(edits, multiply, call, x)
    return False


def _with_gelu(edits: Edits, multiply: HloInstruction, call: HloInstruction, x: HloInstruction) -> bool:
    epilogue = _WITH_GELU.get(epilogue_of(call))
    if epilogue is None or not takes_epilogues(call) or call.is_root:
        return False
    others_read_x = len(x.users) > _READERS_IN_GELU or x.is_root
    if not others_read_x and (x is call or has_one_user(call)):
        update_record(call, epilogue=epilogue)
        rename(edits, call, *([x] if x is not call else []), is_named_before=True)
        edits.replace(multiply, x)
        return True
    if is_call(call, F8_MATMUL):
        return False
    _with_gelu_and_argument(edits, multiply, call, x, epilogue)
    return True


def _with_gelu_and_argument(
    edits: Edits, multiply: HloInstruction, call: HloInstruction, x: HloInstruction, epilogue: str
) -> None:
    """Replace the call by one that returns gelu and its argument; other users of the call read the argument."""
    shape = Shape.make_tuple((call.shape, call.shape))
    both = edits.computation.add(copy_instruction(call, call.operands, shape))
    update_record(both, epilogue=f"{epilogue}_AUX")
    rename(edits, both)
    editor = Editor(multiply)
    result = editor.element(both, 0)
    if x is not call:
        result = edits.computation.add(copy_instruction(x, [result]))
    edits.replace(multiply, result)
    edits.replace(call, editor.element(both, 1))


def _is_distribution(rest: HloInstruction, x: HloInstruction) -> bool:
    """Return True for 0.5 * (1 + tanh(..)) of x, if each step has one user."""
    total = _beside_constant(rest, "multiply", 0.5)
    tanh = _beside_constant(total, "add", 1.0)
    if tanh is None or tanh.opcode != "tanh" or not has_one_user(tanh):
        return False
    inner = _beside_constant(tanh.operands[0], "multiply", _SLOPE)
    cubic = _beside(inner, "add", x)
    cube = _beside_constant(cubic, "multiply", _CUBIC)
    square = _beside(cube, "multiply", x)
    return square is not None and has_one_user(square) and square.opcode == "multiply" and set(square.operands) == {x}


def _beside(value: HloInstruction | None, opcode: Opcode, one: HloInstruction) -> HloInstruction | None:
    """Return the operand beside `one` of an instruction with this opcode and one user; None if it does not match."""
    if value is None or value.opcode != opcode or not has_one_user(value):
        return None
    return next((other for found, other in either_way(value) if found is one), None)


def _beside_constant(value: HloInstruction | None, opcode: Opcode, number: float) -> HloInstruction | None:
    if value is None or value.opcode != opcode or not has_one_user(value):
        return None
    return next((other for found, other in either_way(value) if is_near(found, number)), None)
