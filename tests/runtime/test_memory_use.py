"""The values in memory over the schedule, held against a count of bytes one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import hlo_run
from hlo_run.analysis.buffers.buffer_life import MemoryUse
from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.runner import run_hlo_groups
from hlo_run.pipeline.table import BACKEND_PIPELINE
from hlo_run.report.charts import live_bytes, peak_values
from hlo_run.runtime.buffers import assign_buffers
from hlo_run.runtime.memory_use import memory_use
from hlo_run.target import preset
from tests.random_control_flow import random_module

_RECORDED = sorted((Path(__file__).parents[1] / "data" / "xla_buffers").glob("*.hlo"))


def _bytes_one_by_one(memory: MemoryUse, time: int) -> int:
    """Return how many bytes any value uses at `time`."""
    used: dict[int, set[int]] = {}
    for life in memory.lives:
        if life.first <= time <= life.last:
            used.setdefault(life.allocation, set()).update(range(life.offset_bytes, life.offset_bytes + life.size_bytes))
    return sum(map(len, used.values()))


def _check(module: HloModule) -> None:
    memory = memory_use(assign_buffers(module))
    live = live_bytes(memory)
    assert len(live) == len(memory.schedule) + 1
    for time, count in enumerate(live):
        assert count == _bytes_one_by_one(memory, time) <= memory.allocated_bytes, time
        assert sum(v.size_bytes for v in peak_values(memory, time)) >= count


@pytest.mark.parametrize("path", [path for path in _RECORDED if path.stat().st_size < 20_000], ids=lambda path: path.stem)
def test_recorded_modules(path: Path) -> None:
    _check(hlo_run.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("seed", range(12))
def test_random_control_flow(seed: int) -> None:
    module = hlo_run.parse(random_module(random.Random(seed), 8))
    run_hlo_groups(BACKEND_PIPELINE, PassContext(preset("h100"), Options()), module)
    _check(module)
