"""Pauses of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from hlo_run.garbage_collection import paused_collection


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
