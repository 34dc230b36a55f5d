"""Split a called computation, and its calls, in two at instructions of chosen opcodes.

    call(a, b, c), to_apply={ROOT tuple(multiply(add(p0, p1), p2))}
        =>   first = call(a, b, c), to_apply={ROOT tuple(p2, add(p0, p1))}
             call(first[0], first[1]), to_apply={ROOT tuple(multiply(p1, p0))}

XLA's `CallSplitter`. Parameters that a part does not use are left to `call-parameter-cleanup`. A computation stays whole if its
root is no tuple, if the second part would miss its root, and if a control dependency would cross the border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import UsageError
from hlo_run.hlo.edit import Editor, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcodes_in
from hlo_run.hlo_passes.control_flow.calls.partial_copies import call_instead, copy_part, is_ordered
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.walks import walk

_Next = Callable[[HloInstruction], Iterable[HloInstruction]]


class CallSplitter(Struct, frozen=True):
    """The pass; see the module's docstring.

    `boundary` names opcodes, separated by `+`; without it nothing is split. With `direction=down` these instructions, and what
    depends on them, are the second part; with `up` they, and what they depend on, are the first.
    """

    name: ClassVar[str] = "call-splitter"

    boundary: str = ""
    direction: str = "down"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises UsageError for an unknown direction."""
        del ctx
        if self.direction not in ("down", "up"):
            raise UsageError(f"option direction of pass {self.name} takes down or up, got '{self.direction}'")
        opcodes = frozenset(opcodes_in(self.boundary))
        parts: dict[HloComputation, tuple[HloComputation, HloComputation] | None] = {}
        for call in module.in_post_order("call"):
            body = call.to_apply
            if body.root.opcode != "tuple" or is_ordered(call):
                continue
            if body not in parts:
                parts[body] = self._split(module, body, opcodes)
            pair = parts[body]
            if pair is not None:
                _call_both(module, call, *pair)
        if any(parts.values()):
            remove_uncalled(module)

    def _split(
        self, module: HloModule, body: HloComputation, opcodes: frozenset[Opcode]
    ) -> tuple[HloComputation, HloComputation] | None:
        border = [value for value in body.instructions if value.opcode in opcodes]
        after: dict[HloInstruction, list[HloInstruction]] = {}
        for value in body.instructions:
            for earlier in value.control_predecessors:
                after.setdefault(earlier, []).append(value)
        parameters = set(body.parameters)
        if self.direction == "down":
            second = _reached(border, lambda value: (*value.users, *after.get(value, ()))) - parameters
        else:
            before = _reached(border, lambda value: (*value.operands, *value.control_predecessors))
            second = set(body.instructions) - before - parameters if border else set[HloInstruction]()
        first = [value for value in body.instructions if value not in second]
        if not first or body.root not in second:
            return None
        if any(earlier not in second for value in second for earlier in value.control_predecessors):
            return None
        outputs = [value for value in first if any(user in second for user in value.users)]
        numbers = {parameter: number for number, parameter in enumerate(body.parameters)}
        return (
            copy_part(module, body, "first", set(first), numbers, outputs),
            copy_part(module, body, "second", second, {value: n for n, value in enumerate(outputs)}, None, "first_output"),
        )


def _reached(starts: Iterable[HloInstruction], following: _Next) -> set[HloInstruction]:
    """Return the starts and what follows them, directly or indirectly."""
    return set(walk(starts, following))


def _call_both(module: HloModule, call: HloInstruction, first: HloComputation, second: HloComputation) -> None:
    called = call_instead(call, first, call.operands)
    editor = Editor(call, derives=False)
    values = [editor.element(called, number) for number in range(len(called.shape.tuple_shapes))]
    module.replace_uses(call, call_instead(call, second, values))
    editor.computation.remove(call)
