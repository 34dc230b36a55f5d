"""JAX programs with Shardy's annotations have JAX's values on eight devices. The data hold their HLO, arguments and results.

scripts/record_shardy_programs.py writes the data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import hlo_run
from hlo_run.backends.tiles import join_results, split_arguments
from hlo_run.hlo.graph import HloModule
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes
from hlo_run.sharding.partitioning.spmd_partitioning import SpmdPartitioning
from hlo_run.sharding.propagation.sharding_propagation import ShardingPropagation
from hlo_run.sharding.shardy.shardy_xla import ShardyXla
from hlo_run.target import DEFAULT_TARGET, preset

FOLDER = Path(__file__).parents[2] / "data" / "shardy_programs"
# Those that run on Host, in kernels; the others only in the reference, which is faster.
ON_HOST = ["constraint", "mlp", "nested", "partial_manual", "perm", "pipeline", "scan", "shard_map", "train", "uneven"]
NAMES = sorted(path.stem for path in FOLDER.glob("*.hlo"))


def _check(name: str, run: Callable[..., Any]) -> None:
    with np.load(FOLDER / f"{name}.npz") as data:
        arguments = [data[key] for key in sorted(data) if key.startswith("argument")]
        expected = [data[key] for key in sorted(data) if key.startswith("result")]
    devices = run(hlo_run.load(str(FOLDER / f"{name}.hlo")), *arguments)
    assert len(devices) == 8
    for found in devices:
        results = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (found,))
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _run_divided(module: HloModule, *arguments: NDArray[Any]) -> list[Any]:
    """Divide a program, and run it in the reference."""
    _divide(module)
    divided = module.divided
    assert divided is not None
    parts = split_arguments(divided, [list(arguments)] * 8, 8)
    return list(join_results(divided, Reference(module).run(parts, 1, 8, 42), 8))


def _divide(module: HloModule) -> None:
    context = PassContext(preset(DEFAULT_TARGET), CompileOptions())
    for step in (ShardyXla(), ShardingPropagation(), SpmdPartitioning()):
        step.apply(context, module)


@pytest.mark.parametrize("name", NAMES)
def test_the_divided_program_has_the_values_of_jax(name: str) -> None:
    _check(name, _run_divided)


@pytest.mark.parametrize("name", ON_HOST)
def test_the_divided_program_has_the_values_of_jax_in_kernels(name: str) -> None:
    _check(name, partial(hlo_run.run, platform="Host"))


@pytest.mark.parametrize("name", ["mlp", "nested", "partial_manual", "perm", "shard_map"])
def test_the_reference_has_the_values_of_jax(name: str) -> None:
    _check(name, hlo_run.evaluate)


@pytest.mark.parametrize(("name", "shape"), [("mlp", (8, 32)), ("shard_map", (4, 4)), ("train", (8, 32))])
def test_a_device_gets_its_part_of_an_argument(name: str, shape: tuple[int, ...]) -> None:
    module = hlo_run.load(str(FOLDER / f"{name}.hlo"))
    assert has_shardy_attributes(module)
    _divide(module)
    assert module.entry.parameters[0].shape.dims == shape
    assert not has_shardy_attributes(module)
