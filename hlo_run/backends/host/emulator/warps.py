"""Warp-wide instructions: shuffles, votes, reductions, matches. All lanes of a group take part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.backends.host.emulator.lanes import Ids, Lanes
from hlo_run.target import WARP_THREADS

U32 = NDArray[np.uint32]
Bool = NDArray[np.bool_]

_REDUCE: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def shuffle(lanes: Lanes, value: U32, mode: str, distance: U32, bounds: U32) -> tuple[U32, Bool]:
    """`shfl.sync`: return (the value of each lane's source lane, whether the source is in range).

    `distance` is the PTX operand b, `bounds` the operand c (clamp in bits 0-4, segment mask in bits 8-12). A lane whose source is
    out of range or not active keeps its own value.
    """
    lane = (lanes.threads % WARP_THREADS).astype(np.int64)
    asked = distance.astype(np.int64) & 31
    segment, clamp = (bounds.astype(np.int64) >> 8) & 31, bounds.astype(np.int64) & 31
    highest = (lane & segment) | (clamp & ~segment)
    match mode:
        case "up":
            source = lane - asked
            in_range = source >= highest
        case "down":
            source = lane + asked
            in_range = source <= highest
        case "bfly":
            source = lane ^ asked
            in_range = source <= highest
        case _:
            source = (lane & segment) | (asked & ~segment)
            in_range = source <= highest
    step = np.where(in_range, source - lane, 0)
    return _from_lanes(lanes, value, step), in_range


def _from_lanes(lanes: Lanes, value: U32, step: Ids) -> U32:
    """Return each lane's value of the lane `step` positions further in its warp."""
    if value.shape[1] == 1:
        return value  # all threads of a block have the same value
    source = lanes.threads + step
    if lanes.ids is None and source.shape[0] == 1:
        inside = np.where(source < lanes.chunk.threads, source, lanes.threads)[0]
        return np.take(value, inside, axis=1)
    flat_value = lanes.flat(value)
    flat_step = lanes.flat(step)
    wanted = lanes.flat_ids + flat_step
    same_block = lanes.flat(source) < lanes.chunk.threads
    position = np.minimum(np.searchsorted(lanes.flat_ids, wanted), lanes.count - 1)
    is_there = same_block & (lanes.flat_ids[position] == wanted)
    return np.where(is_there, flat_value[position], flat_value).reshape(lanes.shape)


class _WarpGroups:
    """The participating lanes (those whose bit is set in their own member mask), in runs per warp."""

    def __init__(self, lanes: Lanes, members: U32) -> None:
        self._lanes = lanes
        self.lane_bits = lanes.flat(np.uint32(1) << lanes.special("laneid"))
        self.active = np.flatnonzero(self.lane_bits & lanes.flat(members))
        warps = lanes.warps[self.active]
        is_first = np.ones(warps.size, np.bool_)
        is_first[1:] = warps[1:] != warps[:-1]
        self._starts = np.flatnonzero(is_first)
        self._run = np.cumsum(is_first) - 1

    def reduce(self, ufunc: np.ufunc, values: Array) -> Array:
        """Return, per lane, the reduction over its warp of `values` (flat, one per lane); 0 for lanes that do not take part."""
        result = np.zeros(self._lanes.count, values.dtype)
        if self.active.size:
            result[self.active] = ufunc.reduceat(values[self.active], self._starts)[self._run]
        return result.reshape(self._lanes.shape)


def vote(lanes: Lanes, predicate: Bool, mode: str, members: U32) -> Array:
    """`vote.sync`: all, any and uni return predicates; ballot returns the bits of the lanes whose predicate holds."""
    groups = _WarpGroups(lanes, members)
    flat = lanes.flat(predicate)
    match mode:
        case "ballot":
            return groups.reduce(np.bitwise_or, np.where(flat, groups.lane_bits, np.uint32(0)))
        case "any":
            return groups.reduce(np.logical_or, flat)
        case "all":
            return groups.reduce(np.logical_and, flat)
        case _:
            return groups.reduce(np.logical_and, flat) | ~groups.reduce(np.logical_or, flat)


def reduce(lanes: Lanes, value: Array, operation: str, members: U32) -> Array:
    """`redux.sync`: reduce over the members of the warp, in the type of `value`."""
    return _WarpGroups(lanes, members).reduce(_REDUCE[operation], lanes.flat(value))


def match_any(lanes: Lanes, value: Array, members: U32) -> U32:
    """`match.any.sync`: return the bits of the members with the same value."""
    groups = _WarpGroups(lanes, members)
    result = np.zeros(lanes.count, np.uint32)
    active = groups.active
    values, warps = lanes.flat(value)[active], lanes.warps[active]
    order = np.lexsort((values, warps))
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = (values[order][1:] != values[order][:-1]) | (warps[order][1:] != warps[order][:-1])
    if order.size:
        bits = np.bitwise_or.reduceat(groups.lane_bits[active][order], np.flatnonzero(is_first))
        result[active[order]] = bits[np.cumsum(is_first) - 1]
    return result.reshape(lanes.shape)


def match_all(lanes: Lanes, value: Array, members: U32) -> tuple[U32, Bool]:
    """`match.all.sync`: return (the members if all have the same value, else 0; whether they have it)."""
    groups = _WarpGroups(lanes, members)
    flat = lanes.flat(value)
    equal = groups.reduce(np.minimum, flat) == groups.reduce(np.maximum, flat)
    everybody = groups.reduce(np.bitwise_or, groups.lane_bits)
    return np.where(equal, everybody, np.uint32(0)), equal


def elect(lanes: Lanes, members: U32) -> tuple[U32, Bool]:
    """`elect.sync`: return (the lowest member's lane number, whether this lane is the lowest member)."""
    lane = lanes.flat(lanes.special("laneid"))
    leader = _WarpGroups(lanes, members).reduce(np.minimum, lane)
    return leader, leader == lane.reshape(lanes.shape)


def active_mask(lanes: Lanes) -> U32:
    """`activemask`: return the bits of the lanes of the warp in this group."""
    everybody = np.full((1, 1), 0xFFFFFFFF, np.uint32)
    groups = _WarpGroups(lanes, everybody)
    return groups.reduce(np.bitwise_or, groups.lane_bits)


def block_reduce(lanes: Lanes, predicate: Bool, operation: str) -> Array:
    """`barrier.red`: return popc (u32), and, or (predicates) over the block. All its threads are in the group."""
    rows = lanes.flat(lanes.rows)
    counts = np.bincount(rows, weights=lanes.flat(predicate), minlength=lanes.chunk.block_count).astype(np.uint32)
    totals = np.bincount(rows, minlength=lanes.chunk.block_count).astype(np.uint32)
    per_block = {"popc": counts, "and": counts == totals, "or": counts > 0}[operation]
    return per_block[lanes.rows]
