"""Loops as Shardy sees them: values that no iteration changes are not part of the state.

    (i, w, x) = while((0, w, x)), body: (i + 1, w, f(x, w))   =>   (i, x, w) = while((0, x, w))

The invariant values of a loop go to the end of its state, in the order in which the loop uses them; those it does not use go.
Each use of an array that constants compute is an element of its own.
"""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.sharding.shardy.constants import values_split_for_good


class _Use(Struct, frozen=True):
    """A use of element `number` of a loop's state as an operand of `user` in a computation of the loop."""

    number: int
    user: HloInstruction
    operand: int


def put_invariants_last(module: HloModule) -> dict[HloInstruction, int]:
    """Edit the loops of a module; return for each loop how many leading elements of its state change."""
    changing: dict[HloInstruction, int] = {}
    done: set[HloComputation] = set()

    def visit(computation: HloComputation) -> None:
        if computation in done:
            return
        done.add(computation)
        for instruction in computation.post_order():
            if instruction.opcode in ("while", "conditional", "call"):
                for called in instruction.called_computations:
                    visit(called)
        for loop in [i for i in computation.post_order() if i.opcode == "while"]:
            changing[loop] = _reorder(module, loop, changing)

    visit(module.entry)
    return changing


def _reorder(module: HloModule, loop: HloInstruction, changing: dict[HloInstruction, int]) -> int:
    """Edit one loop; return how many elements of its state change."""
    condition, body = loop.while_condition, loop.while_body
    count = len(loop.shape.tuple_shapes)
    start, root = loop.operands[0], body.root
    parameters = [computation.parameters[0] for computation in (condition, body)]
    is_plain = start.opcode == "tuple" and root.opcode == "tuple"
    readers = [*loop.users, *(user for parameter in parameters for user in parameter.users)]
    if not is_plain or loop.is_root or any(reader.opcode != "get-tuple-element" for reader in readers):
        return count
    inner = parameters[1]
    invariant = [n for n, value in enumerate(root.operands) if _element_of(value, inner) == n]
    changed = [n for n in range(count) if n not in invariant]
    used = _in_order_of_use([condition, body], set(invariant), changing)
    assert loop.parent is not None
    split = values_split_for_good(loop.parent) if used else set[HloInstruction]()
    place_of_start: dict[HloInstruction, int] = {}
    place: dict[int, int] = {n: new for new, n in enumerate(changed)}
    order = list(changed)
    more: list[tuple[_Use, int]] = []
    for use in used:
        value = start.operands[use.number]
        if value in split and use.number in place:
            more.append((use, len(order)))
            order.append(use.number)
        elif value in split or value not in place_of_start:
            place_of_start[value] = place[use.number] = len(order)
            order.append(use.number)
        else:
            place[use.number] = place_of_start[value]
    for user in [user for user in loop.users if user.tuple_index in invariant]:
        module.replace_uses(user, start.operands[user.tuple_index])
        assert user.parent is not None
        user.parent.remove(user)
    if order != list(range(count)):
        _rewrite(module, loop, order, place)
    for use, number in more:
        element = use.user.operands[use.operand]
        in_body = body.add(_like(element, element.shape, [inner], number))
        _set_operand(body.root, number, in_body)
        if use.user is root:
            _set_operand(body.root, changed.index(use.operand), in_body)
        elif use.user.parent is body:
            _set_operand(use.user, use.operand, in_body)
        else:
            _set_operand(use.user, use.operand, condition.add(_like(element, element.shape, [parameters[0]], number)))
    return len(changed)


def _rewrite(module: HloModule, loop: HloInstruction, order: list[int], place: dict[int, int]) -> None:
    shape = Shape.make_tuple(tuple(loop.shape.tuple_shapes[n] for n in order))
    start, body = loop.operands[0], loop.while_body
    root = body.root
    assert loop.parent is not None
    loop.operands = (loop.parent.add(_like(start, shape, [start.operands[n] for n in order])),)
    body.add(_like(root, shape, [root.operands[n] for n in order]), is_root=True)
    for tuple_ in (start, root):
        if not tuple_.users and tuple_.parent is not None and not tuple_.is_root:
            tuple_.parent.remove(tuple_)
    for computation in (loop.while_condition, body):
        parameter = computation.parameters[0]
        for user in list(parameter.users):
            if user.tuple_index in place:
                user.attrs["index"] = place[user.tuple_index]
            else:
                computation.remove(user)
        parameter.shape = shape
    for user in loop.users:
        user.attrs["index"] = place[user.tuple_index]
    loop.shape = shape


def _like(old: HloInstruction, shape: Shape, operands: list[HloInstruction], index: int | None = None) -> HloInstruction:
    made = copy_instruction(old, operands, shape, called={})
    if index is not None:
        made.attrs["index"] = index
    return made


def _set_operand(user: HloInstruction, number: int, value: HloInstruction) -> None:
    user.operands = tuple([value if n == number else old for n, old in enumerate(user.operands)])


def _element_of(value: HloInstruction, parameter: HloInstruction) -> int | None:
    is_element = value.opcode == "get-tuple-element" and value.operands[0] is parameter
    return value.tuple_index if is_element else None


def _in_order_of_use(computations: list[HloComputation], invariant: set[int], changing: dict[HloInstruction, int]) -> list[_Use]:
    """Return the uses of the invariant elements in order; loops inside come before what they start with."""
    found: list[_Use] = []
    for computation in computations:
        parameter = computation.parameters[0]

        def use(user: HloInstruction, operand: int, parameter: HloInstruction = parameter) -> None:
            number = _element_of(user.operands[operand], parameter)
            if number is not None and number in invariant:
                found.append(_Use(number, user, operand))

        for instruction in computation.post_order():
            if instruction is computation.root and instruction.opcode == "tuple":
                for number in range(len(instruction.operands)):
                    if number not in invariant:
                        use(instruction, number)
            elif instruction.opcode == "while" and instruction.operands[0].opcode == "tuple":
                start = instruction.operands[0]
                count = len(start.operands)
                first = changing.get(instruction, count)
                for number in (*range(first, count), *range(first)):
                    use(start, number)
            elif instruction.opcode != "tuple" or not all(user.opcode == "while" for user in instruction.users):
                for number in range(len(instruction.operands)):
                    use(instruction, number)
    return found
