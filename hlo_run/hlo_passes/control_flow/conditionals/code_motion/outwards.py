"""Moves equal instructions at the ends of all branches of a conditional behind it."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.boundary import Boundary


def can_move_out(conditional: HloInstruction, moved: Sequence[Boundary], stops: Sequence[Boundary]) -> bool:
    """True if the branches end in tuples, and the moving instructions begin there and read only each other and the stops."""
    roots = [branch.root for branch in conditional.called_computations]
    if conditional.is_root or any(root.opcode != "tuple" or root.users for root in roots):
        return False
    known = {*moved, *stops}
    return moved[0].values == tuple(roots) and all(b.next(n) in known for b in moved for n in range(b.next_count))


def move_out(module: HloModule, conditional: HloInstruction, moved: Sequence[Boundary], stops: Sequence[Boundary]) -> None:
    """Move boundaries, users before operands, behind the conditional, which then returns the stops.

    All users of the conditional must be get-tuple-elements, and `can_move_out` must be true.
    """
    parent = conditional.parent
    assert parent is not None, "the conditional is in a computation"
    olds = list(conditional.users)
    outside: dict[Boundary, HloInstruction] = {}
    for number, stop in enumerate(stops):
        get = InstructionMaker(where=stop.first.where).add("get-tuple-element", stop.first.shape, [conditional], index=number)
        outside[stop] = parent.add(get)
    for boundary in reversed(moved):
        operands = [outside[boundary.next(number)] for number in range(boundary.next_count)]
        outside[boundary] = parent.add(copy_instruction(boundary.first, operands))
    for old in olds:
        module.replace_uses(old, outside[moved[0].next(old.tuple_index)])
        parent.remove(old)
    for place, branch in enumerate(conditional.called_computations):
        branch.root = Editor(branch.root, derives=False).tuple([stop.values[place] for stop in stops])
        for boundary in moved:
            value = boundary.values[place]
            if value.parent is branch and not value.users and not value.is_root:
                branch.remove(value)
    conditional.shape = conditional.called_computations[0].root.shape
    conditional.attrs.pop("sharding", None)
