"""Rename constants to names that are valid in LLVM IR and PTX: `.` and `-` become `_`.

    constant.1 = s32[] constant(3)   =>   constant_1 = s32[] constant(3)

XLA's `SanitizeConstantNames`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.names import NameUniquer
from hlo_run.pass_support.hlo_pass import PassContext


class SanitizeConstantNames(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sanitize-constant-names"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place."""
        del ctx
        names = NameUniquer("_")
        constants: list[HloInstruction] = []
        for instruction in module.instructions:
            if instruction.opcode == "constant":
                constants.append(instruction)
            else:
                names.unique(instruction.name)
        for constant in constants:
            name = names.unique(re.sub("[.-]", "_", constant.name))
            if name != constant.name:
                constant.name = name
                constant.touch()
            # Later instructions get other names.
            module.unique_instruction_name(name)
