"""The tables of `--profile` and `--time_passes`: columns stay apart whatever the names and numbers are."""

from __future__ import annotations

import pytest

from hlo_run.artifact import BufferSlice, MemsetThunk
from hlo_run.backends.profile import Event, Profile
from hlo_run.pass_support.observer import Level, Step
from hlo_run.pipeline.observers.timing import TimingObserver


@pytest.mark.parametrize("size", [4, 10**18])
def test_the_columns_of_the_profile_stay_apart(size: int) -> None:
    names = ("a", "a_thunk_with_a_name_of_many_characters" * 3)
    thunks = [MemsetThunk(name, BufferSlice(0, 0, size), 0) for name in names]
    profile = Profile([Event(thunk, 1, 0.0, 123456.789) for thunk in thunks] * 3, runs=1)
    head, *rows, _ = profile.table().splitlines()
    assert head.split() == ["kind", "thunk", "runs", "median", "ms", "share", "bytes", "GB/s"]
    assert {tuple(row.split()[:3]) for row in rows} == {("kMemset32BitValue", name, "3") for name in names}
    assert all(row.split()[3:6] == ["123456789.000", "50.0%", str(size)] for row in rows)
    assert len({len(row) for row in (head, *rows)}) == 1


def test_the_columns_of_row_times_stay_apart() -> None:
    timing = TimingObserver()
    name = "a-row-with-a-name-of-more-than-thirty-six-characters"
    timing.after(Step(Level.HLO, "p", name, lambda: "", seconds=12345.6))
    assert timing.table().splitlines()[1].split() == ["hlo", name, "1", "12345600.00", "100.0%"]
