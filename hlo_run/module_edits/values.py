"""Edits of values: cut the entry at an instruction, and replace instructions by parameters, constants and operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hlo_run.hlo.edit import Editor, InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import SIDE_EFFECT
from hlo_run.hlo.values.shape import Shape
from hlo_run.walks import walk

LEAVES: frozenset[Opcode] = frozenset(("parameter", "constant"))


def is_data(shape: Shape) -> bool:
    """True for arrays, and tuples of nothing but arrays."""
    return all(leaf.is_array for _, leaf in shape.leaves())


def set_root(computation: HloComputation, values: Sequence[HloInstruction]) -> bool:
    """Make the values, or the only one, a computation's result. Remove instructions with effects that they do not need."""
    chosen = list(dict.fromkeys(values))
    if not chosen or not all(is_data(value.shape) for value in chosen):
        return False
    root = chosen[0] if len(chosen) == 1 else Editor(chosen[0]).tuple(chosen)
    if root is computation.root:
        return False
    computation.root = root
    drop_unneeded(computation)
    return True


def drop_unneeded(computation: HloComputation) -> None:
    """Remove everything that the root does not need, instructions with effects too. Parameters stay."""
    needed = set(walk([computation.root], lambda i: (*i.operands, *i.control_predecessors)))
    gone = {i for i in computation.instructions if i not in needed and i.opcode != "parameter"}
    computation.remove_all(gone)


def cut_after(module: HloModule, count: int) -> bool:
    """Keep the first `count` instructions of the entry; the values that the others use become the result."""
    order = module.entry.post_order()
    kept = set(order[:count])
    rest = order[count:]
    used = dict.fromkeys(operand for user in rest for operand in user.operands if operand in kept)
    frontier = [value for value in used if value.opcode not in LEAVES and is_data(value.shape)]
    if module.entry.root in kept and module.entry.root not in frontier:
        frontier.append(module.entry.root)
    return set_root(module.entry, frontier)


def cut_before(module: HloModule, count: int) -> bool:
    """Replace the values of the entry's first `count` instructions that others use by parameters."""
    order = module.entry.post_order()
    return by_parameters(module, order[:count])


def by_parameters(module: HloModule, group: Iterable[HloInstruction]) -> bool:
    """Replace those instructions of a group in the entry that others use by parameters of the entry."""
    entry = module.entry
    inside = set(group)
    changed = False
    for old in inside:
        if old.opcode in LEAVES or not is_data(old.shape) or old is entry.root:
            continue
        outside = [user for user in old.users if user not in inside]
        if outside:
            new = InstructionMaker(entry, old.where).parameter(len(entry.parameters), old.shape, f"p_{old.name}")
            for user in outside:
                user.replace_operand(old, new)
            changed = True
    if changed:
        drop_unneeded(entry)
    return changed


def by_constant(instruction: HloInstruction) -> bool:
    """Replace an instruction by ones: a constant, or its broadcast."""
    if instruction.opcode in LEAVES or not instruction.shape.is_array or instruction.parent is None:
        return False
    module = instruction.parent.module
    assert module is not None
    module.replace(instruction, ones(instruction))
    return True


def ones(instruction: HloInstruction) -> HloInstruction:
    """Add a value of ones with the shape of an instruction to its computation."""
    editor = Editor(instruction)
    one = editor.constant(1, instruction.shape.element_type)
    return editor.add("broadcast", instruction.shape, [one], dimensions=()) if instruction.shape.dims else one


def by_operand(instruction: HloInstruction, operand: HloInstruction) -> bool:
    """Replace an instruction by one of its operands of the same shape, or by an element of a tuple with that shape."""
    parent = instruction.parent
    if parent is None or parent.module is None or instruction.opcode in SIDE_EFFECT:
        return False
    value = operand
    if not operand.shape.compatible(instruction.shape):
        if not operand.shape.is_tuple or operand.opcode == "tuple":
            return False
        places = [n for n, part in enumerate(operand.shape.tuple_shapes) if part.compatible(instruction.shape)]
        if not places or instruction.opcode == "get-tuple-element":
            return False
        value = Editor(instruction).element(operand, places[0])
    parent.module.replace(instruction, value)
    return True


def root_is(module: HloModule, instruction: HloInstruction) -> bool:
    """Make one instruction of the entry its result."""
    return instruction.opcode not in LEAVES and set_root(module.entry, [instruction])


def without_outputs(module: HloModule, dropped: set[int]) -> bool:
    """Drop elements of the entry's result, a tuple."""
    root = module.entry.root
    if root.opcode != "tuple":
        return False
    return set_root(module.entry, [operand for n, operand in enumerate(root.operands) if n not in dropped])
