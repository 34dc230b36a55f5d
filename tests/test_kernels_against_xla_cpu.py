"""Whole modules through the compiler, on Host, against recorded results of real XLA:CPU."""

from __future__ import annotations

import pytest
from xla_recordings import MODULES, load

from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.target import preset


@pytest.mark.parametrize("name", MODULES)
def test_agrees_with_xla_cpu(name: str) -> None:
    module, arguments, expected = load(name)
    ctx = PassContext(preset("h100"), Options(xla_allow_excess_precision=False))
    actual = open_backend("Host", Options()).run(compile_module(ctx, module.clone()), arguments)
    for index, comparison in disagreements(expected, actual, module.entry.root.shape):
        pytest.fail(f"result {list(index)}: {comparison.report()}")
