"""Small JAX programs, compiled and run on Host, against what real XLA:CPU made of the same arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlo_run
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.literal_files import read_values

# Written by scripts/record_jax_programs.py.
_RECORDED = Path(__file__).parents[2] / "data" / "jax_programs"


@pytest.mark.parametrize("name", sorted(path.stem for path in _RECORDED.glob("*.hlo")))
def test_host_makes_what_xla_makes(name: str) -> None:
    module = hlo_run.load(str(_RECORDED / f"{name}.hlo"))
    values = str(_RECORDED / f"{name}.npz")
    shapes = [parameter.shape for parameter in module.entry.parameters]
    arguments = read_values(values, "arg", shapes, [parameter.name for parameter in module.entry.parameters])
    shape = module.entry.root.shape
    (expected,) = read_values(values, "out", [shape], ["the result"])
    actual = hlo_run.run(module, *arguments, platform="Host")
    wrong = [f"{list(index)}: {comparison.summary()}" for index, comparison in disagreements(expected, actual, shape)]
    assert not wrong, "\n".join(wrong)
