"""Evaluate collectives: the members of a group wait for each other, and the last one computes all results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.async_ops import contexts, zeros
from hlo_run.reference.evaluate.device import Device, Frame, Meeting, ProgramEvaluator, Wait
from hlo_run.reference.evaluate.exchange import in_place_slices, in_place_update, post, ragged_all_to_all, receive
from hlo_run.reference.evaluate.groups import check_members, group_of, permute_ends
from hlo_run.reference.numerics.reduce import array_reduction, recognised
from hlo_run.reference.values import Array, Calls, Value, as_array, as_tuple, narrow, table

# Each member's operands in group order → each member's result.
Combine: TypeAlias = Callable[[list[list[Value]]], list[Value]]


def meet(instruction: HloInstruction, operands: list[Value], device: Device, members: tuple[int, ...], combine: Combine) -> Frame:
    """Wait until all members have arrived and return this device's result of `combine`.

    `combine` gets the operands in the order of `members`. Raises Unsupported if the members' operands differ in shape.
    """
    meetings = device.world.meetings
    # Ops on one channel belong together, even in different branches of a conditional.
    channel = instruction.channel_id
    key = (instruction.opcode, channel if channel is not None else instruction, members)
    meeting = meetings.setdefault(key, Meeting())
    meeting.operands[device.id] = operands
    if len(meeting.operands) == len(members):
        del meetings[key]
        _check_alike(instruction, meeting)
        results = combine([meeting.operands[member] for member in members])
        meeting.operands.clear()
        meeting.results = dict(zip(members, results, strict=True))
    while meeting.results is None:
        yield Wait(instruction, lambda: meeting.results is not None, lambda: _who_is_missing(meeting, members))
    return meeting.results.pop(device.id)


def _who_is_missing(meeting: Meeting, members: tuple[int, ...]) -> str:
    missing = ", ".join(str(member) for member in members if member not in meeting.operands)
    return f"in its group {{{','.join(map(str, members))}}}, device {missing} did not arrive"


def _check_alike(instruction: HloInstruction, meeting: Meeting) -> None:
    # Calls of Shardy may have tokens, which are no arrays.
    arrays = ([value for value in operands if isinstance(value, np.ndarray)] for operands in meeting.operands.values())
    shapes = {tuple(value.shape for value in values) for values in arrays}
    if len(shapes) > 1:
        raise Unsupported("the devices of one collective have operands of different shapes", instruction.where)


def _members(instruction: HloInstruction, device: Device) -> tuple[int, ...]:
    members = group_of(instruction, device)
    check_members(instruction, members, device.world)
    if not members:
        message = f"device {device.id} (replica {device.replica}, partition {device.partition}) is in no group of"
        raise Unsupported(f"{message} '{instruction.opcode}'", instruction.where, notes=(f"instruction %{instruction.name}",))
    return members


def _collective(combine: Callable[[HloInstruction, Device], Combine]) -> ProgramEvaluator:
    def program(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
        members = _members(instruction, device)
        _check_size(instruction, len(members))
        return (yield meet(instruction, operands, device, members, combine(instruction, device)))

    return program


def _check_size(instruction: HloInstruction, members: int) -> None:
    """Raise ParseError for a group of another size than the shapes are for. The verifier cannot see the size without a header."""
    first = instruction.operands[0].shape
    match instruction.opcode:
        case "reduce-scatter":
            (dim,) = instruction.dimensions
            fits = first.dims[dim] == _first(instruction.shape).dims[dim] * members
        case "all-gather" | "all-gather-start":
            (dim,) = instruction.dimensions
            fits = _first(_result_shape(instruction)).dims[dim] == first.dims[dim] * members
        case "all-to-all" if instruction.shape.is_tuple:
            fits = len(instruction.operands) == members
        case "all-to-all":
            fits = first.dims[instruction.dimensions[0]] % members == 0
        case _:
            return
    if not fits:
        message = f"the shapes of %{instruction.name} are not for groups of {members} devices, as this run has"
        raise ParseError(message, instruction.where, "set their number with --num_replicas=N and --num_partitions=N")


def _first(shape: Shape) -> Shape:
    return shape.tuple_shapes[0] if shape.is_tuple else shape


def _pack(parts: Sequence[Array], is_tuple: bool) -> Value:
    return tuple(parts) if is_tuple else parts[0]


def _reduced(instruction: HloInstruction, device: Device, everyones: list[list[Value]]) -> tuple[Array, ...]:
    """Return the reduction over the members, operand by operand, in group order."""
    reducer = instruction.to_apply
    columns = [[as_array(operand) for operand in column] for column in zip(*everyones, strict=True)]
    opcode = recognised(reducer)
    if opcode is None and len(columns) > 1 and len(reducer.parameters) == 2 * len(columns):
        return _folded_together(instruction, device, columns)
    results: list[Array] = []
    for operand, column in zip(instruction.operands, columns, strict=True):
        # Sums use a wider type, as in `reduce`. Other reducers are applied step by step.
        total = array_reduction(opcode, (0,), operand.shape.dtype) if opcode == "add" else None
        zero = np.zeros((), column[0].dtype)
        results.append(_folded(instruction, device, column) if total is None else np.asarray(total(np.stack(column), zero)))
    return tuple(results)


def _folded(instruction: HloInstruction, device: Device, column: list[Array]) -> Array:
    reducer = instruction.to_apply
    result = column[0]
    for other in column[1:]:
        result = narrow(device.call_on_elements(reducer, [result, other])[0], instruction.operands[0].shape.dtype)
    return result


def _folded_together(instruction: HloInstruction, device: Device, columns: list[list[Array]]) -> tuple[Array, ...]:
    """Reduce with a computation of all operands at once: (accumulators.., elements..) → accumulators."""
    reducer = instruction.to_apply
    results = tuple(column[0] for column in columns)
    for others in zip(*(column[1:] for column in columns), strict=True):
        results = device.call_on_elements(reducer, [*results, *others])
    return results


def _all_reduce(instruction: HloInstruction, device: Device) -> Combine:
    def combine(everyones: list[list[Value]]) -> list[Value]:
        result = _pack(_reduced(instruction, device, everyones), instruction.shape.is_tuple)
        return [result] * len(everyones)

    return combine


def _reduce_scatter(instruction: HloInstruction, device: Device) -> Combine:
    """An all-reduce of which member i keeps the i-th piece of the dimension."""
    (dim,) = instruction.dimensions

    def combine(everyones: list[list[Value]]) -> list[Value]:
        pieces = [np.split(whole, len(everyones), axis=dim) for whole in _reduced(instruction, device, everyones)]
        return [_pack(mine, instruction.shape.is_tuple) for mine in zip(*pieces, strict=True)]

    return combine


def _gathered(instruction: HloInstruction, everyones: list[list[Value]]) -> tuple[Array, ...]:
    (dim,) = instruction.dimensions
    return tuple(np.concatenate([as_array(part) for part in column], axis=dim) for column in zip(*everyones, strict=True))


def _all_gather(instruction: HloInstruction, _device: Device) -> Combine:
    """Concatenate the members' operands along the dimension."""

    def combine(everyones: list[list[Value]]) -> list[Value]:
        return [_pack(_gathered(instruction, everyones), _result_shape(instruction).is_tuple)] * len(everyones)

    return combine


