"""The state of a module that passes go on to edit, and header attributes that are computed when they are first read."""

from __future__ import annotations

import hlo_run
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.frontend_attributes import frontend_attribute, set_frontend_attribute, set_late_attribute
from hlo_run.hlo.module_state import ModuleState
from hlo_run.hlo.printer import FULL, module_to_string

_LOOP = """HloModule m, frontend_attributes={b="2"}, num_partitions=2

body {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one), metadata={op_name="next"}
  x = f32[4] get-tuple-element(s), index=1
  y = f32[4] negate(x), control-predecessors={j}
  ROOT t = (s32[], f32[4]) tuple(j, y)
}

condition {
  s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY e {
  p = (s32[], f32[4]) parameter(0)
  ROOT w = (s32[], f32[4]) while(p), condition=condition, body=body
}
"""


def test_a_state_has_the_text_of_its_moment() -> None:
    module = hlo_run.parse(_LOOP)
    before, state = module_to_string(module, FULL), ModuleState(module)
    body = module.entry.root.while_body
    value = body.root.operands[1]
    value.attrs["metadata"] = body.root.operands[0].attrs["metadata"]
    value.opcode, value.name = "abs", "z"
    body.root.operands = (body.root.operands[0], Editor(value).unary("exponential", value))
    module.attrs["num_partitions"] = 4
    assert module_to_string(module, FULL) != before
    assert module_to_string(state.module(), FULL) == before


def test_a_late_attribute_is_computed_once_when_it_is_read() -> None:
    module, asked = hlo_run.parse(_LOOP), list[str]()

    def value() -> str:
        asked.append("")
        return "1"

    set_late_attribute(module, "a", value)
    set_frontend_attribute(module, "c", "3")
    assert not asked
    assert frontend_attribute(module, "b") == "2"
    assert not asked
    assert 'frontend_attributes={a="1",b="2",c="3"}' in str(module)
    assert frontend_attribute(module.clone(), "a") == "1"
    assert len(asked) == 1
    set_frontend_attribute(module, "a", None)
    assert frontend_attribute(module, "a") is None
