"""Finds the results of a fusion that are an operand with some elements changed, so that both can share a buffer.

    ROOT d = f32[100] dynamic-update-slice(p0, update, start)      result 0 may share operand 0; only the slice is written

Mirrors XLA's `CanEmitFusedDynamicUpdateSliceInPlaceForGpu` and the in-place pairs of its dataflow analysis.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.decision import Decision, no, yes
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.tiling.fusion_roots_and_heroes import fusion_roots
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.views.slices import DynamicSlice


def in_place_operands(fusion: HloInstruction) -> dict[int, int]:
    """Return the number of the operand that each in-place result changes, by the result's number among the shape's leaves."""
    roots = fusion_roots(fusion)
    if len(roots) == 1 and roots[0].opcode == "scatter":
        changed = list(roots[0].operands[: len(roots[0].operands) // 2])
    elif judge_in_place_updates(roots):
        changed = [_behind_bitcast(_update_of(root).operands[0]) for root in roots]
    else:
        return {}
    pairs = {number: _behind_bitcast(source) for number, source in enumerate(changed)}
    return {number: p.parameter_number for number, p in pairs.items() if p.opcode == "parameter"}


def updates_of(roots: Sequence[HloInstruction]) -> tuple[HloInstruction, ...]:
    """Return the dynamic-update-slice behind each root; `judge_in_place_updates` checks that each root has one."""
    return tuple(map(_update_of, roots))


def judge_in_place_updates(roots: Sequence[HloInstruction]) -> Decision:
    """Return whether every root is a dynamic-update-slice that can be computed in its operand's buffer."""
    updates = updates_of(roots)
    for update, root in zip(updates, roots, strict=True):
        if update.opcode != "dynamic-update-slice":
            return no(f"root {root.name} is not a dynamic-update-slice")
    if len(set(updates)) != len(updates):
        return no("a dynamic-update-slice is two roots")
    if len({update.operands[1].shape.dims for update in updates}) > 1:
        return no("the updates differ in shape")
    for update, root in zip(updates, roots, strict=True):
        if not _only_forwarded(update, root):
            return no(f"{update.name} has uses other than its root")
        source = _behind_bitcast(update.operands[0])
        if source.opcode != "parameter":
            return no(f"{update.name} changes {source.name}, which is not an operand of the fusion")
        reader = _reader_elsewhere(source, update)
        if reader is not None:
            return no(f"{reader.name} may read what {update.name} changes")
    if len({_behind_bitcast(update.operands[0]) for update in updates}) != len(updates):
        return no("two roots change the same operand")
    return yes("every root changes a slice of an operand")


def _update_of(root: HloInstruction) -> HloInstruction:
    while root.opcode == "bitcast":
        root = root.operands[0]
    return root


def _behind_bitcast(instruction: HloInstruction) -> HloInstruction:
    return instruction.operands[0] if instruction.opcode == "bitcast" else instruction


def _only_forwarded(update: HloInstruction, root: HloInstruction) -> bool:
    """True if one chain of bitcasts leads from the update to its root, and nothing else reads any of them."""
    instruction = update
    while instruction is not root:
        if len(instruction.users) != 1:
            return False
        instruction = next(iter(instruction.users))
    return all(user.opcode == "tuple" for user in root.users) and len(root.users) <= 1


def _reader_elsewhere(source: HloInstruction, update: HloInstruction) -> HloInstruction | None:
    """Return a user of `source` that may read elements that another thread changes."""
    written = DynamicSlice.of(update)
    window = written.part.shape
    queue, seen = [source], {source, update}
    for instruction in queue:
        for user in instruction.users:
            if user is update:
                continue
            same_slice = (
                user.opcode == "dynamic-slice"
                and user.operands[0] is written.whole
                and user.shape.dims == window.dims
                and (window.element_count == 1 or DynamicSlice.of(user).starts == written.starts)
            )
            if not same_slice and user.opcode not in ("bitcast", "tuple") and not is_elementwise(user):
                return user
            if user not in seen:
                seen.add(user)
                queue.append(user)
    return None
