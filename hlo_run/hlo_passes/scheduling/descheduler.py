"""Remove the schedule of a module.

    HloModule m, is_scheduled=true   =>   HloModule m

XLA's `HloDescheduler`. Control dependencies stay.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.despecializing import remove_schedule
from hlo_run.pass_support.hlo_pass import PassContext


class HloDescheduler(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "hlo-descheduler"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        remove_schedule(module)
