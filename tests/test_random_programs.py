"""Random modules of the fuzzer through the whole pipeline, on Host; `hlo-fuzz` makes more of them."""

from __future__ import annotations

import pytest

from hlo_run.fuzz.calls import register_calls, unregister_calls
from hlo_run.fuzz.check import check, options_of
from hlo_run.fuzz.generate import random_module
from hlo_run.fuzz.judges import Judges
from hlo_run.fuzz.subjects import Subject


@pytest.fixture(autouse=True)
def _calls() -> object:
    register_calls()
    yield
    unregister_calls()


@pytest.mark.parametrize("seed", range(40))
def test_results_are_those_of_the_reference(seed: int) -> None:
    outcome = check(Subject.of(random_module(seed)), options_of(seed), Judges(["reference"]).all)
    assert outcome.kind == "ok", outcome.faults


def test_a_seed_is_one_module() -> None:
    assert random_module(7).text == random_module(7).text != random_module(8).text
