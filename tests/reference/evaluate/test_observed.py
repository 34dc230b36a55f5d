"""An observer of an evaluation sees what instructions compute, in calls and loops too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import hlo_run
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.values import Value, as_array

LOOP = """HloModule l
body {
  s = (s32[], f32[2]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  v = f32[2] get-tuple-element(s), index=1
  w = f32[2] add(v, v)
  one = s32[] constant(1)
  n = s32[] add(k, one)
  ROOT r = (s32[], f32[2]) tuple(n, w)
}
condition {
  s = (s32[], f32[2]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT c = pred[] compare(k, three), direction=LT
}
ENTRY e {
  v = f32[2] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[2]) tuple(zero, v)
  l = (s32[], f32[2]) while(s), condition=condition, body=body
  x = f32[2] get-tuple-element(l), index=1
  ROOT y = f32[2] negate(x)
}
"""


def test_an_observer_sees_every_iteration_of_a_loop() -> None:
    seen: list[tuple[str, list[float]]] = []

    def observe(instruction: HloInstruction, operands: Sequence[Value], value: Value) -> None:
        assert len(operands) == len(instruction.operands)
        if instruction.shape.dtype.is_float:
            seen.append((instruction.name, as_array(value).tolist()))

    module = hlo_run.parse(LOOP)
    Reference(module, observe=observe).run([[np.array([1, 2], np.float32)]])
    assert seen == [("w", [2, 4]), ("w", [4, 8]), ("w", [8, 16]), ("y", [-8, -16])]
