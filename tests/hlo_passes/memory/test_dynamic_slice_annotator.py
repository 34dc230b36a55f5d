"""`dynamic-slice-annotator` computes few iterations of an index that is not regular, and all of one that is."""

from __future__ import annotations

from typing import Any

import pytest

from hlo_run.hlo_passes.memory.dynamic_slice_annotator import DynamicSliceAnnotator
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.reference.evaluate import evaluate as reference
from hlo_run.target import preset

_LOOP = """HloModule m
body {
  s = (s32[], f32[4000], f32[1]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  x = f32[4000] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(n, one)
  c = s32[] constant(NUMBER)
  i = s32[] OPCODE(n, c)
  r = f32[1] dynamic-slice(x, i), dynamic_slice_sizes={1}
  ROOT t = (s32[], f32[4000], f32[1]) tuple(next, x, r)
}
condition {
  s = (s32[], f32[4000], f32[1]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  end = s32[] constant(3000)
  ROOT less = pred[] compare(n, end), direction=LT
}
ENTRY e {
  x = f32[4000] parameter(0)
  y = f32[1] parameter(1)
  zero = s32[] constant(0)
  s = (s32[], f32[4000], f32[1]) tuple(zero, x, y)
  ROOT w = (s32[], f32[4000], f32[1]) while(s), condition=condition, body=body, backend_config={"known_trip_count":{"n":"3000"},\
"known_init_step":{"init":"0","step":"1"},"known_induction_variable":{"tuple_index":"0"}}
}
"""


@pytest.mark.parametrize(
    ("opcode", "number", "counts", "stride"),
    [
        ("multiply", 1, [8, 128, 2048, 3000], "4"),
        ("xor", 5, [8], None),
        ("minimum", 100, [8, 128], None),  # regular in the first iterations
        ("minimum", 2999, [8, 128, 2048, 3000], "4"),
        ("minimum", 2998, [8, 128, 2048, 3000], None),
    ],
)
def test_the_pass_stops_when_steps_differ(
    monkeypatch: pytest.MonkeyPatch, opcode: str, number: int, counts: list[int], stride: str | None
) -> None:
    seen: list[int] = []
    evaluate = reference.evaluate

    def counting(module: Any, arguments: Any) -> Any:
        seen.append(len(arguments[0]))
        return evaluate(module, arguments)

    monkeypatch.setattr(reference, "evaluate", counting)
    module = parse(_LOOP.replace("OPCODE", opcode).replace("NUMBER", str(number)))
    DynamicSliceAnnotator().apply(PassContext(preset("h100"), Options(), ()), module)
    (slice_,) = module.instructions_of("dynamic-slice")
    config = slice_.backend_config
    assert seen == counts
    assert config == "" if stride is None else f'"byte_stride":"{stride}"' in config
