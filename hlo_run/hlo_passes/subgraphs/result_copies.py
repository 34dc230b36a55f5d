"""Finds and copies the results of the entry that must not share their buffer: parameters, constants, one value in two places."""

from __future__ import annotations

from collections.abc import Collection

from hlo_run.analysis.defining_value import ShapeIndex, defining_value
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.tuple_edits import copy_leaves
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.config import aliases


def results_to_copy(module: HloModule, root: HloInstruction) -> set[ShapeIndex]:
    """Return the leaves of `root`, a value of the entry, that need a buffer of their own.

    A parameter that `input_output_alias` assigns to the leaf needs none.
    """
    seen: set[tuple[HloInstruction, ShapeIndex]] = set()
    found: set[ShapeIndex] = set()
    parameters = module.entry.parameters
    kept = {output: [(parameters[number], place)] for output, number, place, _ in aliases(module)}
    for index, _ in root.shape.leaves():
        source = defining_value(root, index)
        if source in kept.get(index, ()):
            continue
        if source in seen or source[0].opcode in ("parameter", "constant"):
            found.add(index)
        seen.add(source)
    return found


def copy_results(module: HloModule) -> None:
    """Let the entry return copies of the results that must not share their buffer; new instructions are at its end."""
    root = module.entry.root
    shared = results_to_copy(module, root)
    if not shared:
        return
    _name_elements(module, root, root.shape, (), shared)
    module.entry.root = copy_leaves(module.entry, root, shared).value
    if root.opcode == "tuple" and not root.users:
        module.entry.remove(root)


def _name_elements(
    module: HloModule, value: HloInstruction | None, shape: Shape, index: ShapeIndex, shared: Collection[ShapeIndex]
) -> None:
    """Use the names of the get-tuple-elements that XLA makes, and removes again, for each tuple with a copied leaf.

    The operands of a `tuple` that are get-tuple-elements too take these names, as in XLA.
    """
    if shape.is_tuple and any(leaf[: len(index)] == index for leaf in shared):
        for number, element in enumerate(shape.tuple_shapes):
            name = module.unique_instruction_name("get-tuple-element")
            operand = value.operands[number] if value is not None and value.opcode == "tuple" else None
            if operand is not None and operand.opcode == "get-tuple-element":
                operand.name = name
            _name_elements(module, operand, element, (*index, number), shared)
