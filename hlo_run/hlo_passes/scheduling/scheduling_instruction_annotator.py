"""Write the name of every instruction into its metadata, so that later renamings do not hide it from profiles.

    add = f32[8] add(p, p)   =>   add = f32[8] add(p, p), metadata={scheduling_name="add"}

XLA's `SchedulingInstructionAnnotator`, which runs after the latency-hiding scheduler. Constants get none, since they are
renamed later.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.latency.choice import hides_latency
from hlo_run.hlo.attributes.table import OpMetadata
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class SchedulingInstructionAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scheduling-instruction-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the metadata of all instructions but constants in place."""
        if not hides_latency(ctx.options, ctx.target, module):
            return
        for instruction in module.instructions:
            old = instruction.metadata
            if instruction.opcode != "constant" and (not isinstance(old, OpMetadata) or not old.scheduling_name):
                known = old if isinstance(old, OpMetadata) else OpMetadata()
                instruction.attrs["metadata"] = replace(known, scheduling_name=instruction.name)
