"""What cuBLASLt does besides the product: a factor, a matrix or a vector per row added, relu or gelu of the result.

    maximum(add(product, broadcast(bias)), 0)   =>   product with epilogue BIAS_RELU, which takes the bias as well

Only what nothing else looks at goes in; a change of shape between product and rest stays behind it.
"""

from __future__ import annotations

import json
import math
from typing import Any

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.library_calls import to_json

_TYPES = frozenset(("bf16", "f16", "f32", "f64"))
_ACTIVATED = {"DEFAULT": "RELU", "BIAS": "BIAS_RELU"}
# What would be written to memory for the sum alone.
_NO_BUFFER = frozenset(("broadcast", "constant", "iota"))
_WITH_GELU = {"DEFAULT": "GELU", "BIAS": "BIAS_GELU"}


def fuse_epilogues(module: HloModule, call: HloInstruction, result: HloInstruction) -> list[HloInstruction]:
    """Let a call do what follows its result, as far as it can; return the instructions that nobody uses any more."""
    if result.shape.element_type not in _TYPES:
        return []
    config: dict[str, Any] = json.loads(call.attrs["backend_config"])
    gemm: dict[str, Any] = config["gemm_backend_config"]
    gone: list[HloInstruction] = []
    while (step := _next_step(call, gemm, result)) is not None:
        value, last = step
        module.replace(last, value)
        gone += [last, *(operand for operand in last.operands if operand is not value)]
        # Off the list of the value's users, of which the next step asks.
        last.operands = ()
    if gone:
        call.attrs["backend_config"] = to_json(config)
    return gone


def _next_step(
    call: HloInstruction, gemm: dict[str, Any], result: HloInstruction
) -> tuple[HloInstruction, HloInstruction] | None:
    """Take one more step into the call: return the value that stands for it, and the last instruction of the step."""
    value = _behind_bitcast(result)
    if value.is_root or not value.users:
        return None
    if len(value.users) == 1:
        (user,) = value.users
        if _scale(gemm, value, user) or _add_bias(call, gemm, value, user) or _clip(gemm, value, user):
            return value, user
        if _add_matrix(call, gemm, value, user):
            return value, user
    last = _gelu_of(value) if gemm["epilogue"] in _WITH_GELU else None
    if last is None:
        return None
    gemm["epilogue"] = _WITH_GELU[gemm["epilogue"]]
    return value, last


def _behind_bitcast(result: HloInstruction) -> HloInstruction:
    """Return the result, or what reads all of it in another shape with the same rows' ends."""
    if len(result.users) != 1 or result.users[0].opcode != "bitcast" or result.is_root:
        return result
    bitcast = result.users[0]
    one, two = bitcast.shape, result.shape
    same = one.element_type == two.element_type and one.dims and two.dims and one.dims[-1] == two.dims[-1]
    return bitcast if same and one.has_default_layout and two.has_default_layout else result


def _constant(value: HloInstruction) -> float | None:
    """Return the number that a broadcast constant is."""
    if value.opcode != "broadcast" or value.operands[0].opcode != "constant" or value.operands[0].shape.dims:
        return None
    return float(value.operands[0].attrs["literal"])


def _other(user: HloInstruction, value: HloInstruction) -> HloInstruction | None:
    """Return the operand besides `value` of an instruction of two."""
    if len(user.operands) != 2 or user.operands[0] is user.operands[1] or value not in user.operands:
        return None
    return user.operands[1] if user.operands[0] is value else user.operands[0]


def _scale(gemm: dict[str, Any], value: HloInstruction, user: HloInstruction) -> bool:
    other = _other(user, value) if user.opcode == "multiply" else None
    factor = _constant(other) if other is not None else None
    if factor is None or gemm["epilogue"] != "DEFAULT" or gemm["beta"] or not math.isfinite(factor):
        return False
    gemm["alpha_real"] *= factor
    return True


def _add_bias(call: HloInstruction, gemm: dict[str, Any], value: HloInstruction, user: HloInstruction) -> bool:
    other = _other(user, value) if user.opcode == "add" else None
    if other is None or other.opcode != "broadcast" or gemm["epilogue"] != "DEFAULT" or len(call.operands) != 2:
        return False
    bias, rank = other.operands[0], value.shape.rank
    if tuple(other.attrs["dimensions"]) != (rank - 1,) or call.shape.tuple_shapes[0].rank < 2 or not _has_columns(call, gemm):
        return False
    call.operands = [*call.operands, bias]
    gemm["epilogue"] = "BIAS"
    return True


def _has_columns(call: HloInstruction, gemm: dict[str, Any]) -> bool:
    """True if the last dimension of the product is the right side's own one."""
    numbers = gemm["dot_dimension_numbers"]
    taken = len(numbers["rhs_contracting_dimensions"]) + len(numbers["rhs_batch_dimensions"])
    return call.operands[1].shape.rank == taken + 1


def _add_matrix(call: HloInstruction, gemm: dict[str, Any], value: HloInstruction, user: HloInstruction) -> bool:
    """Let the call add another array, which may be the sum's buffer; it stands before a bias."""
    other = _other(user, value) if user.opcode == "add" else None
    if other is None or other.opcode in _NO_BUFFER or gemm["beta"] or gemm["epilogue"] not in _ACTIVATED:
        return False
    if other.shape != value.shape or not other.shape.has_default_layout:
        return False
    product = call.shape.tuple_shapes[0]
    addend = other if other.shape == product else Editor(user).add("bitcast", product, [other])
    call.operands = [*call.operands[:2], addend, *call.operands[2:]]
    gemm["beta"] = 1
    return True


def _clip(gemm: dict[str, Any], value: HloInstruction, user: HloInstruction) -> bool:
    other = _other(user, value) if user.opcode == "maximum" else None
    if other is None or _constant(other) != 0 or gemm["epilogue"] not in _ACTIVATED:
        return False
    gemm["epilogue"] = _ACTIVATED[gemm["epilogue"]]
    return True


def _gelu_of(x: HloInstruction) -> HloInstruction | None:
    """Return x * (0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * (x * (x * x)))))) if that is all that x is used for."""
    square = next((u for u in x.users if u.opcode == "multiply" and u.operands == (x, x)), None)
    cube = _used_by(square, "multiply", x)
    scaled = _used_with_constant(cube, "multiply", 0.044715)
    inner = _used_by(scaled, "add", x)
    argument = _used_with_constant(inner, "multiply", math.sqrt(2 / math.pi))
    tanh = argument.users[0] if argument is not None and len(argument.users) == 1 else None
    total = _used_with_constant(tanh, "add", 1.0) if tanh is not None and tanh.opcode == "tanh" else None
    half = _used_with_constant(total, "multiply", 0.5)
    last = _used_by(half, "multiply", x)
    expected = {square, cube, inner, last}
    return last if last is not None and set(x.users) == expected else None


def _used_by(value: HloInstruction | None, opcode: str, other: HloInstruction) -> HloInstruction | None:
    """Return the only user of a value if it combines it with `other`."""
    if value is None or len(value.users) != 1 or value.is_root:
        return None
    user = value.users[0]
    return user if user.opcode == opcode and _other(user, value) is other else None


def _used_with_constant(value: HloInstruction | None, opcode: str, number: float) -> HloInstruction | None:
    """Return the only user of a value if it combines it with a constant near a number."""
    if value is None or len(value.users) != 1 or value.is_root:
        return None
    user = value.users[0]
    other = _other(user, value) if user.opcode == opcode else None
    found = _constant(other) if other is not None else None
    return user if found is not None and abs(found - number) <= 5e-3 * number else None
