"""Keep `_scheduling_group_id` only on instructions that the latency-hiding scheduler can schedule as a group.

    s = all-gather-start(p), group 1           s = all-gather-start(p), group 1
    f = fusion(q), group 1               =>    f = fusion(q)

Asynchronous instructions and matrix products of cuBLAS and Triton keep theirs.
Between two members, a chain whose links have one operand and one user joins the group. Nothing changes on a GPU or by a flag for
which the scheduler does not run. XLA's `LegalizeSchedulingAnnotations`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, TypeAlias

from msgspec import Struct

from hlo_run.analysis.fusion_owner import fusion_owner
from hlo_run.analysis.latency.choice import hides_latency
from hlo_run.analysis.latency.scheduling_groups import GROUP_ATTRIBUTE, SchedulingGroup, has_group, scheduling_group
from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import set_frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import TRANSFER
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.walks import walk

_PAIRS = ("all-gather", "all-reduce", "collective-permute", "async")
_STARTS = frozenset(f"{name}-start" for name in _PAIRS)
_DONES = frozenset(f"{name}-done" for name in _PAIRS)
_TRANSFERS = TRANSFER | {f"{name}-done" for name in TRANSFER}

_Groups: TypeAlias = "dict[SchedulingGroup, dict[HloComputation, list[HloInstruction]]]"


class LegalizeSchedulingAnnotations(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "legalize-scheduling-annotations"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises Unsupported for a group that the scheduler cannot keep together."""
        annotated = [i for c in module.computations for i in c.instructions if has_group(i)]
        if not annotated or not hides_latency(ctx.options, ctx.target, module):
            return
        for instruction in annotated:
            if not _is_in_fusion(instruction) and not _keeps_group(instruction):
                _set_group(module, instruction, None)
        groups: _Groups = {}
        for computation in module.computations:
            for instruction in computation.instructions:
                group = None if _is_in_fusion(instruction) else scheduling_group(instruction)
                if group is not None:
                    groups.setdefault(group, {}).setdefault(computation, []).append(instruction)
        _lift_out_of_fusions(module)
        _check_pairs(groups)
        _fill_chains(module, groups)
        _check_gaps(groups)


def _is_in_fusion(instruction: HloInstruction) -> bool:
    return instruction.parent is not None and instruction.parent.is_fusion


def _set_group(module: HloModule, instruction: HloInstruction, group: SchedulingGroup | None) -> None:
    set_frontend_attribute(instruction, GROUP_ATTRIBUTE, None if group is None else str(group))
    module.version += 1


def _keeps_group(instruction: HloInstruction) -> bool:
    return scheduling_group(instruction) is not None and (_is_async(instruction) or _is_product(instruction))


def _is_product(instruction: HloInstruction) -> bool:
    if instruction.opcode == "custom-call":
        return instruction.custom_call_target == "__cublas$gemm"
    return instruction.opcode == "fusion" and fusion_owner(instruction) == "__triton_gemm"


def _is_async(instruction: HloInstruction) -> bool:
    if instruction.opcode in ("async-start", "async-done"):
        return not _only_copies(instruction)
    return instruction.opcode in _STARTS | _DONES | _TRANSFERS


def _only_copies(instruction: HloInstruction) -> bool:
    """Return True if an asynchronous call does nothing but copies."""
    if instruction.opcode == "async-done":
        return _only_copies(instruction.operands[0])
    if not instruction.called_computations:
        return False
    body = instruction.called_computations[0]
    if body.root.called_computations:
        body = body.root.called_computations[0]
    for inner in body.instructions:
        is_call = inner.opcode in ("async-start", "async-done")
        if not (_only_copies(inner) if is_call else inner.opcode in ("copy", "parameter")):
            return False
    return True


def _lift_out_of_fusions(module: HloModule) -> None:
    """Give a fusion that may be in a group the one group of its instructions."""
    for fusion in module.instructions_of("fusion"):
        if not _is_product(fusion) or scheduling_group(fusion) is not None:
            continue
        found = dict.fromkeys(filter(None, map(scheduling_group, fusion.fused_computation.instructions)))
        if len(found) > 1:
            numbers = " and ".join(map(str, found))
            raise Unsupported(
                f"the instructions of fusion '{fusion.name}' are in several scheduling groups: {numbers}", fusion.where
            )
        for group in found:
            _set_group(module, fusion, group)


def _members(groups: _Groups) -> Iterator[tuple[SchedulingGroup, HloComputation, list[HloInstruction]]]:
    for group, computations in groups.items():
        for computation, members in computations.items():
            yield group, computation, members


def _check_pairs(groups: _Groups) -> None:
    for group, _, members in _members(groups):
        for member in members:
            if member.opcode in _DONES and scheduling_group(member.operands[0]) != group:
                message = f"'{member.name}' is in scheduling group {group}, its start '{member.operands[0].name}' is not"
                raise Unsupported(message, member.where)


def _fill_chains(module: HloModule, groups: _Groups) -> None:
    grouped = {member: group for group, _, members in _members(groups) for member in members}
    found: dict[HloInstruction, SchedulingGroup] = {}
    for group, _, members in _members(groups):
        for member in members:
            found |= dict.fromkeys(_chain(member, group, grouped), group)
    for instruction, group in found.items():
        assert instruction.parent is not None, "the instruction is in a computation"
        _set_group(module, instruction, group)
        groups[group].setdefault(instruction.parent, []).append(instruction)


def _chain(
    member: HloInstruction, group: SchedulingGroup, grouped: dict[HloInstruction, SchedulingGroup]
) -> list[HloInstruction]:
    """Return the links between a member and the next one; empty if a link has other operands or users, or none is needed."""
    chain: list[HloInstruction] = []
    link = member
    while len(link.users) == 1:
        (link,) = link.users
        if link in grouped:
            return chain if grouped[link].number == group.number else []
        if len(link.operands) != 1:
            return []
        chain.append(link)
    return []


def _check_gaps(groups: _Groups) -> None:
    """Raise Unsupported if a path leaves a group and comes back."""
    for group, computation, members in _members(groups):
        followers: dict[HloInstruction, list[HloInstruction]] = {}
        for instruction in computation.instructions:
            for before in (*instruction.operands, *instruction.control_predecessors):
                followers.setdefault(before, []).append(instruction)
        inside = set(members)
        waiting = [user for member in members for user in followers.get(member, ()) if user not in inside]
        for instruction in walk(waiting, lambda i, followers=followers: followers.get(i, ())):
            for user in followers.get(instruction, ()):
                if user in inside:
                    message = f"scheduling group {group} has a gap: '{instruction.name}' is not in it, but between two members"
                    raise Unsupported(message, instruction.where, hint=f"'{user.name}' is in the group and depends on it")
