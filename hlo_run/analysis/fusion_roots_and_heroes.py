"""Which instructions does a fusion return, and which one of them shapes the code for each?

    p   = f32[20,160,170] parameter(0)
    e   = f32[20,160,170] exponential(p)
    t   = f32[170,160,20] transpose(e)          <- hero
    ROOT a = f32[170,160,20] abs(t)             <- root

Mirrors XLA's `GetFusionRoots` and `FindNonTrivialHero`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from hlo_run.analysis.bitcast_kind import is_bitcast
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.transpose_description import describe_transpose
from hlo_run.hlo.graph import HloInstruction

# Between a transpose or concatenate hero and its root, select and clamp may stand too.
_EPILOGUE_OPERANDS = 3


def fusion_roots(fusion: HloInstruction) -> tuple[HloInstruction, ...]:
    """Return the results of `fusion` in order: the root, or the operands of a root tuple, flattened, not made distinct."""
    return _flatten(fusion.fused_computation.root)


def _flatten(root: HloInstruction) -> tuple[HloInstruction, ...]:
    if root.opcode != "tuple":
        return (root,)
    return tuple(leaf for operand in root.operands for leaf in _flatten(operand))


def is_intermediate(instruction: HloInstruction, max_operands: int) -> bool:
    """True if `instruction` may lie between a hero and a root: elementwise or a bitcast, of 1 to `max_operands` operands.

    A copy that changes the layout may not.
    """
    if not 1 <= len(instruction.operands) <= max_operands:
        return False
    if instruction.opcode == "copy":
        return instruction.shape == instruction.operands[0].shape
    return is_bitcast(instruction) or is_elementwise(instruction)


def find_heroes(roots: Sequence[HloInstruction]) -> tuple[HloInstruction, ...]:
    """Return the hero of each root: a transpose worth a tile, a concatenate, a reduce, or else the root itself."""
    assert roots[0].parent is not None, "roots are in a computation"
    candidates = [i for i in roots[0].parent.instructions if i.opcode in ("transpose", "concatenate")]
    transposes = {i for i in candidates if i.opcode == "transpose" and describe_transpose(i) is not None}
    concatenates = {i for i in candidates if i.opcode == "concatenate"}
    return tuple(_find_hero(root, transposes, concatenates) for root in roots)


def _find_hero(root: HloInstruction, transposes: Set[HloInstruction], concatenates: Set[HloInstruction]) -> HloInstruction:
    start = root
    while is_intermediate(start, max_operands=1) and start.operands[0].opcode != "parameter":
        start = start.operands[0]
    found = _search(start, transposes) or _search(start, concatenates)
    if found is not None:
        return found
    return start if start.opcode == "reduce" else root


def _search(start: HloInstruction, candidates: Set[HloInstruction]) -> HloInstruction | None:
    """Return the only candidate above `start` that is reached through intermediates and used through such alone."""
    if not candidates:
        return None
    hero: HloInstruction | None = None
    queue = [start]
    seen = {start}
    for instruction in queue:
        if instruction in candidates:
            if hero is not None:
                return None
            hero = instruction
        elif is_intermediate(instruction, _EPILOGUE_OPERANDS):
            fresh = [operand for operand in dict.fromkeys(instruction.operands) if operand not in seen]
            seen.update(fresh)
            queue += fresh
    return hero if hero is not None and _used_by_intermediates(hero) else None


def _used_by_intermediates(hero: HloInstruction) -> bool:
    queue = list(hero.users)
    seen = set(queue)
    for user in queue:
        if user.opcode != "tuple" and not is_intermediate(user, _EPILOGUE_OPERANDS):
            return False
        fresh = [next_user for next_user in user.users if next_user not in seen]
        seen.update(fresh)
        queue += fresh
    return True
