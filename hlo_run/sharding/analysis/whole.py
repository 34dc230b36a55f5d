"""Tells whether a module computes whole values, which the partitioner divides, or is the program of one partition."""

from __future__ import annotations

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes

_ALLOWED: tuple[Opcode, ...] = ("rng-get-and-update-state", "custom-call", "infeed", "outfeed")


def is_for_partitioner(module: HloModule) -> bool:
    """True if the module is for several partitions, and the partitioner can divide it.

    Without any sharding, it cannot replicate an instruction with an effect, nor one that reads the number of the partition, nor
    a permute into given places. Such a module was divided before.
    """
    if module.num_partitions == 1:
        return False
    if any(has_sharding(i) for i in module.instructions) or has_shardy_attributes(module):
        return True
    return not any(_is_of_one_partition(i) for i in module.instructions if i.opcode not in CONTROL_FLOW)


def _is_of_one_partition(instruction: HloInstruction) -> bool:
    has_places = instruction.opcode == "collective-permute" and any(operand.shape.is_tuple for operand in instruction.operands)
    return instruction.opcode == "partition-id" or has_places or is_refused(instruction)


def has_sharding(instruction: HloInstruction) -> bool:
    """True for an instruction with a sharding, and for a border between whole values and values of one partition."""
    return instruction.sharding is not None or instruction.custom_call_target.startswith("SPMD")


def is_refused(instruction: HloInstruction) -> bool:
    """True for an instruction with an effect that the partitioner cannot replicate."""
    return has_side_effect(instruction) and instruction.opcode not in _ALLOWED and instruction.channel_id is None
