"""Compute values that every backend takes from the host: the branch of a conditional, generator states, the seed."""

from __future__ import annotations

import numpy as np

from hlo_run.artifact import ConditionalThunk, RngSeedThunk, RngStateThunk
from hlo_run.backends.literals import Bytes
from hlo_run.hlo.values.dtype import DTYPES

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
