"""Take the branch that is always taken.

    c = conditional(constant(true), a, b), true_computation=f, ..   =>   the instructions of f, on a

A number that no branch has means the last one. XLA's `ConditionalSimplifier`, as far as selectors are constants or all
branches are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pipeline.inlining import inline
from hlo_run.pipeline.passes import PassContext


@dataclass(frozen=True)
class SimplifyConditional:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "simplify-conditional"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, callers before what they call."""
        del ctx
        version = module.version
        for conditional in module.instructions_of("conditional"):
            if conditional.parent is None or conditional.parent.module is None:
                continue
            number = _taken(conditional)
            if number is not None:
                computation = conditional.parent
                inline(module, conditional, branches(conditional)[number], (conditional.operands[1 + number],))
                # Its effects are those of the instructions that stand for it.
                computation.remove_all({conditional})
        if module.version != version:
            remove_uncalled(module)


def branches(conditional: HloInstruction) -> tuple[HloComputation, ...]:
    """Return the branches, in the order of the operands that they take."""
    if "branch_computations" in conditional.called:
        return conditional.called["branch_computations"]
    return conditional.called["true_computation"] + conditional.called["false_computation"]


def _taken(conditional: HloInstruction) -> int | None:
    """Return the number of the branch that is always taken, None if there is no such."""
    selector, found = conditional.operands[0], branches(conditional)
    if selector.opcode == "constant" and not selector.shape.dims:
        value = selector.attrs["literal"]
        if selector.shape.element_type == "pred":
            return 0 if bool(value) else 1
        return int(value) if 0 <= int(value) < len(found) else len(found) - 1
    if len(set(conditional.operands[1:])) == 1:
        keys = ValueKeys(sees_layouts=True)
        return 0 if len({keys.of_computation(branch) for branch in found}) == 1 else None
    return None
