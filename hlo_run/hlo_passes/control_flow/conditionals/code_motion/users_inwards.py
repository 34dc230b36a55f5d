"""Moves users of a conditional's result into its branches."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import Editor, InstructionMaker, clone_called, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.boundary import Boundary


def move_users_in(module: HloModule, conditional: HloInstruction, moved: Sequence[Boundary]) -> None:
    """Move users, operands before users, to the ends of the branches; does nothing if that cannot be done.

    The first of them may be a get-tuple-element of the conditional. The branches no longer return its element if it has one user.
    """
    values = [boundary.first for boundary in moved]
    if conditional.is_root or (not conditional.shape.is_tuple and len(conditional.users) > 1):
        return
    move = _Move(module, conditional)
    first = values[0]
    is_element = first.opcode == "get-tuple-element" and first.operands[0] is conditional
    copied = values[1:] if is_element else values
    if any(value.parent is not conditional.parent for value in values) or not _reads_only(conditional, first, copied):
        return
    move.open_roots(first if is_element and len(first.users) == 1 else None)
    for number, value in enumerate(copied):
        is_inner = number + 1 < len(copied) and value.users == [copied[number + 1]]
        move.copy_in(value, returns=not is_inner)
    move.close(values)


def _reads_only(conditional: HloInstruction, first: HloInstruction, copied: Sequence[HloInstruction]) -> bool:
    """True if all operands are constants, elements of the conditional, or earlier ones of the values."""
    known: set[HloInstruction] = set() if conditional.shape.is_tuple else {conditional}
    if first not in copied:
        known.add(first)
    for value in copied:
        for operand in value.operands:
            is_element = operand.opcode == "get-tuple-element" and operand.operands[0] is conditional
            if operand not in known and operand.opcode != "constant" and not is_element:
                return False
        known.add(value)
    return True


class _Move:
    def __init__(self, module: HloModule, conditional: HloInstruction) -> None:
        self._module = module
        self._conditional = conditional
        self._branches = conditional.called_computations
        # Of values outside: what they are in each branch.
        self._inside: dict[HloInstruction, list[HloInstruction]] = {}

    def open_roots(self, replaced: HloInstruction | None) -> None:
        """Make the branches' roots tuples. Leave out the element that `replaced` reads, and a result that is not a tuple."""
        index = None if replaced is None else replaced.tuple_index
        for branch in self._branches:
            old = branch.root
            editor = Editor(old, derives=False)
            if old.shape.is_tuple:
                elements = [editor.element(old, number) for number in range(len(old.shape.tuple_shapes))]
            else:
                elements = list[HloInstruction]()
                self._inside.setdefault(self._conditional, []).append(old)
            if replaced is not None and index is not None:
                self._inside.setdefault(replaced, []).append(elements.pop(index))
            branch.root = editor.tuple(elements)
            if old.opcode == "tuple" and not old.users:
                branch.remove(old)
        for user in self._conditional.users if index is not None else ():
            if user.opcode == "get-tuple-element" and index is not None and user.tuple_index > index:
                user.attrs["index"] = user.tuple_index - 1

    def copy_in(self, value: HloInstruction, returns: bool) -> None:
        """Copy a value into each branch. If it `returns`, the branches return it, and its users read it there."""
        copies: list[HloInstruction] = []
        for place, branch in enumerate(self._branches):
            operands = [self._operand(operand, place, branch) for operand in value.operands]
            copies.append(branch.add(copy_instruction(value, operands)))
            clone_called(self._module, copies[-1])
        self._inside[value] = copies
        if not returns:
            return
        index = len(self._branches[0].root.operands)
        for copy, branch in zip(copies, self._branches, strict=True):
            root = branch.root
            root.operands = (*root.operands, copy)
            root.shape = Shape.make_tuple(tuple(operand.shape for operand in root.operands))
        parent = self._conditional.parent
        assert parent is not None, "the conditional is in a computation"
        get = InstructionMaker(where=value.where).add("get-tuple-element", value.shape, [self._conditional], index=index)
        self._module.replace_uses(value, parent.add(get))

    def _operand(self, operand: HloInstruction, place: int, branch: HloComputation) -> HloInstruction:
        if operand in self._inside:
            return self._inside[operand][place]
        if operand.opcode == "constant":
            return branch.add(copy_instruction(operand, ()))
        return branch.root.operands[operand.tuple_index]

    def close(self, values: Sequence[HloInstruction]) -> None:
        """Give the conditional the shape of its branches' roots, and remove the values."""
        self._conditional.shape = self._branches[0].root.shape
        self._conditional.attrs.pop("sharding", None)
        for value in reversed(values):
            if value.parent is not None and not value.users and not value.is_root:
                value.parent.remove(value)
