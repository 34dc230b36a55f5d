"""The changes of Shardy's import and export to loops, reducers and manual computations. The texts are XLA's."""

from __future__ import annotations

import hlo_run
from hlo_run.hlo.graph import HloModule
from hlo_run.sharding.shardy.run import run_shardy

_MESH = 'frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}, num_partitions=2'
_SHARDED = 'frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"x\\"}]>"}'
_SCALAR = (
    'custom_call_target="Sharding", sharding={replicated}, '
    'frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, []>]>"}'
)
_LOOP = f"""HloModule m, {_MESH}
step {{ s = (s32[], f32[4], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  a = f32[4] get-tuple-element(s), index=2
  b = f32[4] get-tuple-element(s), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] multiply(x, a)
  z = f32[4] add(y, b)
  ROOT t = (s32[], f32[4], f32[4], f32[4]) tuple(j, z, a, b) }}
more {{ s = (s32[], f32[4], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }}
ENTRY e {{ x = f32[4] parameter(0), {_SHARDED}
  i = s32[] constant(0)
  c = f32[] constant(2)
  a = f32[4] broadcast(c), dimensions={{}}
  d = f32[] constant(2)
  b = f32[4] broadcast(d), dimensions={{}}
  t = (s32[], f32[4], f32[4], f32[4]) tuple(i, x, a, b)
  w = (s32[], f32[4], f32[4], f32[4]) while(t), condition=more, body=step
  ROOT r = f32[4] get-tuple-element(w), index=1 }}
"""
_REDUCER = f"""HloModule m, {_MESH}
most {{ x = f32[] parameter(0)
  y = f32[] parameter(1)
  p = f32[] custom-call(x), {_SCALAR}
  q = f32[] custom-call(y), {_SCALAR}
  g = pred[] compare(p, q), direction=GT
  v = f32[] custom-call(y), {_SCALAR}
  s = f32[] select(g, x, v)
  ROOT o = f32[] custom-call(s), {_SCALAR} }}
ENTRY e {{ x = f32[4] parameter(0), {_SHARDED}
  c = f32[] constant(-9)
  ROOT r = f32[] reduce(x, c), dimensions={{0}}, to_apply=most }}
"""
_VALUE = 'shardings="#sdy.sharding_per_value<[<@mesh, [{}, {\\"x\\"}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"x\\"}>"'
_MANUAL = f"""HloModule m, {_MESH}
xla.sdy.manual_computation_body {{ x = f32[3,4] parameter(0)
  ROOT y = f32[4,3]{{0,1}} transpose(x), dimensions={{1,0}} }}
ENTRY e {{ x = f32[3,8] parameter(0)
  a = f32[3,4] custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true,
    frontend_attributes={{xla.sdy.in_{_VALUE}}}
  b = f32[4,3] call(a), to_apply=xla.sdy.manual_computation_body
  ROOT c = f32[4,6] custom-call(b), custom_call_target="xla.sdy.LocalToGlobalShape", custom_call_has_side_effect=true,
    frontend_attributes={{xla.sdy.out_{_VALUE}}} }}
"""


def _run(text: str) -> HloModule:
    module = hlo_run.parse(text)
    run_shardy(module)
    return module


def test_equal_broadcasts_are_one_element_of_a_loop() -> None:
    (loop,) = _run(_LOOP).instructions_of("while")
    assert [str(shape) for shape in loop.shape.tuple_shapes] == ["s32[]", "f32[4]{0}", "f32[4]{0}"]


def test_constraints_of_a_reducer_become_one_copy_per_value() -> None:
    module = _run(_REDUCER)
    reducer = module.entry.root.to_apply
    assert [i.opcode for i in reducer.instructions].count("copy") == 3  # of x, y and s
    assert not module.instructions_of("custom-call")
    compare, select = (next(i for i in reducer.instructions if i.opcode == opcode) for opcode in ("compare", "select"))
    assert select.operands[2] is compare.operands[1]


def test_a_manual_call_has_the_layout_of_its_result() -> None:
    (call,) = _run(_MANUAL).instructions_of("call")
    assert str(call.shape) == "f32[4,3]{0,1}"
