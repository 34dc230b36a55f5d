"""Whole arguments are split into the devices' tiles, and their results are joined again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hlo_run.api import evaluate
from hlo_run.backends.tiles import join_results, split_arguments
from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.sharding.partitioning.spmd_partitioning import SpmdPartitioning
from hlo_run.target import DEFAULT_TARGET, preset

TEXT = """
HloModule m, num_partitions=4
ENTRY e {
  a = f32[5,4] parameter(0), sharding={devices=[2,2]<=[4]}
  b = f32[3] parameter(1), sharding={replicated}
  c = f32[5,4] copy(a), sharding={devices=[2,2]<=[4]}
  ROOT t = (f32[5,4], f32[3]) tuple(c, b), sharding={{devices=[2,2]<=[4]}, {replicated}}
}
"""


def test_tiles_are_padded_and_joined_without_the_excess() -> None:
    module = parse(TEXT)
    SpmdPartitioning().apply(PassContext(preset(DEFAULT_TARGET), CompileOptions()), module)
    divided = module.divided
    assert divided is not None
    whole = np.arange(20, dtype=np.float32).reshape(5, 4)
    other = np.arange(3, dtype=np.float32)
    parts = split_arguments(divided, [[whole, other]] * 4, 4)
    assert [np.asarray(part[0]).shape for part in parts] == [(3, 2)] * 4
    np.testing.assert_array_equal(np.asarray(parts[1][0]), whole[:3, 2:])
    np.testing.assert_array_equal(np.asarray(parts[2][0])[:2], whole[3:, :2])
    results = join_results(divided, [(part[0], part[1]) for part in parts], 4)
    assert len(results) == 4
    for result in results:
        assert isinstance(result, tuple)
        np.testing.assert_array_equal(np.asarray(result[0]), whole)
        np.testing.assert_array_equal(np.asarray(result[1]), other)


def test_host_compares_the_joined_results_with_the_whole_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(
        """HloModule m, num_partitions=2
add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }
ENTRY e {
  x = f32[9,4] parameter(0), sharding={devices=[2,1]<=[2]}
  z = f32[] constant(0)
  r = f32[4] reduce(x, z), dimensions={0}, to_apply=add
  b = f32[9,4] broadcast(r), dimensions={1}
  ROOT s = f32[9,4] subtract(x, b), sharding={devices=[2,1]<=[2]}
}
"""
    )
    assert run([str(file), "--platform=Host"]) == 0
    assert "72 elements" in capsys.readouterr().err


def test_the_reference_of_a_divided_module_takes_whole_arrays_and_returns_them() -> None:
    module = parse(TEXT)
    SpmdPartitioning().apply(PassContext(preset(DEFAULT_TARGET), CompileOptions()), module)
    whole, other = np.arange(20, dtype=np.float32).reshape(5, 4), np.arange(3, dtype=np.float32)
    for result in evaluate(module, whole, other):
        np.testing.assert_array_equal(result[0], whole)
        np.testing.assert_array_equal(result[1], other)
    with pytest.raises(UsageError, match=r"dimensions \[3, 2\], but the parameter is f32\[5,4\]"):
        evaluate(module, whole[:3, :2], other)


def test_evaluate_divides_a_module_first() -> None:
    module = parse(
        """
HloModule m, num_partitions=2
ENTRY e {
  a = f32[4] parameter(0), sharding={devices=[2]<=[2]}
  d = u32[] partition-id()
  n = f32[] convert(d)
  b = f32[4] broadcast(n), dimensions={}
  ROOT s = f32[4] add(a, b), sharding={devices=[2]<=[2]}
}
"""
    )
    a = np.zeros(4, np.float32)
    np.testing.assert_array_equal(evaluate(module, a), [[0, 0, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(evaluate(module, a, partitioned=True), [[0, 0, 1, 1]] * 2)
    assert module.divided is None
