"""Moves operands of a conditional's arguments into the branches that use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.boundary import Boundary


def move_operands_in(module: HloModule, conditional: HloInstruction, moved: Sequence[Boundary]) -> None:
    """Move values, users before operands, into the branches. Their operands take their places in the argument's tuple.

    A broadcast with more users stays for the others.
    """
    holder: HloInstruction | None = None
    for boundary in moved:
        value = boundary.first
        if value.opcode == "tuple" or value.parent is not conditional.parent:
            continue
        if len(value.users) == 1:
            holder = value.users[0]
        if holder is not None and value in holder.operands:
            holder = _move(module, conditional, holder, value)


class _Way(Struct, frozen=True):
    """The tuples from the innermost that holds a value to the conditional's argument, and the elements that lead there."""

    tuples: tuple[HloInstruction, ...]
    indices: tuple[tuple[int, ...], ...]

    @property
    def argument(self) -> HloInstruction:
        """The operand of the conditional."""
        return self.tuples[-1]


def _way(conditional: HloInstruction, holder: HloInstruction, value: HloInstruction) -> _Way | None:
    """Return the way, None if another instruction than a tuple with one user is on it."""
    tuples: list[HloInstruction] = []
    indices: list[tuple[int, ...]] = []
    while holder is not conditional:
        if holder.opcode != "tuple" or len(holder.users) != 1 or holder.is_root:
            return None
        tuples.append(holder)
        indices.append(tuple(n for n, operand in enumerate(holder.operands) if operand is value))
        value, holder = holder, holder.users[0]
    return _Way(tuple(tuples), tuple(indices))


def _move(module: HloModule, conditional: HloInstruction, holder: HloInstruction, value: HloInstruction) -> HloInstruction | None:
    """Move one value; return the tuple that holds its operands now, None if nothing was done."""
    operands = list(dict.fromkeys(value.operands))
    if holder is conditional:
        return _move_argument(module, conditional, value, operands)
    way = _way(conditional, holder, value)
    if way is None:
        return None
    # The branches must not use tuples whose elements change as a whole.
    users = _users_of(conditional, way.argument)
    for branch in users:
        _spell_out(branch, [branch.parameters[0]], way.indices[::-1])
    places = _replace_in_tuple(holder, value, way.indices[0], operands)
    for tuple_ in way.tuples:
        tuple_.shape = Shape.make_tuple(tuple(operand.shape for operand in tuple_.operands))
    for branch in users:
        _compute_inside(module, branch, way, value, places)
    _remove(value)
    return holder


def _users_of(conditional: HloInstruction, argument: HloInstruction) -> list[HloComputation]:
    pairs = zip(conditional.called_computations, conditional.operands[1:], strict=True)
    return [branch for branch, operand in pairs if operand is argument]


def _move_argument(
    module: HloModule, conditional: HloInstruction, value: HloInstruction, operands: Sequence[HloInstruction]
) -> HloInstruction:
    """Move a value that is an argument itself; the new argument is a tuple of its operands."""
    users = _users_of(conditional, value)
    argument = Editor(value, derives=False).tuple(operands)
    conditional.operands = tuple(
        [argument if operand is value and place else operand for place, operand in enumerate(conditional.operands)]
    )
    places = {operand: place for place, operand in enumerate(operands)}
    for branch in users:
        parameter = branch.parameters[0]
        olds = list(parameter.users)
        is_root = parameter.is_root
        parameter.shape = argument.shape
        inserted = _insert(branch, parameter, value, places)
        for user in olds:
            user.replace_operand(parameter, inserted)
        if is_root:
            branch.root = inserted
    _remove(value)
    return argument


def _remove(value: HloInstruction) -> None:
    if not value.users and not value.is_root and value.parent is not None:
        value.parent.remove(value)


def _replace_in_tuple(
    holder: HloInstruction, value: HloInstruction, indices: Sequence[int], operands: Sequence[HloInstruction]
) -> dict[HloInstruction, int]:
    """Let a tuple hold the operands of a value instead of it; return the element that each became."""
    waiting = list(operands)
    elements = list(holder.operands)
    places: dict[HloInstruction, int] = {}
    for index in indices:
        new = waiting.pop(0) if waiting else Editor(value, derives=False).tuple(())
        elements[index] = new
        places.setdefault(new, index)
    for operand in waiting:
        if operand not in elements:
            elements.append(operand)
        places[operand] = elements.index(operand)
    holder.operands = tuple(elements)
    return places


def _spell_out(branch: HloComputation, values: Iterable[HloInstruction], levels: Sequence[Sequence[int]]) -> None:
    """Let users of tuples read them element by element, along the elements of each level."""
    for value in values:
        whole = [user for user in value.users if user.opcode != "get-tuple-element"]
        if value.is_root or whole:
            editor = Editor(value, derives=False)
            again = editor.tuple([editor.element(value, n) for n in range(len(value.shape.tuple_shapes))])
            for user in whole:
                user.replace_operand(value, again)
            if value.is_root:
                branch.root = again
        if len(levels) > 1:
            _spell_out(branch, [user for user in value.users if user.tuple_index in levels[0]], levels[1:])


def _compute_inside(
    module: HloModule, branch: HloComputation, way: _Way, value: HloInstruction, places: Mapping[HloInstruction, int]
) -> None:
    """Compute a value in a branch from the new elements of its parameter, if the branch uses it."""
    tuples = [branch.parameters[0]]
    for place in reversed(range(len(way.tuples))):
        for tuple_ in tuples:
            tuple_.shape = way.tuples[place].shape
        found = [user for tuple_ in tuples for user in tuple_.users if user.tuple_index in way.indices[place]]
        if not found:
            return
        if place:
            tuples = found
            continue
        inserted = _insert(branch, tuples[0], value, places)
        for old in found:
            module.replace_uses(old, inserted)
            branch.remove(old)


def _insert(
    branch: HloComputation, source: HloInstruction, value: HloInstruction, places: Mapping[HloInstruction, int]
) -> HloInstruction:
    """Add a copy of a value that reads its operands from the elements of a tuple."""
    editor = Editor(source, derives=False)
    read = {operand: editor.element(source, places[operand]) for operand in dict.fromkeys(value.operands)}
    return branch.add(copy_instruction(value, [read[operand] for operand in value.operands]))
