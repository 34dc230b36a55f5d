"""Mark the calls that the call inliner inlines, so that the call outliner can undo it.

    c = call(x), to_apply=a   =>   b = (f32[]) custom-call(x), custom_call_target="__xla_internal_call_marker_before"
                                   c = call(b[0]), to_apply=a
                                   d = custom-call(c), custom_call_target="__xla_internal_call_marker_after"

The markers have the names of the computation and of the call as frontend attributes. XLA's `CallMarker`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.control_flow.calls.call_markers import (
    AFTER,
    BEFORE,
    COMPUTATION,
    INSTRUCTION,
    as_attributes,
    frontend_attributes,
)
from hlo_run.pass_support.hlo_pass import PassContext


class CallMarker(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "call-marker"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for call in module.instructions_of("call"):
            thread = call.parent.execution_thread if call.parent is not None else ""
            is_inlined = frontend_attributes(call).get("inlineable") != "false" and call.to_apply.execution_thread == thread
            if call.operands and is_inlined:
                _mark(call)


def _effects(attributes: dict[str, str]) -> dict[str, AttributeValue]:
    return {"custom_call_has_side_effect": True, "frontend_attributes": as_attributes(attributes)}


def _mark(call: HloInstruction) -> None:
    editor = Editor(call)
    name = {COMPUTATION: call.to_apply.name}
    own = {**frontend_attributes(call), **name, INSTRUCTION: call.name}
    users, is_root = list(call.users), call.is_root
    shape = Shape.make_tuple(tuple(operand.shape for operand in call.operands))
    before = editor.add_with("custom-call", shape, call.operands, {"custom_call_target": BEFORE, **_effects(name)})
    before.control_predecessors = call.control_predecessors
    call.control_predecessors = []
    call.operands = tuple([editor.element(before, n) for n in range(len(shape.tuple_shapes))])
    kept = {name: call.attrs[name] for name in ("sharding", "backend_config") if name in call.attrs}
    after = editor.add_with("custom-call", call.shape, [call], {"custom_call_target": AFTER, **_effects(own), **kept})
    assert call.parent is not None, "the call is in a computation"
    layout = call.parent.module.entry_layout if call.parent.module else None
    if is_root and call.parent.is_entry and layout is not None:
        after.shape = layout.result
    for other in call.parent.instructions:
        if call in other.control_predecessors:
            other.control_predecessors = [after if p is call else p for p in other.control_predecessors]
    for user in users:
        user.replace_operand(call, after)
    if is_root:
        call.parent.root = after
