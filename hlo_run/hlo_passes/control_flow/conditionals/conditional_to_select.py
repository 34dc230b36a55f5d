"""Compute both branches of conditionals that run per element, and select.

    reducer: conditional(p, x, y), ..   =>   select(p, branch 0 of x, branch 1 of y)

Only conditionals of two branches in computations that other instructions than calls and loops apply, whose results are arrays and
whose branches have no side effects. XLA's `ConditionalToSelect`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, has_side_effect, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo_passes.subgraphs.inlining import inline_call
from hlo_run.pass_support.hlo_pass import PassContext


class ConditionalToSelect(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conditional-to-select"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        version = module.version
        for computation in list(module.computations):
            callers = computation.callers
            if not callers or any(caller.opcode in CONTROL_FLOW for caller in callers):
                continue
            for conditional in [value for value in computation.post_order() if value.opcode == "conditional"]:
                _select(module, conditional)
        if module.version != version:
            remove_uncalled(module)


def _select(module: HloModule, conditional: HloInstruction) -> None:
    branches = conditional.called_computations
    chooser, *arguments = conditional.operands
    if not conditional.shape.is_array or len(branches) != 2 or chooser.shape.dims:
        return
    if any(has_side_effect(value) for branch in branches for value in branch.instructions):
        return
    editor = Editor(conditional)
    calls = [
        editor.add("call", conditional.shape, [argument], {"to_apply": [branch]})
        for argument, branch in zip(arguments, branches, strict=True)
    ]
    if chooser.shape.element_type == "pred":
        chosen, other = calls
    else:
        # An index out of range chooses the last branch.
        other, chosen = calls
        chooser = editor.convert(chooser, "pred")
    if conditional.shape.dims:
        chooser = editor.broadcast(chooser, conditional.shape.dims)
    module.replace(conditional, editor.add("select", conditional.shape, [chooser, chosen, other]))
    for call in calls:
        inline_call(module, call)
    remove_unused([conditional, *calls])