def _all_to_all(instruction: HloInstruction, _device: Device) -> Combine:
    """Send piece i of the dimension to member i and concatenate the received pieces; in the tuple form, send operand i."""
    dims = instruction.ints("dimensions")

    def combine(everyones: list[list[Value]]) -> list[Value]:
        count = len(everyones)
        if not instruction.shape.is_tuple:
            pieces = [np.split(as_array(operands[0]), count, axis=dims[0]) for operands in everyones]
            return [np.concatenate([piece[mine] for piece in pieces], axis=dims[0]) for mine in range(count)]
        return [tuple(operands[mine] for operands in everyones) for mine in range(count)]

    return combine


def _ragged_all_to_all(instruction: HloInstruction, _device: Device) -> Combine:
    def combine(everyones: list[list[Value]]) -> list[Value]:
        arrays = [[as_array(operand) for operand in operands] for operands in everyones]
        return list(ragged_all_to_all(instruction, arrays))

    return combine


def _broadcast(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Return the operands of the group's first member; a device in no group gets zeros."""
    members = group_of(instruction, device)
    check_members(instruction, members, device.world)
    if not members:
        return zeros(instruction.shape)
    if instruction.has_dynamic_root:
        raise Unsupported("'collective-broadcast' with a dynamic root", instruction.where)
    is_tuple = instruction.shape.is_tuple

    def combine(everyones: list[list[Value]]) -> list[Value]:
        return [_pack([as_array(operand) for operand in everyones[0]], is_tuple)] * len(everyones)

    return (yield meet(instruction, operands, device, members, combine))


def _permute(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Return the operands of the device that sends to this one.

    Without a sender the result is zeros, or in the in-place form the unchanged output operand.
    """
    source, targets = permute_ends(instruction, device)
    in_place = len(operands) == 4 and "slice_sizes" in instruction.attrs
    sent = in_place_slices(instruction, operands) if in_place else tuple(operands)
    channel = instruction.channel_id
    lane = ("collective-permute", instruction if channel is None else channel)
    for target in targets:
        post(device, lane, target, sent)
    if source is None:
        return operands[1] if in_place else zeros(_result_shape(instruction))
    received = as_tuple((yield receive(instruction, device, lane, source)))
    if in_place:
        return in_place_update(instruction, operands, received)
    return received if _result_shape(instruction).is_tuple else received[0]


def _result_shape(instruction: HloInstruction) -> Shape:
    """Return the shape of the result: the second element of a start's shape."""
    return instruction.shape.tuple_shapes[1] if instruction.opcode.endswith("-start") else instruction.shape


def _started(program: ProgramEvaluator) -> ProgramEvaluator:
    """Return the evaluator of a start, whose value is (operand or operands, result, contexts..)."""

    def start(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
        kept = tuple(operands)
        result = yield program(instruction, operands, device)
        first = kept if instruction.shape.tuple_shapes[0].is_tuple else kept[0]
        return (first, result, *contexts(instruction.shape))

    return start


def _done_of_pair(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    return as_tuple(operands[0])[1]


def _done_of_result(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the operand: an all-reduce-start has the shape of the result, without operands or contexts."""
    return operands[0]


EVALUATE = table(
    ("all-gather-done", _done_of_pair),
    ("all-reduce-done", _done_of_result),
    ("collective-permute-done", _done_of_pair),
)
PROGRAM: dict[Opcode, ProgramEvaluator] = {
    "all-gather": _collective(_all_gather),
    "all-gather-start": _started(_collective(_all_gather)),
    "all-reduce": _collective(_all_reduce),
    "all-reduce-start": _collective(_all_reduce),
    "all-to-all": _collective(_all_to_all),
    "collective-broadcast": _broadcast,
    "collective-permute": _permute,
    "collective-permute-start": _started(_permute),
    "ragged-all-to-all": _collective(_ragged_all_to_all),
    "reduce-scatter": _collective(_reduce_scatter),
}
