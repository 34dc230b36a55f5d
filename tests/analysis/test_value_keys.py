"""Keys of instructions follow their attributes, which are kept in comparable form until one is written."""

from __future__ import annotations

import numpy as np

import hlo_run
from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.values.dtype import DTYPES

MODULE = """HloModule m

ENTRY e {
  p = f32[4,4] parameter(0)
  a = f32[4,4] transpose(p), dimensions={1,0}
  b = f32[4,4] transpose(p), dimensions={1,0}, metadata={op_name="b"}
  c = bf16[2] constant({1, 2})
  d = s16[2] constant({1, 2})
  ROOT r = (f32[4,4], f32[4,4], bf16[2], s16[2]) tuple(a, b, c, d)
}
"""


def test_a_written_attribute_changes_the_key() -> None:
    module = hlo_run.parse(MODULE)
    one, two = module.instructions_of("transpose")
    keys = ValueKeys(sees_layouts=True)
    assert keys.of(one, ()) == keys.of(two, ())
    two.attrs["dimensions"] = (0, 1)
    assert keys.of(one, ()) != keys.of(two, ())
    assert keys.of(one, (), without="dimensions") == keys.of(two, (), without="dimensions")
    del two.attrs["dimensions"]
    assert keys.of(one, (), without="dimensions") == keys.of(two, ())


def test_constants_with_the_same_bytes_differ_by_their_type() -> None:
    module = hlo_run.parse(MODULE)
    one, two = module.instructions_of("constant")
    two.attrs["literal"] = np.asarray(one.constant_array).view(DTYPES["s16"].numpy)
    two.shape = one.shape
    keys = ValueKeys(sees_layouts=True)
    assert keys.of(one, ()) != keys.of(two, ())
