"""Clone computations so that every call, loop and branch has its own; later passes may then change each one separately.

    a = call(p), to_apply=f;  b = call(q), to_apply=f   =>   a = call(p), to_apply=f;  b = call(q), to_apply=f.clone

Computations embedded in a kernel (reducers, comparators, fusion bodies) may be shared, but not with control flow. XLA's
`FlattenCallGraph`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.call_graph import flatten_call_graph


@dataclass(frozen=True)
class FlattenCallGraph:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "flatten-call-graph"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place; callers come before callees, so that the calls in a clone are seen too."""
        del ctx
        flatten_call_graph(module)
