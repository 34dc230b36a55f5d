"""Channels, order and pinned layouts of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hlo_run.hlo.edit import next_channel_id
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode


def free_channels(module: HloModule) -> Iterator[int]:
    """Return the channel numbers after the largest one of the module, which is 0 without channels."""
    # A generator, so that a pass that needs no channel does not look at all instructions.
    yield from count(next_channel_id(module))


def pins_layouts(module: HloModule, *opcodes: Opcode) -> bool:
    """True if a collective of these opcodes fixes the layout of its operands."""
    return any(i.constrains_layout for i in module.instructions_of(*opcodes))


def is_ordered(instruction: HloInstruction) -> bool:
    """True if a control dependency begins or ends at the instruction."""
    if instruction.control_predecessors:
        return True
    assert instruction.parent is not None, "the instruction is in a computation"
    return any(instruction in other.control_predecessors for other in instruction.parent.instructions)


def move_to_channel(collective: HloInstruction, channels: Iterator[int]) -> None:
    """Give a collective that has a channel a new one."""
    if collective.channel_id is not None:
        collective.attrs["channel_id"] = next(channels)
