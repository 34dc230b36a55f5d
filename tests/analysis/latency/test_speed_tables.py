"""Times from the measured speeds of collectives and products."""

from __future__ import annotations

import pytest

from hlo_run.analysis.latency.speed_tables import collective_seconds, permute_seconds, product_seconds


def test_a_collective_has_the_speed_of_the_nearest_size_and_number_of_devices() -> None:
    speeds = {n: collective_seconds("all-reduce", 8, n) for n in (1 << 20, (1 << 20) + (1 << 18), 3 << 19)}
    at_1_mib, above, halfway = (n / seconds for n, seconds in speeds.items() if seconds is not None)
    assert above == pytest.approx(at_1_mib)
    assert halfway != pytest.approx(at_1_mib)
    assert collective_seconds("all-gather", 3, 4096) == collective_seconds("all-gather", 4, 4096)
    assert collective_seconds("all-gather", 64, 4096) == collective_seconds("all-gather", 8, 4096)
    assert collective_seconds("collective-broadcast", 2, 4096) is None


def test_the_form_of_a_permutation_matters() -> None:
    exchange, ring, one_way = ((0, 1), (1, 0)), ((0, 1), (1, 2), (2, 0)), ((0, 2), (1, 3))
    times = {permute_seconds(pairs, 1 << 24) for pairs in (exchange, ring, one_way)}
    assert len(times) == 3
    assert permute_seconds((), 4) is None


def test_products_between_measured_sizes() -> None:
    corner = product_seconds("f32xf32->f32", 4, (1, 256, 256, 256))
    assert 2 * 256**3 / corner == pytest.approx(6026298850574, rel=1e-3)
    assert (
        corner < product_seconds("f32xf32->f32", 4, (1, 300, 256, 256)) < product_seconds("f32xf32->f32", 4, (1, 512, 256, 256))
    )
    # Types without a column have the speed of bf16 for as many bytes.
    assert product_seconds("f16xf16->f16", 2, (1, 256, 256, 256)) == pytest.approx(
        4 * 2 * product_seconds("bf16xbf16->bf16", 2, (1, 256, 256, 256)), rel=1e-6
    )
