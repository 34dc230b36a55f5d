"""Times from the measured speeds of collectives and products."""

from __future__ import annotations

import pytest

from hlo_run.analysis.latency.speed_tables import collective_seconds, permute_seconds, product_seconds, table_of
from hlo_run.target import preset

H100 = "sm_90"


def test_gpus_with_tables() -> None:
    assert [table_of(preset(name)) for name in ("h100", "b200", "a100")] == [H100, "sm_100_B200", None]
    assert collective_seconds("sm_100_B200", "all-reduce", 8, 1 << 30) != collective_seconds(H100, "all-reduce", 8, 1 << 30)


def test_a_collective_has_the_speed_of_the_nearest_size_and_number_of_devices() -> None:
    speeds = {n: collective_seconds(H100, "all-reduce", 8, n) for n in (1 << 20, (1 << 20) + (1 << 18), 3 << 19)}
    at_1_mib, above, halfway = (n / seconds for n, seconds in speeds.items() if seconds is not None)
    assert above == pytest.approx(at_1_mib)
    assert halfway != pytest.approx(at_1_mib)
    assert collective_seconds(H100, "all-gather", 3, 4096) == collective_seconds(H100, "all-gather", 4, 4096)
    assert collective_seconds(H100, "all-gather", 64, 4096) == collective_seconds(H100, "all-gather", 8, 4096)
    assert collective_seconds(H100, "collective-broadcast", 2, 4096) is None


def test_the_form_of_a_permutation_matters() -> None:
    exchange, ring, one_way = ((0, 1), (1, 0)), ((0, 1), (1, 2), (2, 0)), ((0, 2), (1, 3))
    times = {permute_seconds(H100, pairs, 1 << 24) for pairs in (exchange, ring, one_way)}
    assert len(times) == 3
    assert permute_seconds(H100, (), 4) is None


def test_products_between_measured_sizes() -> None:
    corner = product_seconds(H100, "f32xf32->f32", 4, (1, 256, 256, 256))
    assert 2 * 256**3 / corner == pytest.approx(6026298850574, rel=1e-3)
    assert (
        corner
        < product_seconds(H100, "f32xf32->f32", 4, (1, 300, 256, 256))
        < product_seconds(H100, "f32xf32->f32", 4, (1, 512, 256, 256))
    )
    # Types without a column have the speed of bf16 for as many bytes.
    assert product_seconds(H100, "f16xf16->f16", 2, (1, 256, 256, 256)) == pytest.approx(
        4 * 2 * product_seconds(H100, "bf16xbf16->bf16", 2, (1, 256, 256, 256)), rel=1e-6
    )
