"""Remove the fill of an array that a loop overwrites slice by slice.

    zeros = f32[4,8] broadcast(0), dimensions={}          =>   custom-call(), custom_call_target="AllocateBuffer"
    while((i, zeros)): body writes row i, reads nothing

The loop counts from 0 in steps of 1 (`known_init_step`), as often as the array has rows (`known_trip_count`), and its updates
cover the array. Off by default. XLA's `DusAccumulatorZeroInitElimination`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.pass_support.hlo_pass import PassContext

_LAYOUT_ONLY: tuple[Opcode, ...] = ("bitcast", "copy", "reshape")
_CASTS: tuple[Opcode, ...] = ("convert", "bitcast", "copy", "reshape")
_Values = NDArray[np.int64]
_BINARY: dict[Opcode, Callable[[_Values, _Values], _Values]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


class DusAccumulatorZeroInitElimination(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dus-accumulator-zero-init-elimination"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for instruction in list(module.instructions_of("while")):
            loop = _counted(instruction)
            if loop is not None:
                _without_fills(loop)


class _Loop(Struct, frozen=True):
    """A loop of `trip_count` iterations, whose counter is element `counter` of the state: 0, 1, .."""

    loop: HloInstruction
    trip_count: int
    counter: int


def _counted(loop: HloInstruction) -> _Loop | None:
    if loop.operands[0].opcode != "tuple" or loop.sharding is not None or loop.while_body.root.opcode != "tuple":
        return None
    config = config_of(loop.backend_config)
    trips, step = _record(config, "known_trip_count").get("n", 0), _record(config, "known_init_step")
    if int(trips) <= 0 or int(step.get("init", 0)) != 0 or int(step.get("step", 0)) != 1:
        return None
    if "known_induction_variable" in config:
        return _Loop(loop, int(trips), int(_record(config, "known_induction_variable").get("tuple_index", 0)))
    counter = find_counter(loop)
    return None if counter is None else _Loop(loop, int(trips), counter.index)


def _record(config: dict[str, Any], name: str) -> dict[str, Any]:
    found: object = config.get(name)
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _without_fills(loop: _Loop) -> None:
    init = loop.loop.operands[0]
    for number, value in enumerate(init.operands):
        if number == loop.counter or not value.shape.is_array or value.sharding is not None or len(value.users) != 1:
            continue
        if init.operands.count(value) > 1 or value.shape.dims[:1] != (loop.trip_count,) or not _is_filled(value):
            continue
        if not _is_overwritten(loop, number):
            continue
        buffer = Editor(loop.loop).add("custom-call", value.shape, custom_call_target="AllocateBuffer")
        for name in ("metadata", "frontend_attributes"):
            if name in value.attrs:
                buffer.attrs[name] = value.attrs[name]
        init.operands = tuple([buffer if place == number else operand for place, operand in enumerate(init.operands)])


def _is_filled(value: HloInstruction) -> bool:
    """Return True for a broadcast scalar constant, also as a result of a fusion without operands."""
    if value.opcode == "get-tuple-element" and value.operands[0].opcode == "fusion" and not value.operands[0].operands:
        root = value.operands[0].fused_computation.root
        return root.opcode == "tuple" and _is_filled(root.operands[value.tuple_index])
    if value.opcode == "fusion":
        return not value.operands and _is_filled(value.fused_computation.root)
    while value.opcode in _LAYOUT_ONLY:
        value = value.operands[0]
    if value.opcode != "broadcast":
        return False
    scalar = value.operands[0]
    while scalar.opcode in _CASTS:
        scalar = scalar.operands[0]
    return scalar.opcode == "constant" and not scalar.shape.dims


def _is_overwritten(loop: _Loop, number: int) -> bool:
    """Return True if neither the body nor the code after the loop sees the first value of an element of the state."""
    body, condition = loop.loop.while_body, loop.loop.while_condition
    if any(user.opcode != "get-tuple-element" or user.tuple_index == number for user in condition.parameters[0].users):
        return False
    reads = [user for user in body.parameters[0].users if user.opcode == "get-tuple-element" and user.tuple_index == number]
    if len(reads) != 1:
        return not reads
    new = body.root.operands[number]
    while new.opcode in ("bitcast", "copy"):
        new = new.operands[0]
    return new is not reads[0] and _users_overwrite(reads[0], loop, None)


def _users_overwrite(value: HloInstruction, loop: _Loop, fusion: HloInstruction | None) -> bool:
    return all(_overwrites(user, value, loop, fusion) for user in value.users)


def _overwrites(user: HloInstruction, value: HloInstruction, loop: _Loop, fusion: HloInstruction | None) -> bool:
    """Return True if `user`, inside `fusion` if that is given, writes over every element of `value` and reads none."""
    match user.opcode:
        case "dynamic-update-slice":
            return user.operands[0] is value and value not in user.operands[1:] and _covers(user, loop, fusion)
        case "bitcast":
            return _users_overwrite(user, loop, fusion)
        case "fusion" if fusion is None:
            if user.operands.count(value) != 1:
                return False
            parameter = user.fused_computation.parameters[user.operands.index(value)]
            return _users_overwrite(parameter, loop, user)
        case "conditional":
            branches = zip(user.called_computations, user.operands[1:], strict=True)
            given = [branch.parameters[0] for branch, operand in branches if operand is value]
            return bool(given) and all(_users_overwrite(parameter, loop, fusion) for parameter in given)
        case _:
            return False


def _covers(update: HloInstruction, loop: _Loop, fusion: HloInstruction | None) -> bool:
    """Return True if the slices of all iterations lie side by side in one dimension and fill the array."""
    whole, part = update.operands[0].shape.dims, update.operands[1].shape.dims
    moving = 0
    for dim, index in enumerate(update.operands[2:]):
        values = _values(index, loop, fusion)
        if values is None:
            return False
        if not values.any():
            if part[dim] != whole[dim]:
                return False
            continue
        moving += 1
        steps = np.diff(values)
        if steps.size and (not steps[0] or (steps != steps[0]).any()):
            return False
        step = abs(int(steps[0])) if steps.size else 1
        if values.min() > 0 or values.max() < whole[dim] - part[dim] or part[dim] < step:
            return False
    return moving == 1


def _values(index: HloInstruction, loop: _Loop, fusion: HloInstruction | None) -> _Values | None:
    """Return the values of a scalar integer in all iterations; None if they do not depend on the counter alone."""
    match index.opcode:
        case "constant":
            return np.full(loop.trip_count, int(np.asarray(index.literal).reshape(())), np.int64)
        case "parameter" if fusion is not None:
            return _values(fusion.operands[index.parameter_number], loop, None)
        case "get-tuple-element" if fusion is None and index.operands[0] is loop.loop.while_body.parameters[0]:
            return np.arange(loop.trip_count, dtype=np.int64) if index.tuple_index == loop.counter else None
        case opcode if opcode in _CASTS:
            return _values(index.operands[0], loop, fusion)
        case opcode if opcode in _BINARY:
            one, other = (_values(operand, loop, fusion) for operand in index.operands)
            return None if one is None or other is None else _BINARY[opcode](one, other)
        case _:
            return None
