"""Copy results of the entry that must not share their buffer: parameters, constants, one value in two places.

    ROOT t = (f32[8], f32[8]) tuple(p, x)   =>   copy = f32[8] copy(p);  ROOT t = tuple(copy, x)

A result in the buffer of a parameter or constant would be freed or overwritten with it. A parameter that
`input_output_alias` assigns to this result stays. XLA's `AddSpecialCaseCopies`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from hlo_run.analysis.buffers.copy_chains import by_schedule
from hlo_run.analysis.defining_value import ShapeIndex
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.tuple_edits import copy_leaves
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.result_copies import results_to_copy
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
        shared = results_to_copy(module, root)
        if not shared:
            return
        _count_elements(module, root.shape, (), shared)
        module.entry.root = copy_leaves(module.entry, root, shared).value
        if root.opcode == "tuple" and not root.users:
            module.entry.remove(root)


def _count_elements(module: HloModule, shape: Shape, index: ShapeIndex, shared: Collection[ShapeIndex]) -> None:
    """Use the names of the get-tuple-elements that XLA makes, and removes again, for each tuple with a copied leaf."""
    if shape.is_tuple and any(leaf[: len(index)] == index for leaf in shared):
        for number, element in enumerate(shape.tuple_shapes):
            module.unique_instruction_name("get-tuple-element")
            _count_elements(module, element, (*index, number), shared)
