"""Remove parameters that a called computation does not use, and results that are its parameters.

    call(a, b, c), to_apply={ROOT tuple(p2, add(p0, p0))}   =>   tuple(c, call(a)[0]), to_apply={ROOT tuple(add(p0, p0))}

XLA's `CallParameterCleanup`. The root must be a tuple, and only calls may use the computation.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.control_flow.calls.partial_copies import call_instead, copy_part, is_ordered
from hlo_run.pass_support.hlo_pass import PassContext


class CallParameterCleanup(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "call-parameter-cleanup"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        version = module.version
        for computation in list(module.computations):
            callers = computation.callers
            if not callers or computation.root.opcode != "tuple" or computation.root.users:
                continue
            if all(caller.opcode == "call" and not is_ordered(caller) for caller in callers):
                _clean(module, computation)
        if module.version != version:
            remove_uncalled(module)


def _clean(module: HloModule, computation: HloComputation) -> None:
    root = computation.root
    kept = [p for p in computation.parameters if any(user is not root for user in p.users)]
    outputs = [value for value in root.operands if value.opcode != "parameter"]
    if len(kept) == len(computation.parameters) and len(outputs) == len(root.operands):
        return
    numbers = {parameter: number for number, parameter in enumerate(kept)}
    is_same_root = len(outputs) == len(root.operands)
    gone = {*computation.parameters, *(() if is_same_root else (root,))}
    inner = {value for value in computation.instructions if value not in gone}
    cleaned = copy_part(module, computation, "undead", inner, numbers, None if is_same_root else outputs)
    for call in list(computation.callers):
        _call_cleaned(module, call, cleaned, [parameter.parameter_number for parameter in kept], root)


def _call_cleaned(
    module: HloModule, call: HloInstruction, cleaned: HloComputation, kept: list[int], root: HloInstruction
) -> None:
    editor = Editor(call, derives=False)
    made = call_instead(call, cleaned, [call.operands[number] for number in kept])
    if made.shape.tuple_shapes != call.shape.tuple_shapes:
        numbers = iter(range(len(root.operands)))
        results = [
            call.operands[value.parameter_number] if value.opcode == "parameter" else editor.element(made, next(numbers))
            for value in root.operands
        ]
        made = editor.tuple(results)
    module.replace_uses(call, made)
    editor.computation.remove(call)
