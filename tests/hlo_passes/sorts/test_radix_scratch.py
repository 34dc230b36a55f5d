"""CUB's scratch bytes against sizes in XLA's tables."""

from __future__ import annotations

import pytest

from hlo_run.hlo_passes.sorts.radix_scratch import radix_scratch_bytes
from hlo_run.target import preset


@pytest.mark.parametrize(
    ("target", "elements", "rows", "key", "value", "expected"),
    [
        ("h100_sxm", 4860, 1, 4, 0, 1),
        ("h100_sxm", 9700, 1, 1, 0, 3583),
        ("h100_sxm", 4957, 1, 4, 2, 39679),
        ("h100_sxm", 998938956, 1, 4, 8, 12038431487),
        ("h100_sxm", 251, 1, 8, 0, 1),
        ("a100_sxm_40", 2350, 1, 1, 8, 481535),
        ("a100_sxm_40", 5056, 1, 1, 0, 326911),
        ("h100_sxm", 121, 2, 2, 2, 767 + 1 + 12),
    ],
)
def test_sizes(target: str, elements: int, rows: int, key: int, value: int, expected: int) -> None:
    assert radix_scratch_bytes(elements, rows, key, value, preset(target)) == expected
