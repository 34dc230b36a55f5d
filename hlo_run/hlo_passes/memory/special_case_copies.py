"""Copy results of the entry that must not share their buffer: parameters, constants, one value in two places.

    ROOT t = (f32[8], f32[8]) tuple(p, x)   =>   copy = f32[8] copy(p);  ROOT t = tuple(copy, x)

A result in the buffer of a parameter or constant would be freed or overwritten with it. A parameter that
`input_output_alias` assigns to this result stays. XLA's `AddSpecialCaseCopies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.buffers.copy_chains import by_schedule
from hlo_run.analysis.defining_value import ShapeIndex, defining_value
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.tuple_edits import copy_leaves
from hlo_run.hlo.verify.config import aliases
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.straight_copies import elide_copies


@dataclass(frozen=True)
class SpecialCaseCopies:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "special-case-copies"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the entry in place; new instructions are at its end."""
        del ctx
        schedule = module.schedule
        if schedule is not None and executed_computations(module) == [module.entry]:
            # The schedule may make copies superfluous.
            elide_copies(module, module.entry, by_schedule(schedule[module.entry]))
        root = module.entry.root
        shared = _leaves_to_copy(module, root)
        if shared:
            module.entry.root = copy_leaves(module.entry, root, shared).value


def _leaves_to_copy(module: HloModule, root: HloInstruction) -> set[ShapeIndex]:
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
