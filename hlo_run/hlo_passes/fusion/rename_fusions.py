"""Rename fusions and their computations after the heroes of their kernels.

    fusion.3 = f32[8] fusion(p), kind=kInput, calls=fused_computation.3
      =>   input_reduce_fusion = f32[8] fusion(p), kind=kInput, calls=fused_reduce

The name has each hero opcode once, in alphabetical order. XLA's `rename_fusions.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.tiling.fusion_roots_and_heroes import find_heroes, fusion_roots
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_KINDS = {"kLoop": "loop", "kInput": "input"}


class RenameFusions(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "rename_fusions"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place; only fusions of kinds kLoop and kInput are renamed."""
        del ctx
        for fusion in module.instructions_of("fusion"):
            kind = _KINDS.get(fusion.fusion_kind)
            body = fusion.fused_computation
            if kind is None:
                continue
            opcodes = {hero.opcode.replace("-", "_") for hero in find_heroes(fusion_roots(fusion))}
            heroes = "_".join(sorted(opcodes))
            fusion.name = module.unique_instruction_name(f"{kind}_{heroes}_fusion")
            body.name = module.unique_computation_name(f"fused_{heroes}")
            fusion.touch()
