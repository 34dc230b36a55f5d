"""Verify the source-target pairs of send and recv between devices, as XLA's compilers for CPU and GPU require."""

from __future__ import annotations

import re

from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import PERMUTE, TRANSFER
from hlo_run.hlo.verify.module import instruction_error

PAIRS = "_xla_send_recv_source_target_pairs"

_ID = r"\s*\d{1,9}\s*"
_PAIR = rf"\{{{_ID},{_ID}\}}"
_LIST = re.compile(rf"\s*\{{\s*(?:{_PAIR}\s*(?:,\s*{_PAIR}\s*)*)?\}}\s*")


def verify_transfers(module: HloModule) -> None:
    """Raise ParseError for a send or recv between devices without valid source-target pairs, and for possible deadlocks.

    In a computation every send needs a recv of the same pairs, and no collective-permute may be between the two.
    """
    for computation in module.computations:
        waiting: dict[str, HloInstruction] = {}
        for instruction in computation.instructions:
            if instruction.opcode in PERMUTE and waiting:
                first = next(iter(waiting.values()))
                raise instruction_error(instruction, f"expected the other end of '{first.name}' ({first.opcode}) before it")
            if instruction.opcode in TRANSFER and not instruction.is_host_transfer:
                _match(instruction, _checked_pairs(instruction), waiting)
        for instruction in waiting.values():
            raise instruction_error(instruction, "has no other end in its computation: a send needs a recv of the same pairs")


def _match(instruction: HloInstruction, pairs: str, waiting: dict[str, HloInstruction]) -> None:
    other = waiting.pop(pairs, None)
    if other is None:
        waiting[pairs] = instruction
    elif other.opcode == instruction.opcode:
        raise instruction_error(instruction, f"'{other.name}' ({other.opcode}) of the same pairs has no other end yet")


def _checked_pairs(instruction: HloInstruction) -> str:
    """Return the text of the pairs without blanks; raises ParseError for repeated devices and cycles."""
    text = frontend_attribute(instruction, PAIRS)
    if text is None:
        raise instruction_error(instruction, f"expected the frontend attribute {PAIRS}, found none")
    if not _LIST.fullmatch(text):
        raise instruction_error(instruction, f"{PAIRS}: expected pairs like {{{{0,1}},{{1,2}}}}, found {text}")
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    targets = dict(zip(numbers[::2], numbers[1::2], strict=True))
    if len(targets) * 2 != len(numbers) or len(set(targets.values())) != len(targets):
        raise instruction_error(instruction, f"{PAIRS}: expected each source and each target once, found {text}")
    for start in targets:
        place = targets[start]
        # No device is a target twice, so a path that does not return to its start ends.
        while place in targets and place != start:
            place = targets[place]
        if place == start:
            raise instruction_error(instruction, f"{PAIRS}: expected pairs without a cycle, found {text}")
    return "".join(text.split())
