"""Removes the results of fusions that nothing reads.

f = (f32[8], f32[8]) fusion(p, q);  a = get-tuple-element(f), index=1   =>   a = f32[8] fusion(q)
"""

from __future__ import annotations

from hlo_run.hlo.edit import InstructionMaker, has_side_effect, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape


def remove_unread_results(module: HloModule) -> None:
    """Remove the results of fusions that no get-tuple-element reads. Custom fusions and a module with a schedule keep them.

    A fusion of which one result is left returns that result instead of a tuple.
    """
    if module.schedule is not None:
        return
    for fusion in module.instructions_of("fusion"):
        if fusion.shape.is_tuple and fusion.parent is not None and fusion.fusion_kind != "kCustom":
            _drop_results(module, fusion)


def _drop_results(module: HloModule, fusion: HloInstruction) -> None:
    """Remove the results of a fusion that no get-tuple-element reads, and the parameters that only they need."""
    body, root = fusion.fused_computation, fusion.fused_computation.root
    if root.opcode != "tuple" or fusion.is_root or any(user.opcode != "get-tuple-element" for user in fusion.users):
        return
    used = {user.tuple_index for user in fusion.users}
    used |= {n for n, value in enumerate(root.operands) if has_side_effect(value)}
    if not used or len(used) == len(root.operands) or len(body.callers) > 1:
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
        fusion.shape = Shape.make_tuple(tuple(olds[n].shape for n in kept))
        # A new root, as in XLA: it has no metadata of the schedule.
        new = InstructionMaker(body, root.where).add("tuple", fusion.shape, [olds[n] for n in kept], name=root.name)
        module.replace(root, new)
        root.operands = ()
        body.remove(root)
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
    fusion.operands = tuple([before[n] for n in numbers])
    for parameter in [p for p in body.parameters if p not in kept]:
        body.remove(parameter)
    for number, parameter in enumerate(kept):
        parameter.attrs["parameter_number"] = number
    body.forget_parameters()
    remove_unused([operand for operand in before if not operand.users])
