"""Tables of measured speeds from files. The times are those of released XLA's schedule dumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.analysis.latency.measured_tables import permutation_kind
from hlo_run.analysis.latency.speeds import Speeds, speeds_of
from hlo_run.errors import UsageError
from hlo_run.options import Options
from hlo_run.target import preset

_DEVICES = "iota_collective_device_list { num_replica_groups: 1 num_devices_per_group: 4 }"


def _collective(opcode: str, elements: int, speed: int) -> str:
    shape = f"shape {{ element_type: F32 dimensions: {elements} layout {{ minor_to_major: 0 }} }}"
    instruction = f'instruction {{ name: "_" opcode: "{opcode}" {shape} {_DEVICES} }}'
    return f"entries {{ {instruction} network_throughput_bytes_per_sec: {speed} }}"


def _product(rows: int, depth: int, columns: int, cycles: int) -> str:
    shapes = [f"shape {{ element_type: F32 dimensions: {m} dimensions: {n} }}" for m, n in ((rows, depth), (depth, columns))]
    numbers = "dot_dimension_numbers { lhs_contracting_dimensions: 1 rhs_contracting_dimensions: 0 }"
    result = f"shape {{ element_type: F32 dimensions: {rows} dimensions: {columns} }}"
    operands = " ".join(f"operands {{ {shape} }}" for shape in shapes)
    return f'entries {{ instruction {{ opcode: "dot" {result} {numbers} }} clock_cycles: {cycles} {operands} }}'


def _speeds(folder: Path, *entries: str, key: str = "sm_90") -> Speeds:
    file = folder / "table.txtpb"
    file.write_text(f'# Measured.\nentries {{ key: "{key}" value {{ {" ".join(entries)} }} }}\n')
    options = Options(
        xla_gpu_experimental_collective_perf_table_path=str(file), xla_gpu_experimental_matmul_perf_table_path=str(file)
    )
    found = speeds_of(preset("h100"), options, 8)
    assert found is not None
    return found


def test_the_nearest_measurement_counts(tmp_path: Path) -> None:
    speeds = _speeds(tmp_path, _collective("all-reduce", 1024, 10**8), _collective("all-reduce", 8192, 2 * 10**8))
    assert speeds.collective("all-reduce", 1, 4, 12288, "f32") == 12288 / 10**8
    assert speeds.collective("all-reduce", 1, 2, 30000, "bf16") == 30000 / (2 * 10**8)
    assert speeds.collective("all-gather", 1, 4, 12288, "f32") is None
    assert speeds.permutation(((0, 1),), 4) is None


def test_products(tmp_path: Path) -> None:
    speeds = _speeds(tmp_path, _product(128, 512, 256, 500000), _product(1024, 1024, 1024, 777777))
    # 128 by 512 by 256 elements take 500,000 cycles at 1.98 GHz.
    assert speeds.product("f32xf32->f32", 4, (1, 128, 512, 256)) == pytest.approx(500000 / 1.98e9, rel=1e-5)
    assert speeds.collective("all-reduce", 1, 4, 4096, "f32") is None


def test_a_table_for_another_gpu_is_left_out(tmp_path: Path) -> None:
    speeds = _speeds(tmp_path, _collective("all-reduce", 1024, 1), key="sm_80")
    assert speeds == Speeds("sm_90")


@pytest.mark.parametrize("text", ["entries {", "}", "entries { key }", 'entries { key: "sm_90" value { entries { } } }', "?"])
def test_malformed_tables(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.txtpb"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"bad\.txtpb"):
        speeds_of(preset("h100"), Options(xla_gpu_experimental_collective_perf_table_path=str(file)), 8)


def test_kinds_of_permutations() -> None:
    assert [permutation_kind(pairs) for pairs in (((0, 1),), ((0, 1), (1, 0)), ((0, 1), (1, 2)))] == [
        "one-way",
        "mutual",
        "two-way",
    ]
