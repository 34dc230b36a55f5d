"""Algebraic rules of instructions on tuples and of custom calls that undo each other."""

from __future__ import annotations

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules


def element_of_tuple(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """get-tuple-element(tuple(A, B)), index=1 => B."""
    del rw
    value = i.operands[0].operands[i.tuple_index] if i.operands[0].opcode == "tuple" else None
    is_kept = value is not None and i.sharding is not None and value.sharding not in (None, i.sharding)
    return None if is_kept else value


def barrier_of_used(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """opt-barrier(tuple(A, B)) of which only element 0 is used => opt-barrier(tuple(A)).

    Elements without users stay if others use the operand, too. The replacement is a tuple whose unused elements are the operands.
    """
    source = i.operands[0]
    if not i.shape.is_tuple or i.is_root or source.opcode != "tuple" or any(u.opcode != "get-tuple-element" for u in i.users):
        return None
    used = {user.tuple_index for user in i.users}
    for number, value in enumerate(source.operands):
        if len(value.users) > 1 or value.is_root or has_side_effect(value):
            used.add(number)
    if len(used) == len(source.operands):
        return None
    numbers = sorted(used)
    barrier = rw.tuple([source.operands[n] for n in numbers])
    barrier = rw.add("opt-barrier", barrier.shape, [barrier])
    values = list(source.operands)
    for place, number in enumerate(numbers):
        values[number] = rw.element(barrier, place)
    return rw.tuple(values)


def slice_of_padded(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """custom-call SliceToDynamic(custom-call PadToStatic(A)) => A."""
    del rw
    if i.custom_call_target != "SliceToDynamic" or len(i.operands) < 2:
        return None
    elements = i.operands[:2]
    if any(e.opcode != "get-tuple-element" or e.tuple_index != n for n, e in enumerate(elements)):
        return None
    pad = elements[0].operands[0]
    is_pad = pad.opcode == "custom-call" and pad.custom_call_target == "PadToStatic"
    same = is_pad and elements[1].operands[0] is pad and len(i.operands) == 2 and pad.operands[0].shape == i.shape
    return pad.operands[0] if same else None


def conditional_on_converted(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """conditional(convert(p), A, B), branch_computations={f, g} => conditional(p, B, A), true_computation=g, .."""
    number, branches = i.operands[0], i.called.get("branch_computations", ())
    if number.opcode != "convert" or number.operands[0].shape.element_type != "pred" or len(branches) != 2:
        return None
    called = {"true_computation": (branches[1],), "false_computation": (branches[0],)}
    return rw.add("conditional", i.shape, [number.operands[0], i.operands[2], i.operands[1]], called)


RULES: Rules = {
    "get-tuple-element": (element_of_tuple,),
    "opt-barrier": (barrier_of_used,),
    "conditional": (conditional_on_converted,),
}
# Before layout assignment; the arrays may have dynamic sizes.
FREE_RULES: Rules = {"custom-call": (slice_of_padded,)}
