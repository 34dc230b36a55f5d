"""Copies of computations with fusions: a fusion in a copy has a body of its own, with XLA's names."""

from __future__ import annotations

import pytest
from algebraic_cases import apply

from hlo_run.hlo.edit import clone_with_fusions
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.asynchronous.explicit_collectives_group_async_wrapper import ExplicitCollectivesGroupAsyncWrapper
from hlo_run.hlo_passes.collectives.pipelining.cloning import Copier, clone_with
from hlo_run.hlo_passes.control_flow.control_flow_flattening import ControlFlowFlattening
from hlo_run.ops.parse import parse
from hlo_run.pass_support.hlo_pass import HloPass

FUSED = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
twice { a = f32[4] parameter(0) ROOT r = f32[4] add(a, a) }
"""
COLLECTIVES = f"""HloModule m, replica_count=2
{FUSED}
group {{
  a = f32[4] parameter(0)
  f = f32[4] fusion(a), kind=kLoop, calls=twice
  x = f32[8] all-gather(f), dimensions={{0}}
  y = f32[4] collective-permute(f), source_target_pairs={{{{0,1}}}}
  ROOT r = (f32[8], f32[4]) tuple(x, y)
}}
ENTRY e {{
  b = f32[4] parameter(0)
  c = (f32[8], f32[4]) call(b), to_apply=group, frontend_attributes={{_collectives_group=""}}
  ROOT d = (f32[8], f32[4]) call(b), to_apply=group, frontend_attributes={{_collectives_group=""}}
}}
"""
TWO_LOOPS = f"""HloModule m, num_partitions=2
{FUSED}
body {{
  p = (s32[], f32[3,4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  out = f32[3,4] get-tuple-element(p), index=1
  x = f32[4] get-tuple-element(p), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  j = s32[] add(i, one)
  f = f32[4] fusion(x), kind=kLoop, calls=twice
  sum = f32[4] all-reduce(f), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=add
  row = f32[1,4] reshape(sum)
  new = f32[3,4] dynamic-update-slice(out, row, i, zero)
  ROOT t = (s32[], f32[3,4], f32[4]) tuple(j, new, f)
}}
cond {{
  p = (s32[], f32[3,4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}}
ENTRY e {{
  x = f32[4] parameter(0)
  out = f32[3,4] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[3,4], f32[4]) tuple(zero, out, x)
  w = (s32[], f32[3,4], f32[4]) while(t), condition=cond, body=body
  ROOT v = (s32[], f32[3,4], f32[4]) while(w), condition=cond, body=body
}}
"""


def _shared_bodies(module: HloModule) -> list[str]:
    return [c.name for c in module.computations if c.is_fusion and len(c.callers) > 1]


def test_what_is_called_is_cloned_with_the_same_suffix() -> None:
    module = parse(COLLECTIVES)
    clone = clone_with_fusions(module, module.entry, "again")
    assert [call.to_apply.name for call in clone.instructions if call.opcode == "call"] == ["group", "group"]
    inner = clone_with_fusions(module, clone.root.to_apply, "other")
    assert [i.fused_computation.name for i in inner.instructions if i.opcode == "fusion"] == ["twice.other"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (COLLECTIVES, ExplicitCollectivesGroupAsyncWrapper()),
        (TWO_LOOPS, ControlFlowFlattening(3)),
    ],
)
def test_fusions_of_copies_have_bodies_of_their_own(text: str, rows: HloPass) -> None:
    module = parse(text)
    before = len(module.computations)
    apply(module, rows)
    assert len(module.computations) > before
    assert not _shared_bodies(module)


def test_fusions_that_pipelining_copies_have_bodies_of_their_own() -> None:
    module = parse(TWO_LOOPS)
    (fusion,) = module.instructions_of("fusion")
    body = fusion.parent
    assert body is not None
    copier = Copier.of(module)
    for copy in (
        copier.copy(fusion, body, fusion.operands, {}),
        copier.copy_moved(fusion, body, fusion.operands),
        clone_with(module, body, {})[1][fusion],
    ):
        assert copy.fused_computation is not fusion.fused_computation
    assert not _shared_bodies(module)
