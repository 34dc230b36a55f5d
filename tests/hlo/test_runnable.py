"""Limits, sizes and library calls of a module are verified once for all its runs and evaluations, until it changes."""

from __future__ import annotations

import pytest

from hlo_run import parse
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.verify import runnable
from hlo_run.hlo.verify.runnable import verify_evaluable, verify_runnable

TEXT = "HloModule m\nENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[HloModule]:
    """The modules whose sizes were verified, as often as that was done."""
    found: list[HloModule] = []
    monkeypatch.setattr(runnable, "verify_sizes", found.append)
    return found


def test_an_unchanged_module_is_verified_once(looks: list[HloModule]) -> None:
    module = parse(TEXT)
    for verify in (verify_runnable, verify_runnable, verify_evaluable):
        verify(module)
    assert len(looks) == 1
    module.entry.root.attrs["metadata"] = OpMetadata(op_name="b")
    verify_runnable(module)
    assert len(looks) == 2


def test_what_can_be_evaluated_need_not_run(looks: list[HloModule]) -> None:
    module = parse(TEXT)
    verify_evaluable(module)
    verify_runnable(module)
    assert len(looks) == 2
