"""Say how many bytes of collectives may be combined, and which collectives nothing can run beside.

    HloModule m; r = f32[8] all-reduce(x)
        =>   HloModule m, frontend_attributes={suggested_combiner_threshold="80695699046"}
             r = f32[8] all-reduce(x), frontend_attributes={sync_collective="true"}

A copy of the module is scheduled: `first` makes collectives asynchronous and orders instructions, `then` moves them apart and
makes those synchronous again that have nothing between start and done. The threshold is the memory that the schedule leaves of
the GPU's. The combiners read both. XLA's `CollectiveCombinerAnnotator`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.heap_simulator import peak_bytes
from hlo_run.analysis.latency.async_kinds import gpu_config
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo_passes.hlo_pass import HloPass, PassContext

_NUMBER = "collective_id"


class CollectiveCombinerAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    first: tuple[HloPass, ...]
    then: tuple[HloPass, ...]
    name: ClassVar[str] = "collective-combiner-annotator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        rehearsal = module.clone()
        collectives = {str(n): i for n, i in enumerate(module.instructions_of(*COLLECTIVE))}
        for number, copy in enumerate(rehearsal.instructions_of(*COLLECTIVE)):
            _note(copy, _NUMBER, str(number))
        unwatched = replace(ctx, observers=())
        for step in self.first:
            step.apply(unwatched, rehearsal)
        assert rehearsal.schedule is not None, "the first steps make a schedule"
        analysis = analyze_aliases(analyze_dataflow(rehearsal))
        used_bytes = peak_bytes(analysis, rehearsal.schedule, BufferSharing())
        for step in self.then:
            step.apply(unwatched, rehearsal)
        left_bytes = ctx.target.device_memory_size_bytes * ctx.options.xla_gpu_memory_limit_slop_factor // 100 - used_bytes
        if left_bytes <= 0:
            return
        given = module.attrs.get("frontend_attributes")
        entries = dict(given.entries) if isinstance(given, FrontendAttributes) else {}
        entries["suggested_combiner_threshold"] = str(left_bytes)
        module.attrs["frontend_attributes"] = FrontendAttributes(tuple(sorted(entries.items())))
        module.version += 1
        for instruction in (i for c in rehearsal.computations for i in c.instructions):
            number = dict((instruction.frontend_attributes or FrontendAttributes()).entries).get(_NUMBER)
            if number is not None and gpu_config(instruction).get("collective_backend_config", {}).get("is_sync"):
                _note(collectives[number], "sync_collective", "true")


def _note(instruction: HloInstruction, name: str, value: str) -> None:
    entries = dict((instruction.frontend_attributes or FrontendAttributes()).entries) | {name: value}
    instruction.attrs["frontend_attributes"] = FrontendAttributes(tuple(sorted(entries.items())))
