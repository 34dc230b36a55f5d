"""Copy results of the entry that must not share their buffer: parameters, constants, one value in two places.

    ROOT t = (f32[8], f32[8]) tuple(p, x)   =>   copy = f32[8] copy(p);  ROOT t = tuple(copy, x)

A result in the buffer of a parameter or constant would be freed or overwritten with it. A parameter that
`input_output_alias` assigns to this result stays. XLA's `AddSpecialCaseCopies`. In a module without loops and branches,
`copy-insertion` does this, as its last step.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.result_copies import copy_results
from hlo_run.hlo_passes.subgraphs.straight_copies import is_straight


class SpecialCaseCopies(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "special-case-copies"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the entry in place; new instructions are at its end."""
        del ctx
        if not is_straight(module):
            copy_results(module)
