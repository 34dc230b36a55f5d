"""Scatter the sum of two values, not the two values: reduce-scatter(x) + reduce-scatter(y) => reduce-scatter(x + y).

    a = f32[2] reduce-scatter(x), dimensions={0}, to_apply=add
    b = f32[2] reduce-scatter(y), dimensions={0}, to_apply=add
    s = f32[2] add(a, b)              =>   s = f32[2] reduce-scatter(add(x, y)), dimensions={0}, to_apply=add

XLA's `ReduceScatterReassociate`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.collectives.communication.channels import free_channels, move_to_channel, pins_layouts
from hlo_run.hlo_passes.collectives.communication.reductions import kind_of_operation, kind_of_reducer, reduction_key
from hlo_run.pass_support.hlo_pass import PassContext


class ReduceScatterReassociate(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "reduce-scatter-reassociate"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if not module.instructions_of("reduce-scatter") or pins_layouts(module, "reduce-scatter"):
            return
        channels = free_channels(module)
        for computation in [c for c in module.computations if not c.is_fusion]:
            for instruction in computation.post_order():
                kind = kind_of_operation(instruction)
                if not kind or [o.opcode for o in instruction.operands] != ["reduce-scatter"] * 2:
                    continue
                one, two = instruction.operands
                if not _are_alike(one, two, kind):
                    continue
                combined = copy_instruction(instruction, [one.operands[0], two.operands[0]], one.operands[0].shape)
                made = copy_instruction(one, [computation.add(combined)], instruction.shape)
                module.replace_uses(instruction, computation.add(made))
                move_to_channel(made, channels)
                for gone in dict.fromkeys((instruction, one, two)):
                    computation.remove(gone)


def _are_alike(one: HloInstruction, two: HloInstruction, kind: str) -> bool:
    key = reduction_key(one)
    if key is None or key != reduction_key(two) or kind_of_reducer(one.to_apply) != kind:
        return False
    return one.dimensions == two.dimensions and len(one.users) == len(two.users) == 1
