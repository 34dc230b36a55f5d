"""Lanes of the emulator: values of any shape become one per lane, and distinct values are sorted."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.artifact import Kernel
from hlo_run.backends.host.emulator.lanes import Chunk, Lanes, Launch, distinct
from hlo_run.backends.host.emulator.memory import Region


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_flat_has_one_value_per_lane(shape: tuple[int, int]) -> None:
    launch = Launch(Kernel("k", "", (2, 1, 1), (4, 1, 1)), [], {}, [])
    memory = Region("memory", "shared", np.zeros(0, np.uint8), 0, 0)
    lanes = Lanes(Chunk(launch, 0, 2, memory, memory))
    values = np.arange(shape[0] * shape[1]).reshape(shape)
    assert lanes.flat(values).tolist() == np.broadcast_to(values, (2, 4)).reshape(-1).tolist()


@pytest.mark.parametrize("values", [[], [5], [3, 1, 3, -2, 1], [7, 7, 7]])
def test_distinct_values_are_sorted(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))
