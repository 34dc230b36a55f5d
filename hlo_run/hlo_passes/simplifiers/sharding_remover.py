"""Remove custom calls that only specify shardings, if the module has one partition.

    s = f32[8] custom-call(x), custom_call_target="Sharding", sharding={..}   =>   x

XLA's `ShardingRemover`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import bypass
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext

_TARGETS = frozenset(
    """Sharding SPMDFullToShardShape SPMDShardToFullShape xla.sdy.FuncResultSharding xla.sdy.GlobalToLocalShape
    xla.sdy.LocalToGlobalShape xla.sdy.PropagationBarrier xla.sdy.ShardingGroup""".split()
)


class ShardingRemover(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sharding-remover"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if int(module.attrs.get("num_partitions", 1)) != 1:
            return
        calls = [call for call in module.instructions_of("custom-call") if call.custom_call_target in _TARGETS]
        calls = [call for call in calls if len(call.operands) == 1 and call.shape.compatible(call.operands[0].shape)]
        for call in calls:
            bypass(module, call)
