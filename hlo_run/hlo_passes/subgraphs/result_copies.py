"""Finds the results of the entry that must not share their buffer: parameters, constants, one value in two places."""

from __future__ import annotations

from hlo_run.analysis.defining_value import ShapeIndex, defining_value
from hlo_run.hlo.graph import HloInstruction, HloModule
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
