"""The order of computations: the module's own, with the callers of a computation that a pass adds behind it."""

from __future__ import annotations

import hlo_run
from hlo_run.analysis.computation_order import computation_post_order, in_definition_order
from hlo_run.hlo.edit import clone_computation

_LOOP = """
HloModule loop
sum { a = s32[] parameter(0)  b = s32[] parameter(1)  ROOT c = s32[] add(a, b) }
body { p = (s32[], s32[4]) parameter(0)  i = s32[] get-tuple-element(p), index=0  v = s32[4] get-tuple-element(p), index=1
  r = s32[] reduce(v, i), dimensions={0}, to_apply=sum  ROOT t = (s32[], s32[4]) tuple(r, v) }
cond { q = (s32[], s32[4]) parameter(0)  j = s32[] get-tuple-element(q), index=0  k = s32[] constant(9)
  ROOT l = pred[] compare(j, k), direction=LT }
ENTRY e { x = (s32[], s32[4]) parameter(0)  ROOT w = (s32[], s32[4]) while(x), condition=cond, body=body }
"""


def test_the_order_of_the_module() -> None:
    module = hlo_run.parse(_LOOP)
    assert [c.name for c in computation_post_order(module)] == ["sum", "body", "cond", "e"]


def test_the_callers_of_an_added_computation_move_behind_it() -> None:
    module = hlo_run.parse(_LOOP)
    added = clone_computation(module, module.computations[0])
    (reduce,) = module.instructions_of("reduce")
    reduce.called = {"to_apply": (added,)}
    assert [c.name for c in computation_post_order(module)] == ["sum", "cond", "sum.clone", "body", "e"]


def test_instructions_in_order_of_definition() -> None:
    module = hlo_run.parse(_LOOP)
    (reduce,) = module.instructions_of("reduce")
    reduce.called = {"to_apply": (clone_computation(module, reduce.to_apply),)}
    assert [i.name for i in module.instructions_of("get-tuple-element")] == ["j", "i", "v"]
    assert [i.name for i in in_definition_order(module, "get-tuple-element")] == ["i", "v", "j"]
