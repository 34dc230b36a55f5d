"""Faulty HLO passes, and their rows in front of the pass table, for tests of the tools that find faults."""

from __future__ import annotations

from typing import ClassVar

import pytest

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pipeline import compile as compiling
from hlo_run.pipeline.table import PIPELINE, HloGroup, HloRow


class _Swaps:
    """Swaps the operands of one opcode in the entry, which changes its value or not."""

    opcode: ClassVar[Opcode]

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        del ctx
        for instruction in module.entry.instructions:
            if instruction.opcode == self.opcode:
                instruction.operands = tuple(reversed(instruction.operands))


class SwapsSubtractions(_Swaps):
    name: ClassVar[str] = "swaps-subtractions"
    opcode: ClassVar[Opcode] = "subtract"


class SwapsAdditions(_Swaps):
    name: ClassVar[str] = "swaps-additions"
    opcode: ClassVar[Opcode] = "add"


def plant(monkeypatch: pytest.MonkeyPatch, made: HloPass) -> None:
    """Let every compilation run the pass first."""
    table = (HloGroup("planted", (HloRow(made.name, lambda c: made),)), *PIPELINE)
    monkeypatch.setattr(compiling, "PIPELINE", table)
