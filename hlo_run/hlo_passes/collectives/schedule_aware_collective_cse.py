"""Let equal collectives of one value share the first one, unless its users are far away.

    a = f32[8] all-gather(x), channel_id=1          =>   a = f32[8] all-gather(x), channel_id=1
    b = f32[8] all-gather(x), channel_id=2               users of b use a

The distance between instructions is that from the root. A gathered value that is needed again much later is gathered again, so
that it does not occupy memory meanwhile. Also for collective-permutes at any distance, and for an all-reduce that gathers, of a
dynamic-update-slice of a broadcast. Operands may have other dimensions of size 1. XLA's `ScheduleAwareCollectiveOpsCSE`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo_passes.collectives.communication.reshapes import kept_dims
from hlo_run.pass_support.hlo_pass import PassContext

_COLLECTIVES: tuple[Opcode, ...] = ("all-gather", "all-reduce", "collective-permute")
_OWN = ("channel_id", "metadata", "backend_config", "frontend_attributes", "sharding")


class ScheduleAwareCollectiveCse(Struct, frozen=True):
    """The pass; see the module's docstring. `distance_threshold` is the largest distance between the first one's users and the
    second; `for_replicas` chooses collectives without a channel."""

    name: ClassVar[str] = "schedule-aware-collective-cse"
    distance_threshold: int = 0
    for_replicas: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for computation in dict.fromkeys(i.parent for i in module.instructions_of(*_COLLECTIVES)):
            if computation is not None:
                self._share(module, computation)

    def _share(self, module: HloModule, computation: HloComputation) -> None:
        order = computation.post_order()
        height: dict[HloInstruction, int] = {}
        for instruction in reversed(order):
            height[instruction] = max((height[user] + 1 for user in instruction.users), default=0)
        firsts: dict[HloInstruction, list[HloInstruction]] = {}
        for collective in order:
            if not self._is_candidate(collective):
                continue
            earlier = firsts.setdefault(_without_ones(collective.operands[0]), [])
            alike = next((place for place, one in enumerate(earlier) if _are_alike(one, collective)), None)
            if alike is None:
                earlier.append(collective)
                continue
            first = earlier[alike]
            lowest = min((height[user] for user in first.users), default=height[first])
            if collective.opcode != "collective-permute" and lowest > height[collective] + self.distance_threshold:
                earlier[alike] = collective
            else:
                module.replace_uses(collective, first)

    def _is_candidate(self, collective: HloInstruction) -> bool:
        if collective.opcode not in _COLLECTIVES or self.for_replicas == (collective.channel_id is not None):
            return False
        if collective.constrains_layout or len(collective.operands) != 1:
            return False
        if collective.opcode != "all-reduce":
            return True
        (value,) = collective.operands
        return value.opcode == "dynamic-update-slice" and value.operands[0].opcode == "broadcast"


def _without_ones(value: HloInstruction) -> HloInstruction:
    """Look through reshapes that only add dimensions of size 1."""
    while value.opcode in ("bitcast", "reshape"):
        before, after = value.operands[0].shape, value.shape
        if len(kept_dims(before.dims, after.dims)) != before.rank:
            break
        value = value.operands[0]
    return value


def _are_alike(one: HloInstruction, two: HloInstruction) -> bool:
    """True if two collectives of one value are the same but for their channels."""
    first, second = ({n: v for n, v in i.attrs.items() if n not in _OWN} for i in (one, two))
    same_operand = one.operands[0] is two.operands[0] or one.operands[0].shape == two.operands[0].shape
    return one.opcode == two.opcode and one.shape == two.shape and same_operand and first == second and one.called == two.called
