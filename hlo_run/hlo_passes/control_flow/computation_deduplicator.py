"""Merge equal computations, or mark the fusions that call equal ones.

    reduce(x, z), to_apply=sum.1;  reduce(y, z), to_apply=sum.2   =>   both with to_apply=sum.1

The comparison ignores names and metadata but not layouts. Computations above 128 instructions or 1 KiB of constants stay, as
do fusions and those that collectives call. With `marks_fusions`, nothing is merged: equal fusions get the name of the first
one as `deduplicated_name` in their metadata, unless no fusion calls the first computation. XLA's `HloComputationDeduplicator`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import REDUCING_COLLECTIVE
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_MOST_INSTRUCTIONS, _MOST_CONSTANT_BYTES = 128, 1024
# The pass skips computations called by these.
_NOT_OF = REDUCING_COLLECTIVE | opcode_set("async-start")


class ComputationDeduplicator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "computation-deduplicator"

    marks_fusions: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit callers in place; computations that are no longer called are removed."""
        del ctx
        same = alike(module)
        if self.marks_fusions:
            _mark(same)
            return
        first = {c: group[0] for group in same for c in group[1:] if not c.is_fusion and not group[0].is_fusion}
        callers = list(dict.fromkeys(caller for computation in first for caller in computation.callers))
        for caller in callers:
            caller.called = {name: tuple(first.get(c, c) for c in group) for name, group in caller.called.items()}
        if callers:
            remove_uncalled(module)


def alike(module: HloModule) -> list[list[HloComputation]]:
    """Return the groups of two or more equal computations, callees before callers."""
    keys = ValueKeys(sees_layouts=True)
    groups: dict[Hashable, list[HloComputation]] = {}
    for computation in computation_post_order(module):
        if not computation.is_entry and _is_small(computation) and not _is_called_by_collective(computation):
            groups.setdefault(keys.of_computation(computation), []).append(computation)
    return [group for group in groups.values() if len(group) > 1]


def _is_small(computation: HloComputation) -> bool:
    constants = (i.shape.size_bytes for i in computation.instructions if i.opcode == "constant" and i.shape.is_array)
    return len(computation.instructions) <= _MOST_INSTRUCTIONS and sum(constants) <= _MOST_CONSTANT_BYTES


def _is_called_by_collective(computation: HloComputation) -> bool:
    return any(caller.opcode in _NOT_OF for caller in computation.callers)


def _mark(same: list[list[HloComputation]]) -> None:
    for first, *others in same:
        owners, equal = _fusions(first), [fusion for computation in others for fusion in _fusions(computation)]
        for fusion in (*owners, *equal) if owners and equal else ():
            _name(fusion, owners[0].name)


def _fusions(computation: HloComputation) -> list[HloInstruction]:
    return [caller for caller in computation.callers if caller.opcode == "fusion"]


def _name(fusion: HloInstruction, name: str) -> None:
    found = fusion.metadata or OpMetadata()
    if found.deduplicated_name != name:
        fusion.attrs["metadata"] = replace(found, deduplicated_name=name)
