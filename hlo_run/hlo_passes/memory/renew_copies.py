"""Remove and make copies again after the schedule, as XLA does.

    copy = f32[8] copy(p), metadata={scheduling_name="copy"};  ROOT t = tuple(copy, x)
        =>   t = tuple(p, x);  e = get-tuple-element(t), index=0;  e.1 = get-tuple-element(t), index=1
             copy.1 = f32[8] copy(e);  ROOT t.1 = tuple(copy.1, e.1)

Copies go that no write needs in the order of the schedule, those of parameters, constants and results among them. Then values are
copied that must not share a buffer, and fusions lose results that nothing reads. New instructions are scheduled as early as
possible. XLA's `RunPostSchedulingCopyInsertion`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_dead, remove_unread_results
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.copy_steps import add_special_copies, remove_needless_copies
from hlo_run.hlo_passes.subgraphs.new_in_schedule import schedule_again


class RenewCopies(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "renew-copies"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        has_copies = bool(module.instructions_of("copy"))
        if has_copies:
            remove_needless_copies(module)
            remove_dead(module)
        orders, module.schedule = module.schedule, None
        if has_copies:
            add_special_copies(module)
        remove_dead(module)
        remove_unread_results(module)
        schedule_again(module, orders)
