"""Scalars that depend on the number of the device."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.ops.parse import parse
from hlo_run.sharding.analysis.device_numbers import numbers_of_devices


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("s32[] subtract(m, e)", [0, 1, 1, 1]),
        ("s32[] clamp(two, m, five)", [2, 5, 5, 5]),
        ("s32[] add(m, a)", None),
        ("u32[] subtract(i, three)", None),
    ],
)
def test_numbers(root: str, expected: list[int] | None) -> None:
    module = parse(f"""HloModule m, num_partitions=4
    ENTRY e {{
      a = s32[] parameter(0)
      i = u32[] partition-id()
      n = s32[] convert(i)
      two = s32[] constant(2)
      three = u32[] constant(3)
      five = s32[] constant(5)
      m = s32[] multiply(n, five)
      t = s32[4] constant({{0, 4, 9, 14}})
      s = s32[1] dynamic-slice(t, i), dynamic_slice_sizes={{1}}
      e = s32[] reshape(s)
      ROOT r = {root}
    }}""")
    found = numbers_of_devices(module.entry.root)
    assert (found is None) == (expected is None)
    assert found is None or np.array_equal(found, np.array(expected))
