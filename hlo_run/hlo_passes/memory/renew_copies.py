"""Remove and make copies again after the schedule, as XLA does.

    copy = f32[8] copy(p), metadata={scheduling_name="copy"};  ROOT t = tuple(copy, x)
        =>   t = tuple(p, x);  e = get-tuple-element(t), index=0;  e.1 = get-tuple-element(t), index=1
             copy.1 = f32[8] copy(e);  ROOT t.1 = tuple(copy.1, e.1)

Copies go that no write needs in the order of the schedule, those of parameters, constants and results among them. Then values are
copied that must not share a buffer, and parameters and results of the entry that collectives would read or write in a memory
space of their own. Fusions lose results that nothing reads. New instructions are scheduled as early as possible. XLA's
`RunPostSchedulingCopyInsertion`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.collective_memory import uses_collective_memory
from hlo_run.hlo.edit import remove_dead
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.unread_results import remove_unread_results
from hlo_run.hlo_passes.memory.copy_steps import add_special_copies, remove_needless_copies
from hlo_run.hlo_passes.subgraphs.new_in_schedule import schedule_again
from hlo_run.pass_support.hlo_pass import PassContext


class RenewCopies(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "renew-copies"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        every = ctx.options.has_collective_memory
        has_space = uses_collective_memory(module, every)
        copies = has_space or bool(module.instructions_of("copy"))
        if copies:
            remove_needless_copies(module)
            remove_dead(module)
        orders, module.schedule = module.schedule, None
        if copies:
            add_special_copies(module, for_collectives=has_space, every=every)
        remove_dead(module)
        remove_unread_results(module)
        schedule_again(module, orders)
