"""Import Shardy's annotations as shardings of HLO, which `sharding-propagation` then moves to all instructions.

    x = f32[8] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"a\\"}]>"}
        =>   x = f32[8] parameter(0), sharding={mesh['a'=4], [{'a'}]}

Constraints become custom calls `Sharding`, manual computations become regions between `SPMDFullToShardShape` and
`SPMDShardToFullShape`, and the custom calls of results give the root its sharding. Open dimensions stay open. Priorities,
barriers and sharding groups are dropped. XLA's `ShardyXLA` also propagates, by Shardy's own rules.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.shardy_annotations import is_annotated
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.propagation.shardy_import import TO_GLOBAL, TO_LOCAL, ShardyImport, meshes_of
from hlo_run.hlo_passes.subgraphs.call_graph import flatten_call_graph


class ShardyXla(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "shardy-xla"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place. Raises Unsupported for annotations that cannot be read or do not fit."""
        del ctx
        if not is_annotated(module):
            return
        if any(call.custom_call_target in (TO_LOCAL, TO_GLOBAL) for call in module.instructions_of("custom-call")):
            flatten_call_graph(module)
        ShardyImport(module, meshes_of(module)).run()
