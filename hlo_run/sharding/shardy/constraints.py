"""Sharding constraints before the propagation: their effect on their operands, and on divided values in loops.

`given` maps instructions to the shardings of their leaves that are known before the propagation.
"""

from __future__ import annotations

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import AttributeValue, FrontendAttributes
from hlo_run.hlo.values.sharding import NamedSharding
from hlo_run.records import replace
from hlo_run.sharding.shardy.annotations import CONSTRAINT, TO_GLOBAL, TO_LOCAL, Annotations, all_dims, is_call, is_open
from hlo_run.sharding.values import shardy

Given = dict[HloInstruction, tuple[NamedSharding, ...]]
_EDGES: tuple[Opcode, ...] = ("while", "conditional", "opt-barrier")


def open_in_loops(given: Given, arguments: Given, changing: dict[HloInstruction, int]) -> None:
    """Give the divided values that a loop reads, but does not change, a constraint that leaves all dimensions open.

    `arguments` has the shardings of the parameters of manual computations.
    """
    known = {**arguments, **given}
    for loop in list(changing):
        start = loop.operands[0]
        if start.opcode != "tuple" or start.parent is None:
            continue
        operands = list(start.operands)
        for number in range(changing[loop], len(operands)):
            value = operands[number]
            source = _outermost(value, changing)
            if not value.shape.is_array or value.shape.rank == 0 or source not in known:
                continue
            sharding = known[source][0]
            if not is_open(sharding):
                # XLA leaves the unreduced axes out: a loop that reads a sum adds the whole of it on each device.
                free = replace(all_dims(sharding.mesh, value.shape.rank, is_closed=False), unreduced=sharding.unreduced)
                operands[number] = add_constraint(start.parent, value, free, given)
        if any(new is not old for new, old in zip(operands, start.operands, strict=True)):
            own = InstructionMaker(start.parent, attributes=start.attrs).add("tuple", start.shape, operands, name=start.name)
            loop.operands = (own,)
            if not start.users and not start.is_root:
                start.parent.remove(start)


def _outermost(value: HloInstruction, changing: dict[HloInstruction, int]) -> HloInstruction:
    """Return the value outside of all loops and branches for one that a loop does not change or a branch takes."""
    while True:
        parameter = value.operands[0] if value.opcode == "get-tuple-element" else value
        callers = parameter.parent.callers if parameter.opcode == "parameter" and parameter.parent is not None else []
        if len(callers) != 1:
            return value
        (caller,) = callers
        if caller.opcode == "while":
            taken = caller.operands[0]
        elif caller.opcode == "conditional":
            taken = caller.operands[1 + caller.called_computations.index(parameter.parent)]
        else:
            return value
        if parameter is not value:
            if taken.opcode != "tuple" or value.tuple_index < changing.get(caller, 0):
                return value
            taken = taken.operands[value.tuple_index]
        elif caller.opcode == "while":
            return value
        value = taken


def add_constraint(computation: HloComputation, value: HloInstruction, sharding: NamedSharding, given: Given) -> HloInstruction:
    """Add a constraint of a value."""
    attributes: dict[str, AttributeValue] = {
        "custom_call_target": CONSTRAINT,
        "frontend_attributes": FrontendAttributes(((shardy.SHARDING, ""),)),
    }
    if value.metadata is not None:
        attributes["metadata"] = value.metadata
    made = InstructionMaker(None, value.where, attributes).add("custom-call", value.shape, [value], name=value.name)
    given[made] = (sharding,)
    return computation.add(made)


def apply_constraints(module: HloModule, given: Given, annotations: Annotations) -> Given:
    """Let the operands of closed constraints have their shardings, unless something else divides them.

    Operands that stand for several values, such as results of loops, are replaced by the constraint where they are used. Those
    of constraints with unreduced axes are returned with the sharding.
    """
    sums: Given = {}
    done: set[HloComputation] = set()

    def visit(computation: HloComputation) -> None:
        if computation in done:
            return
        done.add(computation)
        order = computation.post_order()
        places = {instruction: number for number, instruction in enumerate(order)}
        for instruction in order:
            if instruction.opcode in ("while", "conditional", "call"):
                for called in instruction.called_computations:
                    visit(called)
            if is_call(instruction, CONSTRAINT) and instruction in given:
                _use_last_of_chain(instruction, given, places)
                _apply(instruction, instruction.operands[0], given[instruction][0], given, sums)
            elif is_call(instruction, TO_LOCAL):
                shardings = annotations.shardings(instruction, len(instruction.operands), shardy.IN_SHARDINGS) or ()
                for operand, sharding in zip(instruction.operands, shardings, strict=False):
                    _apply(instruction, operand, sharding, given, sums)

    visit(module.entry)
    return sums


def _apply(user: HloInstruction, value: HloInstruction, sharding: NamedSharding, given: Given, sums: Given) -> None:
    is_closed = all(dim.is_closed for dim in sharding.dims)
    if value in given or _is_manual_result(value) or not is_closed or _is_constrained_otherwise(value, sharding, given):
        return
    if not _stands_for_several(value):
        given[value] = (sharding,)
        return
    constraint = user
    if not is_call(user, CONSTRAINT):
        assert value.parent is not None
        constraint = add_constraint(value.parent, value, sharding, given)
    for other in [other for other in value.users if other is not constraint]:
        other.replace_operand(value, constraint)
    if sharding.unreduced:
        sums[value] = (sharding,)


def _is_constrained_otherwise(value: HloInstruction, sharding: NamedSharding, given: Given) -> bool:
    return any(is_call(user, CONSTRAINT) and user in given and given[user][0] != sharding for user in value.users)


def _is_manual_result(value: HloInstruction) -> bool:
    """True for a result of a manual computation, which says how it is divided."""
    return is_call(value.operands[0] if value.opcode == "get-tuple-element" else value, TO_GLOBAL)


def _stands_for_several(value: HloInstruction) -> bool:
    """True for a result or an inner value of a loop, a branch or a barrier."""
    if value.opcode == "get-tuple-element":
        source = value.operands[0]
        is_inner = source.opcode == "parameter" and source.parent is not None and not source.parent.is_entry
        return source.opcode in _EDGES or is_inner
    if value.opcode == "parameter":
        return value.parent is not None and not value.parent.is_entry
    return value.opcode in _EDGES


def _use_last_of_chain(head: HloInstruction, given: Given, places: dict[HloInstruction, int]) -> None:
    """Let later users of the value that begins a chain of constraints use the end of the chain."""
    value = head.operands[0]
    if is_call(value, CONSTRAINT) or value in given:
        return
    if any(user is not head and is_call(user, CONSTRAINT, TO_LOCAL) for user in value.users):
        return
    tail = head
    while len(tail.users) == 1 and is_call(tail.users[0], CONSTRAINT):
        tail = tail.users[0]
    if tail is head or any(is_call(user, CONSTRAINT, TO_LOCAL) for user in tail.users):
        return
    end = places.get(tail, len(places))
    for user in list(value.users):
        is_result = user.is_root and user.parent is not None and user.parent.is_entry
        if user is not head and not is_result and places.get(user, -1) > end:
            user.replace_operand(value, tail)
