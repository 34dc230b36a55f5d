"""Rename constants to names that are valid in LLVM IR and PTX: `.` and `-` become `_`.

    constant.1 = s32[] constant(3)   =>   constant_1 = s32[] constant(3)

XLA's `SanitizeConstantNames`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.names import NameUniquer
from hlo_run.hlo_passes.hlo_pass import PassContext


@dataclass(frozen=True)
class SanitizeConstantNames:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sanitize-constant-names"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place."""
        del ctx
        unsuitable = [i for i in module.instructions_of("constant") if re.search("[.-]", i.name)]
        if not unsuitable:
            return
        names = NameUniquer("_")
        chosen = set(unsuitable)
        for instruction in module.instructions:
            if instruction not in chosen:
                names.unique(instruction.name)
        for constant in unsuitable:
            constant.name = module.unique_instruction_name(names.unique(re.sub("[.-]", "_", constant.name)))
            constant.touch()
