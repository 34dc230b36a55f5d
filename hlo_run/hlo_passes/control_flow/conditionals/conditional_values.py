"""Removes elements of tuples that conditionals pass to their branches or return, but that have no reader."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import Editor, clone_with_fusions
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import TRANSFER
from hlo_run.hlo.values.shape import Shape


def branches(conditional: HloInstruction) -> tuple[HloComputation, ...]:
    """Return the branches, in the order of the operands that they take."""
    if "branch_computations" in conditional.called:
        return conditional.called["branch_computations"]
    return conditional.called["true_computation"] + conditional.called["false_computation"]


def may_change(conditional: HloInstruction) -> bool:
    """True if branches may be copied: they use no channel, and the conditional has no sharding."""
    waiting = list(branches(conditional))
    for computation in waiting:  # grows while we walk
        for instruction in computation.instructions:
            if instruction.channel_id is not None or instruction.opcode in TRANSFER:
                return False
            waiting += [called for called in instruction.called_computations if called not in waiting]
    return conditional.sharding is None


def narrow_results(module: HloModule, conditional: HloInstruction) -> None:
    """Let readers of results that are equal in all branches read the first of them, and drop the results without readers.

    The branches become copies with other roots.
    """
    if conditional.is_root or not conditional.shape.is_tuple:
        return
    if any(user.opcode != "get-tuple-element" for user in conditional.users):
        return
    _read_first(conditional)
    kept = sorted({user.tuple_index for user in conditional.users})
    if len(kept) == len(conditional.shape.tuple_shapes):
        return
    shape = Shape.make_tuple(tuple(conditional.shape.tuple_shapes[n] for n in kept))
    copies = [clone_with_fusions(module, branch) for branch in branches(conditional)]
    for copy in copies:
        old = copy.root
        editor = Editor(old)
        copy.root = editor.add("tuple", shape, [editor.element(old, n) for n in kept])
    _call(conditional, copies)
    conditional.shape = shape
    _renumber(conditional.users, kept)


def narrow_operands(module: HloModule, conditionals: Sequence[HloInstruction]) -> None:
    """Drop the elements of operands that a branch does not read. The branches become copies that take fewer elements."""
    for branch in dict.fromkeys(branch for conditional in conditionals for branch in branches(conditional)):
        (parameter,) = branch.parameters
        if parameter.is_root or not parameter.shape.is_tuple or any(u.opcode != "get-tuple-element" for u in parameter.users):
            continue
        kept = sorted({user.tuple_index for user in parameter.users})
        if len(kept) == len(parameter.shape.tuple_shapes):
            continue
        shape = Shape.make_tuple(tuple(parameter.shape.tuple_shapes[n] for n in kept))
        copy = clone_with_fusions(module, branch)
        (new,) = copy.parameters
        new.shape = shape
        _renumber(new.users, kept)
        for conditional in conditionals:
            _take_fewer(conditional, branch, copy, kept)


def _take_fewer(conditional: HloInstruction, branch: HloComputation, copy: HloComputation, kept: Sequence[int]) -> None:
    found = branches(conditional)
    if branch not in found:
        return
    editor = Editor(conditional)
    for number, called in enumerate(found):
        if called is branch:
            old = conditional.operands[1 + number]
            narrow = editor.tuple([editor.element(old, n) for n in kept])
            conditional.operands = (*conditional.operands[: 1 + number], narrow, *conditional.operands[2 + number :])
    _call(conditional, [copy if called is branch else called for called in found])


def _read_first(conditional: HloInstruction) -> None:
    roots = [branch.root for branch in branches(conditional)]
    if any(root.opcode != "tuple" for root in roots):
        return
    first: dict[tuple[HloInstruction, ...], int] = {}
    same = [first.setdefault(values, n) for n, values in enumerate(zip(*(root.operands for root in roots), strict=True))]
    for user in conditional.users:
        if same[user.tuple_index] != user.tuple_index:
            user.attrs["index"] = same[user.tuple_index]


def _renumber(elements: Sequence[HloInstruction], kept: Sequence[int]) -> None:
    for element in elements:
        element.attrs["index"] = kept.index(element.tuple_index)


def _call(conditional: HloInstruction, computations: Sequence[HloComputation]) -> None:
    if "branch_computations" in conditional.called:
        conditional.called = {"branch_computations": tuple(computations)}
    else:
        one, two = computations
        conditional.called = {"true_computation": (one,), "false_computation": (two,)}
