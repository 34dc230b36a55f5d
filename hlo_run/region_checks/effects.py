"""Names the instructions that cannot be evaluated alone: effects, random numbers, and instructions that need other devices."""

from __future__ import annotations

from hlo_run.hlo.edit import has_side_effect
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, ASYNC_START, COLLECTIVE, DEVICE_ID, DYNAMIC_SIZE, TRANSFER
from hlo_run.walks import walk

# Of a static array, the size of a dimension is a constant.
_SETS_SIZES = DYNAMIC_SIZE - opcode_set("get-dimension-size")
_RANDOM: frozenset[Opcode] = frozenset(("rng", "rng-get-and-update-state"))
# They can be evaluated on several devices that run the same region.
OF_DEVICES = (COLLECTIVE | DEVICE_ID) - ASYNC_START - ASYNC_DONE
_ELSEWHERE = COLLECTIVE | DEVICE_ID | TRANSFER | opcode_set("infeed outfeed send-done recv-done")


def is_own_kind(instruction: HloInstruction) -> bool:
    """True if two such instructions with equal operands may return different values, or if one does more than return a value."""
    return instruction.opcode in _RANDOM or has_side_effect(instruction)


def reason_against(instruction: HloInstruction, on_devices: bool = False) -> str:
    """Return why an instruction cannot be evaluated alone, or on all devices together, or nothing."""
    if instruction.opcode in _RANDOM:
        return "random numbers"
    if instruction.opcode in _ELSEWHERE and not (on_devices and instruction.opcode in OF_DEVICES):
        return instruction.opcode
    if has_side_effect(instruction):
        return "side effect"
    shapes = [each.shape for each in (instruction, *instruction.operands)]
    is_dynamic = any(any(leaf.dynamic_dims) for shape in shapes for _, leaf in shape.leaves() if leaf.is_array)
    if is_dynamic or instruction.opcode in _SETS_SIZES:
        return "dynamic sizes"
    return ""


def reason_against_all(instruction: HloInstruction, on_devices: bool = False) -> str:
    """Return why an instruction or one that it calls cannot be evaluated alone, or on all devices together, or nothing."""
    reached = walk([instruction], called_instructions)
    return next((reason for each in reached if (reason := reason_against(each, on_devices))), "")


def called_instructions(caller: HloInstruction) -> list[HloInstruction]:
    """Return the instructions of the computations that one calls."""
    return [inner for computation in caller.called_computations for inner in computation.instructions]
