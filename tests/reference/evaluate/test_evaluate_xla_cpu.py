"""The evaluator against recorded results of real XLA:CPU."""

from __future__ import annotations

import pytest
from xla_recordings import MODULES, load

from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.evaluate import evaluate


def test_there_are_recordings() -> None:
    assert len(MODULES) > 80


@pytest.mark.parametrize("name", MODULES)
def test_agrees_with_xla_cpu(name: str) -> None:
    module, arguments, expected = load(name)
    for index, comparison in disagreements(expected, evaluate(module, arguments), module.entry.root.shape):
        pytest.fail(f"result {list(index)}: {comparison.report()}")
