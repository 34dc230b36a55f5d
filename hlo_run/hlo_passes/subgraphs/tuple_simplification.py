"""Replaces elements of tuples by the operands, and tuples of all elements of a value by the value."""

from __future__ import annotations

from hlo_run.hlo.edit import Leftovers
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.walks import reaches


def simplify_tuples(module: HloModule) -> None:
    """Edit all computations in place, operands before their users; of fusion bodies only bodies of custom fusions with tuples."""
    unused = Leftovers()
    found = module.instructions_of("get-tuple-element", "tuple")
    sources = dict.fromkeys(i.operands[0] for i in found if i.opcode == "get-tuple-element")
    bodies = (i.fused_computation for i in sources if i.opcode == "fusion" and i.fusion_kind == "kCustom")
    computations = dict.fromkeys((*(i.parent for i in found), *bodies))
    for computation in computations:
        assert computation is not None
        for instruction in computation.post_order():
            if instruction in unused:
                continue
            simpler = _simpler(instruction)
            if simpler is not None and _is_sharded_alike(instruction, simpler) and _hands_order_on(instruction, simpler):
                module.replace(instruction, simpler)
                unused.add(instruction)
    unused.remove()


def _element(get: HloInstruction) -> HloInstruction | None:
    """Return the operand of a `tuple`, perhaps of one inside others, that a get-tuple-element returns; None if there is none."""
    operand = get.operands[0]
    source = _element(operand) if operand.opcode == "get-tuple-element" else operand
    return source.operands[get.tuple_index] if source is not None and source.opcode == "tuple" else None


def _hands_order_on(get: HloInstruction, element: HloInstruction) -> bool:
    """Give an element the control dependencies of the get-tuple-element that it replaces; False if it cannot have them.

    It cannot if something that must run before `get` needs the element, or comes after it in a schedule.
    """
    first, computation = get.control_predecessors, get.parent
    if not first:
        return True
    assert computation is not None, "the instruction is in a computation"
    assert computation.module is not None, "the computation is in a module"
    order = (computation.module.schedule or {}).get(computation)
    late = order is not None and any(order.index(one) > order.index(element) for one in first)
    if late or any(_needs(one, element) for one in first):
        return False
    element.control_predecessors = list(dict.fromkeys((*element.control_predecessors, *first)))
    for other in computation.instructions:
        if get in other.control_predecessors:
            kept = (element if one is get else one for one in other.control_predecessors if other is not element)
            other.control_predecessors = list(dict.fromkeys(kept))
    get.control_predecessors = []
    return True


def _needs(instruction: HloInstruction, source: HloInstruction) -> bool:
    return reaches(instruction, (source,), lambda i: (*i.operands, *i.control_predecessors))


def _is_sharded_alike(one: HloInstruction, two: HloInstruction) -> bool:
    """Return False for two values with different shardings, of which neither may be lost."""
    return one.sharding is None or two.sharding is None or one.sharding == two.sharding


def _simpler(instruction: HloInstruction) -> HloInstruction | None:
    """Return the existing value that `instruction` is equal to; None if it is not known."""
    if instruction.opcode == "get-tuple-element":
        return _element(instruction)
    if instruction.control_predecessors:
        return None
    if instruction.opcode != "tuple" or not instruction.operands:
        return None
    sources = {operand.operands[0] if operand.opcode == "get-tuple-element" else operand for operand in instruction.operands}
    (source,) = sources if len(sources) == 1 else (None,)
    if source is None or source.shape != instruction.shape:
        return None
    is_in_order = all(
        operand.opcode == "get-tuple-element" and operand.tuple_index == number
        for number, operand in enumerate(instruction.operands)
    )
    return source if is_in_order else None
