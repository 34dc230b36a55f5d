"""Finds the collectives of a computation that must not run between the halves of others: two of their devices meet in both.

permute {{0,1},{1,2}} and all-reduce {{0,2},{1,3}}: devices 0 and 2 take part together in both   =>   they conflict
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.hlo.verify.transfers import PAIRS


class _Clusters:
    """Disjoint sets of devices; sets with a common device become one."""

    def __init__(self) -> None:
        self._sets: list[set[int]] = []

    def join(self, devices: Iterable[int]) -> None:
        """Put devices, if they are two or more, into one set with all sets that have one of them."""
        joined = set(devices)
        if len(joined) < 2:
            return
        met = [one for one in self._sets if one & joined]
        self._sets = [one for one in self._sets if one not in met] + [joined.union(*met)]

    def meets(self, other: _Clusters) -> bool:
        """True if two devices are together in a set of both."""
        return any(len(one & two) > 1 for one in self._sets for two in other._sets)


def conflicting_collectives(computation: HloComputation, seeds: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Return the collectives that conflict with a seed or with a returned collective (XLA's `FindAllConflictingCollectives`)."""
    together, found = _Clusters(), list[HloInstruction]()
    for seed in seeds:
        _join(seed, together)
    waiting = [i for i in computation.post_order() if _communicates(i) and i not in seeds] if seeds else []
    while True:
        before = len(found)
        for instruction in waiting:
            own = _Clusters()
            _join(instruction, own)
            if instruction not in found and own.meets(together):
                found.append(instruction)
                _join(instruction, together)
        if len(found) == before:
            return found


def _communicates(instruction: HloInstruction) -> bool:
    is_transfer = instruction.opcode in ("send", "recv") and not instruction.is_host_transfer
    return instruction.opcode in COLLECTIVE or is_transfer


def _join(instruction: HloInstruction, clusters: _Clusters) -> None:
    """Add the devices that meet in a collective."""
    for devices in _meetings(instruction):
        clusters.join(devices)


def _meetings(instruction: HloInstruction) -> Iterable[Sequence[int]]:
    if instruction.opcode in ("send", "recv"):
        text = frontend_attribute(instruction, PAIRS)
        return [[int(number) for number in pair.split(",")] for pair in (text or "").strip("{} ").split("},{") if pair]
    if "source_target_pairs" in instruction.attrs:
        return instruction.source_target_pairs
    return instruction.replica_groups.groups() if "replica_groups" in instruction.attrs else ()
