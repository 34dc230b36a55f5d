"""Pairs of custom calls compute what the collectives compute that they stand for.

The reference cannot evaluate the custom calls, so it evaluates the collectives. All act on the major dimension: XLA:GPU compiles
no other one, since an asynchronous computation has no room for the copies that change layouts.
"""

from __future__ import annotations

import numpy as np
import pytest

import hlo_run
from hlo_run.backends.tiles import leaves_of

_MODULE = """
HloModule pair, replica_count=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY main {
  p = f32[4,6] parameter(0)
  id = u32[] replica-id()
  shift = f32[] convert(id)
  shifts = f32[4,6] broadcast(shift), dimensions={}
  q = f32[4,6] add(p, shifts)
BODY
}
"""
_PAIR = """
  s = SHAPE custom-call(q), custom_call_target="KIND-start", backend_config={"replica_groups":[[0,1]],CONFIG} CALLED
  ROOT d = SHAPE custom-call(s), custom_call_target="KIND-done"
"""
_GROUPS = "replica_groups={{0,1}}"
_CASES = {
    "all-gather": ("f32[8,6]", '"all_gather_dimension":0', f"ROOT d = f32[8,6] all-gather(q), dimensions={{0}}, {_GROUPS}"),
    "all-reduce": ("f32[4,6]", '"channel_id":1', f"ROOT d = f32[4,6] all-reduce(q), to_apply=add, {_GROUPS}"),
    "reduce-scatter": (
        "f32[2,6]",
        '"scatter_dimension":0,"tiled":true',
        f"ROOT d = f32[2,6] reduce-scatter(q), dimensions={{0}}, to_apply=add, {_GROUPS}",
    ),
    "all-to-all": (
        "f32[2,12]",
        '"split_dimension":0,"concat_dimension":1,"split_count":2',
        # The upper half is what replica 0 sent, the lower half what replica 1 sent.
        f"""x = f32[4,6] all-to-all(q), dimensions={{0}}, {_GROUPS}
  one = f32[2,6] slice(x), slice={{[0:2],[0:6]}}
  two = f32[2,6] slice(x), slice={{[2:4],[0:6]}}
  ROOT d = f32[2,12] concatenate(one, two), dimensions={{1}}""",
    ),
    "collective-permute": (
        "f32[4,6]",
        '"permutation":[[0,1],[1,0]]',
        "ROOT d = f32[4,6] collective-permute(q), source_target_pairs={{0,1},{1,0}}",
    ),
}


@pytest.mark.parametrize("kind", _CASES)
def test_a_pair_computes_the_collective(kind: str) -> None:
    shape, config, collective = _CASES[kind]
    pair = _PAIR.replace("KIND", kind).replace("SHAPE", shape).replace("CONFIG", config)
    pair = pair.replace("CALLED", ", called_computations={add}" if "reduce" in kind else "")
    argument = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = hlo_run.run(hlo_run.parse(_MODULE.replace("BODY", pair)), argument, platform="Host")
    expected = hlo_run.evaluate(hlo_run.parse(_MODULE.replace("BODY", collective)), argument)
    assert isinstance(found, tuple)
    for one, other in zip(leaves_of(found), leaves_of(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
