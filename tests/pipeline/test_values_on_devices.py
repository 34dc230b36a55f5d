"""Every pass over collectives has a text test that compares the values of several devices before and after it."""

from __future__ import annotations

import re
from pathlib import Path

from hlo_run.pipeline.collective_rows import (
    COLLECTIVE_OPTIMIZATIONS,
    COMBINERS,
    GATHER_MAJOR_DIMENSION,
    MESSAGE_ORDER,
    SUB_BYTE_COLLECTIVES,
)
from hlo_run.pipeline.table import PIPELINE
from hlo_run.pipeline.table_rows import spelling

PASSES = Path(__file__).parents[1] / "hlo_passes"
# Passes over any instructions, which run among those over collectives, and one that changes nothing.
_OTHERS = {"algsimp", "dce", "while-loop-trip-count-annotator", "scheduling-instruction-annotator", "pgle-accuracy-checker"}


def _compared() -> set[str]:
    """Return the rows that sections compare on several devices."""
    found: set[str] = set()
    for file in PASSES.rglob("*.hlo"):
        for section in file.read_text(encoding="utf-8").split("// -----"):
            devices = [int(number) for number in re.findall(r"(?:replica_count|num_partitions)=(\d+)", section)]
            asked = re.search(r"--only=(\S+)", section)
            if "// NUMERIC: " in section and max(devices, default=1) > 1 and asked:
                found |= {spelling(name) for name in re.findall(r"[\w-]+", re.sub(r"\{.*?\}", "", asked[1]))}
    return found


def test_every_pass_over_collectives_is_compared_on_several_devices() -> None:
    groups = (row for group in (COLLECTIVE_OPTIMIZATIONS, MESSAGE_ORDER) for row in group.rows)
    rows = {row.name for row in (*groups, *COMBINERS, GATHER_MAJOR_DIMENSION, SUB_BYTE_COLLECTIVES)}
    for group in PIPELINE:
        if group.name in ("async-collective-conversion", "latency-hiding-scheduler"):
            rows |= {row.name for _, row in group.all_rows()}
    compared = _compared()
    missing = {name for name in rows - _OTHERS if spelling(name) not in compared}
    assert missing == set()
