"""Random programs through the whole pipeline, on Host; `scripts/fuzz_pipeline.py` makes more of them."""

from __future__ import annotations

import random

import pytest
from random_programs import random_program

import hlo_run
from hlo_run.backends.host.backend import HostBackend
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.passes import PassContext
from hlo_run.reference.agreement import disagreements
from hlo_run.reference.arguments import make_fake_arguments
from hlo_run.reference.evaluate import evaluate
from hlo_run.target import preset


@pytest.mark.parametrize("seed", range(12))
def test_values_are_those_of_the_reference(seed: int) -> None:
    module = hlo_run.parse(random_program(random.Random(seed), 14))
    arguments = make_fake_arguments(module, seed)
    expected, shape = evaluate(module, arguments), module.entry.root.shape
    options = Options(xla_allow_excess_precision=False)
    actual = HostBackend().run(compile_module(PassContext(preset("h100"), options), module), arguments)
    assert not [(index, found.summary()) for index, found in disagreements(expected, actual, shape)]
