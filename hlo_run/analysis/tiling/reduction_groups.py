"""Groups the roots of a reduction fusion that must be computed by the same blocks.

    (r0, r1, e) with r0 = reduce(e), r1 = reduce(q)   =>   {r0, e} and {r1}: two groups, each with separate blocks

Mirrors XLA's `GroupDisjointReductions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.graph import HloInstruction


def group_roots(roots: Sequence[HloInstruction], is_reduction: Sequence[bool]) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the roots of each group, groups in the order of their first roots.

    Roots with a common producer are in one group; a broadcast constant or a scalar does not join two reductions, nor does a
    parameter that they read through broadcasts alone. All roots that are not reductions are in one group, since one may alias an
    operand of another.
    """
    leader = list(range(len(roots)))

    def find(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    def join(numbers: Sequence[int]) -> None:
        first = min(map(find, numbers), default=0)
        for number in numbers:
            leader[find(number)] = first

    join([number for number, reduces in enumerate(is_reduction) if not reduces])
    assert roots[0].parent is not None, "roots are in a computation"
    reached: dict[HloInstruction, set[int]] = {}
    for instruction in reversed(roots[0].parent.post_order()):
        mine = reached.setdefault(instruction, set())
        mine.update(number for number, root in enumerate(roots) if root is instruction)
        spreads_parameter = _spreads_parameter(instruction)
        for operand in () if spreads_parameter else instruction.operands:
            reached.setdefault(operand, set()).update(mine)
        join(_tied(sorted(mine), is_reduction, spreads_parameter or _is_scalar_or_broadcast(instruction)))
    groups: dict[int, list[int]] = {}
    for number in range(len(roots)):
        groups.setdefault(find(number), []).append(number)
    return tuple(map(tuple, groups.values()))


def _tied(numbers: Sequence[int], is_reduction: Sequence[bool], is_cheap: bool) -> list[int]:
    """Drop all reductions but the first if their common producer is cheap to recompute."""
    if not is_cheap:
        return list(numbers)
    reductions = [number for number in numbers if is_reduction[number]]
    return [number for number in numbers if number not in reductions[1:]]


def _spreads_parameter(instruction: HloInstruction) -> bool:
    """True for a broadcast of a parameter, behind broadcasts and bitcasts."""
    source = instruction
    while source.opcode in ("broadcast", "bitcast"):
        source = source.operands[0]
    return instruction.opcode == "broadcast" and source.opcode == "parameter"


def _is_scalar_or_broadcast(instruction: HloInstruction) -> bool:
    while True:
        if instruction.opcode == "constant" or (instruction.shape.is_array and not instruction.shape.dims):
            return True
        if instruction.opcode != "broadcast":
            return False
        instruction = instruction.operands[0]
