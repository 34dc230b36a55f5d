"""Scheduling groups: instructions that a program asks to have scheduled together, by `_scheduling_group_id`."""

from __future__ import annotations

from typing import NamedTuple

from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction

GROUP_ATTRIBUTE = "_scheduling_group_id"
"""The frontend attribute: a number, or a number and an iteration of the loop (`3:-1`)."""
NO_GROUP = -1
"""What `group_number` returns for an instruction without a group."""
_NO_WORK = "noop"


class SchedulingGroup(NamedTuple):
    """A group and the iteration of the loop that its instruction is from; each is None if the attribute does not have it."""

    number: int | None
    iteration: int | None

    def __str__(self) -> str:
        number = "" if self.number is None else str(self.number)
        return number if self.iteration is None else f"{number}:{self.iteration}"


def scheduling_group(instruction: HloInstruction) -> SchedulingGroup | None:
    """Return the group of an instruction, if it names one. Raises Unsupported if the attribute is not a group."""
    text = frontend_attribute(instruction, GROUP_ATTRIBUTE) or ""
    if text == _NO_WORK or not has_group(instruction):
        return None
    number, _, iteration = text.partition(":")
    try:
        found = SchedulingGroup(int(number) if number else None, int(iteration) if iteration else None)
    except ValueError:
        found = SchedulingGroup(NO_GROUP, None)
    if found.number is not None and found.number < 0:
        hint = "a group is a number, with an iteration a number, a colon and a number"
        raise Unsupported(f"the scheduling group '{text}' of '{instruction.name}' is not valid", instruction.where, hint=hint)
    return found


def has_group(instruction: HloInstruction) -> bool:
    """Return True if an instruction has the attribute, with any value."""
    return frontend_attribute(instruction, GROUP_ATTRIBUTE) is not None


def group_number(instruction: HloInstruction) -> int:
    """Return the number of the group of an instruction, without the iteration; NO_GROUP if it has none."""
    if not has_group(instruction):
        return NO_GROUP
    group = scheduling_group(instruction)
    return NO_GROUP if group is None or group.number is None else group.number
