"""Fuse copies of a fusion's result into the fusion, which then writes the value twice.

    f = f32[8] fusion(), calls=c;  k = copy(f);  r = tuple(f, k)
      =>   f = (f32[8], f32[8]) fusion(), calls=c   with   ROOT tuple(x, copy(x))   and   r = tuple(f{0}, f{1})

Only in the entry: in a loop or branch, the copy may be assigned a buffer that the fusion reads. Fusions that do not read their
operands element by element stay, as do custom fusions, scatters and fusions that may update an operand in place. A copy of a
reduction stays, and a copy with control predecessors; control successors of the copy become successors of the fusion. Skips a
module that came with a schedule. XLA's `CopyFusion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.tiling.fusion_roots_and_heroes import fusion_roots
from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext

# The control successors of instructions.
_Followers: TypeAlias = "dict[HloInstruction, list[HloInstruction]]"


class CopyFusion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "copy_fusion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the entry in place, with the bodies of its fusions."""
        del ctx
        if module.schedule is not None:
            return
        followers: _Followers = {}
        for instruction in module.entry.instructions:
            for predecessor in instruction.control_predecessors:
                followers.setdefault(predecessor, []).append(instruction)
        for fusion in module.entry.post_order():
            if fusion.opcode == "fusion" and _may_write_twice(fusion):
                copies = [chain for user in list(fusion.users) if (chain := _copy_behind(fusion, user)) is not None]
                if copies:
                    _fuse(module, fusion, copies, followers)


def _is_whole(fusion: HloInstruction) -> bool:
    """True if anything reads the tuple of several results as a whole, which must keep its shape."""
    return fusion.shape.is_tuple and (fusion.is_root or any(user.opcode != "get-tuple-element" for user in fusion.users))


def _may_write_twice(fusion: HloInstruction) -> bool:
    body, roots = fusion.fused_computation, fusion_roots(fusion)
    if (
        fusion.fusion_kind == "kCustom"
        or _is_whole(fusion)
        or len(body.callers) > 1
        or "output_to_operand_aliasing" in fusion.attrs
        or not _reads_element_by_element(fusion)
    ):
        return False
    if any(root.opcode == "scatter" for root in roots) or body.root.opcode == "reduce":
        return False
    updates = [root for root in roots if _behind_bitcasts(root).opcode == "dynamic-update-slice"]
    return not updates or (fusion.shape.is_tuple and len(updates) != len(roots))


def _behind_bitcasts(value: HloInstruction) -> HloInstruction:
    while value.opcode == "bitcast":
        value = value.operands[0]
    return value


def _reads_element_by_element(fusion: HloInstruction) -> bool:
    """Return True if only elementwise instructions and bitcasts read the operands, directly or not."""
    waiting = list(fusion.fused_computation.parameters)
    seen = set(waiting)
    for instruction in waiting:
        for user in instruction.users:
            if user.opcode not in ("bitcast", "tuple") and (not is_elementwise(user) or user.opcode == "copy"):
                return False
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return True


def _copy_behind(fusion: HloInstruction, user: HloInstruction) -> list[HloInstruction] | None:
    """Return the chain from a result of the fusion to a copy of it: an element, a bitcast, the copy (the first two optional)."""
    chain: list[HloInstruction] = []
    for opcode in ("get-tuple-element", "bitcast"):
        if user.opcode == opcode and len(user.users) == 1 and not user.is_root:
            chain.append(user)
            (user,) = user.users
    if fusion.shape.is_tuple and chain and fusion.fused_computation.root.operands[chain[0].tuple_index].opcode == "reduce":
        return None
    is_copy = user.opcode == "copy" and user.shape.is_array and user.shape == user.operands[0].shape
    if not is_copy or user.control_predecessors or (fusion.shape.is_tuple and not chain):
        return None
    return [*chain, user]


def _fuse(module: HloModule, fusion: HloInstruction, chains: list[list[HloInstruction]], followers: _Followers) -> None:
    had_several, first = fusion.shape.is_tuple, fusion.shape
    written = len(first.tuple_shapes) if had_several else 1
    fusion.shape = _write_again(fusion, chains)
    if not had_several:
        _read_first(module, fusion, first, {chain[0] for chain in chains})
    for number, chain in enumerate(chains, written):
        copy = chain[-1]
        _wait_for(fusion, copy, followers.get(copy, ()))
        module.replace(copy, _element(fusion, copy.shape, number))
        for step in reversed(chain):
            module.entry.remove(step)


def _write_again(fusion: HloInstruction, chains: list[list[HloInstruction]]) -> Shape:
    """Add the copies to the results of the body; return its new result shape."""
    body, root = fusion.fused_computation, fusion.fused_computation.root
    outputs = list(root.operands) if fusion.shape.is_tuple else [root]
    for chain in chains:
        value, steps = root, chain
        if fusion.shape.is_tuple:
            number = chain[0].tuple_index
            value, steps = outputs[number], chain[1:]
        for step in steps:
            value = body.add(copy_instruction(step, [value]))
        outputs.append(value)
    shape = Shape.make_tuple(tuple(output.shape for output in outputs))
    body.root = InstructionMaker(body, fusion.where).add("tuple", shape, outputs)
    if fusion.shape.is_tuple:
        body.remove(root)
    return shape


def _read_first(module: HloModule, fusion: HloInstruction, shape: Shape, copies: set[HloInstruction]) -> None:
    """Let all users except the fused copies read element 0 of a fusion that had one result; XLA makes it also for no users."""
    users = [user for user in fusion.users if user not in copies]
    element = _element(fusion, shape, 0)
    for user in users:
        user.operands = tuple([element if operand is fusion else operand for operand in user.operands])
    if fusion.is_root:
        module.entry.root = element


def _element(fusion: HloInstruction, shape: Shape, index: int) -> HloInstruction:
    assert fusion.parent is not None, "the fusion is in the entry"
    made = InstructionMaker(where=fusion.where).add("get-tuple-element", shape, [fusion], index=index)
    return fusion.parent.add(made)


def _wait_for(fusion: HloInstruction, copy: HloInstruction, followers: Sequence[HloInstruction]) -> None:
    """Let the control successors of the copy run after the fusion, which now computes the copy."""
    for instruction in followers:
        others = [i for i in instruction.control_predecessors if i is not copy]
        instruction.control_predecessors = others if fusion in others else [*others, fusion]
        instruction.touch()
