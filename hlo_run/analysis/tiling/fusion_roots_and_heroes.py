"""Finds the roots of a fusion, and the hero of each root, which determines the kernel's structure.

    p   = f32[20,160,170] parameter(0)
    e   = f32[20,160,170] exponential(p)
    t   = f32[170,160,20] transpose(e)          <- hero
    ROOT a = f32[170,160,20] abs(t)             <- root

Mirrors XLA's `GetFusionRoots` and `FindNonTrivialHero`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Protocol, TypeVar

from hlo_run.analysis.bitcast_kind import is_bitcast
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.tiling.transpose_description import describe_transpose
from hlo_run.hlo.graph import HloInstruction

OpT = TypeVar("OpT")

# Select and clamp (3 operands) may also be between a transpose or concatenate hero and its root.
EPILOGUE_OPERANDS = 3


def fusion_roots(fusion: HloInstruction) -> tuple[HloInstruction, ...]:
    """Return the results of `fusion` in order: the root, or the flattened operands of a root tuple, with duplicates."""
    return _flatten(fusion.fused_computation.root)


def _flatten(root: HloInstruction) -> tuple[HloInstruction, ...]:
    if root.opcode != "tuple":
        return (root,)
    return tuple(leaf for operand in root.operands for leaf in _flatten(operand))


def is_intermediate(instruction: HloInstruction, max_operands: int) -> bool:
    """True if `instruction` may be between a hero and a root: elementwise or a bitcast, with 1 to `max_operands` operands.

    Not for a copy that changes the layout.
    """
    if not 1 <= len(instruction.operands) <= max_operands:
        return False
    if instruction.opcode == "copy":
        return instruction.shape == instruction.operands[0].shape
    return is_bitcast(instruction) or is_elementwise(instruction)


class FusedOps(Protocol[OpT]):
    """The operations of a fusion as a graph: instructions of a fusion, or ops of a planned fusion."""

    def instruction(self, op: OpT) -> HloInstruction:
        """Return the instruction of an operation."""
        ...

    def operands(self, op: OpT) -> Sequence[OpT | None]:
        """Return the operands; None for an operand from outside."""
        ...

    def users(self, op: OpT) -> Sequence[OpT]:
        """Return the operations of the fusion that use the result."""
        ...

    def is_tiled_transpose(self, op: OpT) -> bool:
        """True if the operation is a transpose that the transpose emitter would tile."""
        ...


class _Body:
    """The instructions of a fused computation."""

    def __init__(self, tiled: Set[HloInstruction]) -> None:
        self._tiled = tiled

    def instruction(self, op: HloInstruction) -> HloInstruction:
        return op

    def operands(self, op: HloInstruction) -> Sequence[HloInstruction | None]:
        return [None if operand.opcode == "parameter" else operand for operand in op.operands]

    def users(self, op: HloInstruction) -> Sequence[HloInstruction]:
        return op.users

    def is_tiled_transpose(self, op: HloInstruction) -> bool:
        return op in self._tiled


def find_heroes(roots: Sequence[HloInstruction]) -> tuple[HloInstruction, ...]:
    """Return the hero of each root: a transpose worth a tile, a concatenate, a reduce, or else the root itself."""
    assert roots[0].parent is not None, "roots are in a computation"
    candidates = [i for i in roots[0].parent.instructions if i.opcode in ("transpose", "concatenate")]
    tiled = {i for i in candidates if i.opcode == "transpose" and describe_transpose(i) is not None}
    has_concatenate = any(i.opcode == "concatenate" for i in candidates)
    body = _Body(tiled)
    return tuple(find_hero(body, root, bool(tiled), has_concatenate) for root in roots)


def find_hero(ops: FusedOps[OpT], root: OpT, has_tiled_transpose: bool, has_concatenate: bool) -> OpT:
    """Return the hero of a root. The flags tell whether the fusion has a tiled transpose or a concatenate at all."""
    start = root
    while is_intermediate(ops.instruction(start), max_operands=1):
        (source,) = ops.operands(start)
        if source is None:
            break
        start = source
    found = _search(ops, start, ops.is_tiled_transpose) if has_tiled_transpose else None
    if found is None and has_concatenate:
        found = _search(ops, start, lambda op: ops.instruction(op).opcode == "concatenate")
    if found is not None:
        return found
    return start if ops.instruction(start).opcode == "reduce" else root


def _search(ops: FusedOps[OpT], start: OpT, is_candidate: Callable[[OpT], bool]) -> OpT | None:
    """Return the only candidate that `start` reaches upwards through intermediates and whose users are all intermediates."""
    hero: OpT | None = None
    queue = [start]
    seen = {start}
    for op in queue:
        if is_candidate(op):
            if hero is not None:
                return None
            hero = op
        elif is_intermediate(ops.instruction(op), EPILOGUE_OPERANDS):
            fresh = [operand for operand in dict.fromkeys(ops.operands(op)) if operand is not None and operand not in seen]
            seen.update(fresh)
            queue += fresh
    return hero if hero is not None and _used_by_intermediates(ops, hero) else None


def _used_by_intermediates(ops: FusedOps[OpT], hero: OpT) -> bool:
    queue = list(ops.users(hero))
    seen = set(queue)
    for user in queue:
        instruction = ops.instruction(user)
        if instruction.opcode != "tuple" and not is_intermediate(instruction, EPILOGUE_OPERANDS):
            return False
        fresh = [next_user for next_user in ops.users(user) if next_user not in seen]
        seen.update(fresh)
        queue += fresh
    return True
