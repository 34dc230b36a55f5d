"""Finds results of all-reduces that a loop writes slice by slice into an element of its state, and does not read.

    body:  r = f32[] all-reduce(x)                                    the element after the loop: f32[16], of which
           u = f32[1] reshape(r)                                 =>   elements 0 to 15 are results of the all-reduce,
           s = f32[16] dynamic-update-slice(element, u, i)            one from each of the 16 iterations

The loop must count from 0 in steps of 1, a known number of times.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.loop_counter import LoopCounter, find_counter
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.views.slices import DynamicSlice
from hlo_run.hlo_passes.collectives.communication.shards import scalar_constant


class WrittenPart(Struct, frozen=True):
    """The part of element `number` of a loop's state that the iterations write: where it starts, and its size, per dimension."""

    number: int
    starts: tuple[int, ...]
    sizes: tuple[int, ...]


def written_part(reduce: HloInstruction, loops: Sequence[HloInstruction], limit_bytes: int) -> WrittenPart | None:
    """Return the part that the result of `reduce` fills after the loops around it; None if it has another use.

    The results of all iterations may have at most `limit_bytes` together.
    """
    counter = _common_counter(loops)
    count = counter.trip_count if counter is not None else None
    if counter is None or not count or not reduce.shape.is_array:
        return None
    if count * reduce.shape.size_bytes > limit_bytes:
        return None
    update = reduce
    while (user := _only_user(update)) is not None and (user.opcode == "reshape" or _is_invertible(user)):
        update = user
    starts, sizes = [0] * update.shape.rank, list(update.shape.dims)
    by_counter = False
    while user is not None and user.opcode == "dynamic-update-slice" and user.operands[0] is not update:
        if by_counter:  # the outer slice would be written as a whole in every iteration
            return None
        for dim, index in enumerate(DynamicSlice.of(user).starts):
            start, room = scalar_constant(index), user.shape.dims[dim] - update.shape.dims[dim]
            if start is not None and 0 <= start <= room:
                starts[dim] += start
            elif start is None and not by_counter and _counts(index, counter, count) and update.shape.dims[dim] == 1:
                if count > room + 1:
                    return None
                sizes[dim], by_counter = count, True
            else:
                return None
        update, user = user, _only_user(user)
    number = _element(update, user, reduce.parent, loops)
    return None if number is None else WrittenPart(number, tuple(starts), tuple(sizes))


def _common_counter(loops: Sequence[HloInstruction]) -> LoopCounter | None:
    counters = [find_counter(loop) for loop in loops]
    first = counters[0]
    if first is None or first.init or first.step != 1:
        return None
    alike = all(
        c is not None and (c.index, c.init, c.step, c.trip_count) == (first.index, 0, 1, first.trip_count) for c in counters
    )
    return first if alike else None


def _only_user(value: HloInstruction) -> HloInstruction | None:
    return value.users[0] if len(value.users) == 1 and not value.is_root else None


def _is_invertible(user: HloInstruction) -> bool:
    """True for conversions between floats, which XLA undoes after the loop."""
    return user.opcode == "convert" and user.shape.dtype.is_float and user.operands[0].shape.dtype.is_float


def _counts(index: HloInstruction, counter: LoopCounter, count: int) -> bool:
    """True for the counter, and for the number of the last iteration minus the counter."""
    if index.opcode == "subtract" and scalar_constant(index.operands[0]) == count - 1:
        index = index.operands[1]
    return _is_element(index) and index.tuple_index == counter.index


def _is_element(value: HloInstruction) -> bool:
    return value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter"


def _element(
    update: HloInstruction, user: HloInstruction | None, body: HloComputation | None, loops: Sequence[HloInstruction]
) -> int | None:
    """Return the element of the state that an update changes in place, if nothing else in the loops reads it."""
    if update.opcode != "dynamic-update-slice" or body is None or user is None or user is not body.root or user.opcode != "tuple":
        return None
    element = update.operands[0]
    if not _is_element(element) or len(element.users) != 1:
        return None
    number = element.tuple_index
    if [n for n, value in enumerate(user.operands) if value is update] != [number]:
        return None
    readers = list(body.parameters[0].users)
    readers += [reader for loop in loops for reader in loop.while_condition.parameters[0].users]
    others = [reader for reader in readers if reader is not element]
    return number if all(r.opcode == "get-tuple-element" and r.tuple_index != number for r in others) else None
