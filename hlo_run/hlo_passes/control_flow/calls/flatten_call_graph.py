"""Clone computations so that every instruction calls its own; later passes may then change each one separately.

    a = call(p), to_apply=f;  b = call(q), to_apply=f   =>   a = call(p), to_apply=f;  b = call(q), to_apply=f.clone

XLA's `FlattenCallGraph`. With `control_flow_only`, computations embedded in a kernel (reducers, comparators, fusion bodies) may
be shared, but not with control flow.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.call_graph import flatten_call_graph, give_each_its_own
from hlo_run.pass_support.hlo_pass import PassContext


class FlattenCallGraph(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "flatten-call-graph"

    control_flow_only: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        (flatten_call_graph if self.control_flow_only else give_each_its_own)(module)
