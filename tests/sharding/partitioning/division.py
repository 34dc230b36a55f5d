"""The judge of divided modules: their joined tiles are the result of the whole module."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.backends.tiles import join_results, leaves_of, split_arguments
from hlo_run.hlo_passes.control_flow.calls.call_inliner import CallInliner
from hlo_run.ops.parse import parse
from hlo_run.ops.verify import verify
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.random import RandomEngine
from hlo_run.sharding.partitioning.spmd_partitioning import SpmdPartitioning
from hlo_run.sharding.propagation.sharding_propagation import ShardingPropagation
from hlo_run.sharding.shardy.shardy_xla import ShardyXla
from hlo_run.target import DEFAULT_TARGET, preset

_BODIES = "inlinable_manual_computation_body"


def check_values(text: str, options: CompileOptions | None = None, later: Sequence[HloPass] = ()) -> None:
    """Divide a module between its partitions by the rows of the partitioner, run `later`, and compare on every device."""
    whole, module = parse(text), parse(text)
    count = whole.num_partitions
    arguments = make_fake_arguments(whole, RandomEngine(1))
    expected = Reference(whole).run([arguments] * count, 1, count, 42)[0]
    ctx = PassContext(preset(DEFAULT_TARGET), options or CompileOptions())
    for hlo_pass in (ShardyXla(), ShardingPropagation(), SpmdPartitioning(), CallInliner(only=_BODIES), *later):
        hlo_pass.apply(ctx, module)
    verify(module)
    assert module.divided is not None
    results = Reference(module).run(split_arguments(module.divided, [arguments] * count, count), 1, count, 42)
    for result in join_results(module.divided, results, count):
        for one, other in zip(leaves_of(result), leaves_of(expected), strict=True):
            found, wanted = (np.asarray(value).astype(np.float64) for value in (one, other))
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
