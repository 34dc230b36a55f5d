"""Remove custom calls that only specify shardings, if the module has one partition.

    s = f32[8] custom-call(x), custom_call_target="Sharding", sharding={..}   =>   x

The operand keeps its attributes. A call that only marks a sharding leaves a copy without users, which keeps those of the call:
dead-code elimination removes it, and names after it have a higher number. XLA's `ShardingRemover`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import InstructionMaker, bypass
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_TARGETS = frozenset(
    """Sharding SPMDFullToShardShape SPMDShardToFullShape xla.sdy.FuncResultSharding xla.sdy.GlobalToLocalShape
    xla.sdy.LocalToGlobalShape xla.sdy.PropagationBarrier xla.sdy.ShardingGroup""".split()
)

_LEAVES_COPY = frozenset({"Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier"})
_OF_COPY = ("sharding", "frontend_attributes", "metadata")


class ShardingRemover(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sharding-remover"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if module.num_partitions != 1:
            return
        calls = [call for call in module.instructions_of("custom-call") if call.custom_call_target in _TARGETS]
        calls = [call for call in calls if len(call.operands) == 1 and call.shape.compatible(call.operands[0].shape)]
        for computation in dict.fromkeys(call.parent for call in calls):
            assert computation is not None, "the call is in a computation"
            for call in reversed(computation.post_order()):
                if call in calls:
                    _remove(module, computation, call)


def _remove(module: HloModule, computation: HloComputation, call: HloInstruction) -> None:
    (source,), kept = call.operands, {name: call.attrs[name] for name in _OF_COPY if name in call.attrs}
    bypass(module, call, inherits=False)
    if call.custom_call_target in _LEAVES_COPY:
        InstructionMaker(computation).add_with("copy", call.shape, (source,), kept)
