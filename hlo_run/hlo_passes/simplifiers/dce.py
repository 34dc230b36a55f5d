"""Remove unused instructions, unused results of fusions, and uncalled computations.

    a = f32[8] negate(p);  ROOT b = f32[8] abs(p)   =>   ROOT b = f32[8] abs(p)

Parameters, instructions with effects and those with control dependencies stay. A fusion of which one result is left returns that
result instead of a tuple. XLA's `HloDCE`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import has_side_effect, remove_dead, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext


class Dce(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dce"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place."""
        del ctx
        remove_dead(module)
        for fusion in module.instructions_of("fusion"):
            if fusion.shape.is_tuple and fusion.parent is not None:
                _drop_results(module, fusion)
        remove_dead(module)


def _drop_results(module: HloModule, fusion: HloInstruction) -> None:
    """Remove the results of a fusion that no get-tuple-element reads, and the parameters that only they need."""
    body, root = fusion.fused_computation, fusion.fused_computation.root
    if root.opcode != "tuple" or fusion.is_root or any(user.opcode != "get-tuple-element" for user in fusion.users):
        return
    used = {user.tuple_index for user in fusion.users}
    used |= {n for n, value in enumerate(root.operands) if has_side_effect(value)}
    if not used or len(used) == len(root.operands) or len(body.callers) > 1 or module.schedule is not None:
        return
    kept = sorted(used)
    olds = root.operands
    if len(kept) == 1:
        body.root = olds[kept[0]]
        root.operands = ()
        body.remove(root)
        fusion.shape = body.root.shape
        for user in list(fusion.users):
            _read_whole(module, fusion, user)
    else:
        root.operands = [olds[n] for n in kept]
        root.shape = fusion.shape = Shape.make_tuple(tuple(olds[n].shape for n in kept))
        for user in fusion.users:
            user.attrs["index"] = kept.index(user.tuple_index)
    remove_unused([value for value in dict.fromkeys(olds) if not value.users and not value.is_root])
    _drop_parameters(fusion, body)


def _read_whole(module: HloModule, fusion: HloInstruction, element: HloInstruction) -> None:
    assert element.parent is not None, "a user is in a computation"
    for other in element.parent.instructions:
        if element in other.control_predecessors:
            other.control_predecessors = [fusion if p is element else p for p in other.control_predecessors]
    fusion.control_predecessors = list(dict.fromkeys((*fusion.control_predecessors, *element.control_predecessors)))
    element.control_predecessors = []
    module.replace(element, fusion)
    element.parent.remove(element)


def _drop_parameters(fusion: HloInstruction, body: HloComputation) -> None:
    kept = [parameter for parameter in body.parameters if parameter.users or parameter.is_root]
    if len(kept) == len(fusion.operands):
        return
    numbers = [parameter.parameter_number for parameter in kept]
    before = fusion.operands
    fusion.operands = [before[n] for n in numbers]
    for parameter in [p for p in body.parameters if p not in kept]:
        body.remove(parameter)
    for number, parameter in enumerate(kept):
        parameter.attrs["parameter_number"] = number
    body.forget_parameters()
    remove_unused([operand for operand in before if not operand.users])
