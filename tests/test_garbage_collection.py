"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
import os

import pytest

from hlo_run.garbage_collection import paused_collection
from hlo_run.parallel import run_in_processes
from hlo_run.triage.trials import run_fork


def test_a_pause_ends_with_the_block_and_with_an_error() -> None:
    assert gc.isenabled()
    with paused_collection():
        assert not gc.isenabled()
        with paused_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), paused_collection():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot copy processes")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_forks_collect_nothing_of_their_parent() -> None:
    """Trials and compile workers would else copy all memory of their parent."""

    of_parent: list[object] = [[]]

    def is_visited(number: int = 0) -> bool:
        del number
        return any(each is of_parent for each in gc.get_objects())

    assert is_visited()
    assert run_fork(is_visited, 600.0).value is False
    assert run_in_processes(2, is_visited, 2) == [False, False]
