"""Compute values that every backend takes from the host: branches, places in loops, generator states, the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hlo_run.artifact import (
    ArraySpec,
    BufferSlice,
    ConditionalThunk,
    GemmThunk,
    LoopOffset,
    MovingArray,
    RngSeedThunk,
    RngStateThunk,
    SliceCopyThunk,
    SlicedProductThunk,
)
from hlo_run.backends.literals import Bytes
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace

# XLA's first state of `rng-get-and-update-state` (RngGetAndUpdateStateThunk).
_INITIAL_STATE = 0x7012395


def taken_branch(thunk: ConditionalThunk, selector: Bytes) -> int:
    """Return the index of the branch to run, from the bytes of the selector (pred[] or s32[]).

    As in XLA, true selects branch 0, and an index out of range selects the last branch.
    """
    if thunk.is_predicate:
        return 0 if selector[0] else 1
    number = int(selector[:4].view(np.int32)[0])
    last = len(thunk.branches) - 1
    return number if 0 <= number <= last else last


def counted(iterations: list[int], trip_count: int | None, goes_on: Callable[[], bool]) -> Iterator[int]:
    """Yield the numbers of a loop's iterations from 0, each while it is the last of `iterations`, after the loops around.

    There are `trip_count`, or as many as `goes_on` allows if the count is not known. `goes_on` runs as a part of the loop.
    """
    iterations.append(0)
    try:
        while iterations[-1] < trip_count if trip_count is not None else goes_on():
            yield iterations[-1]
            iterations[-1] += 1
    finally:
        iterations.pop()


def copied_places(thunk: SliceCopyThunk, iterations: Sequence[int]) -> tuple[BufferSlice, BufferSlice]:
    """Return the slices that a copy reads and writes in an iteration; `iterations` has the loops around, from 0."""
    pairs = ((thunk.source, thunk.source_offset), (thunk.destination, thunk.destination_offset))
    source, destination = (_part(whole, offset, thunk.size_bytes, iterations) for whole, offset in pairs)
    return source, destination


def product_at(thunk: SlicedProductThunk, iterations: Sequence[int]) -> GemmThunk:
    """Return the product with its arrays where they are in an iteration; `iterations` has the loops around, from 0."""
    product = thunk.product
    arrays = {"lhs": product.lhs, "rhs": product.rhs, "addend": product.addend, "result": product.result}
    moved: dict[str, ArraySpec] = {}
    for part in thunk.moving if thunk.room is None else _read(thunk):
        array = arrays[part.field]
        assert array is not None, "the structure of the executable is checked"
        moved[part.field] = replace(array, slice=_part(part.whole, part.offset, array.slice.size_bytes, iterations))
    return replace(product, **moved)


def copied_result(thunk: SlicedProductThunk, iterations: Sequence[int]) -> tuple[BufferSlice, BufferSlice] | None:
    """Return the room of a product and where its result goes from there in an iteration; None for one without a room."""
    if thunk.room is None:
        return None
    (part,) = (part for part in thunk.moving if part.field == "result")
    return thunk.room, _part(part.whole, part.offset, thunk.room.size_bytes, iterations)


def _read(thunk: SlicedProductThunk) -> list[MovingArray]:
    return [part for part in thunk.moving if part.field != "result"]


def _part(whole: BufferSlice, offset: LoopOffset, size_bytes: int, iterations: Sequence[int]) -> BufferSlice:
    iteration = iterations[-1 - offset.loop] if offset.loop < len(iterations) else 0
    wanted = offset.first_bytes + iteration * offset.step_bytes
    start = min(max(wanted, 0), whole.size_bytes - size_bytes)
    return BufferSlice(whole.allocation, whole.offset_bytes + start, size_bytes)


class RngStates:
    """The 128-bit states of a run's `rng-get-and-update-state` instructions, by thunk name."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {}

    def advance(self, thunk: RngStateThunk) -> Bytes:
        """Return the state (16 bytes, little endian), then add the thunk's delta to it."""
        state = self._states.get(thunk.name, _INITIAL_STATE)
        self._states[thunk.name] = (state + thunk.delta) % (1 << 128)
        return np.frombuffer(state.to_bytes(16, "little"), np.uint8)


def seed_bytes(thunk: RngSeedThunk, seed: int) -> Bytes:
    """Return the module's seed in the thunk's element type, as bytes."""
    return np.array([seed]).astype(DTYPES[thunk.result.dtype].numpy).view(np.uint8)
