"""Decides which copies a module needs so that values that must share a buffer are never live at once.

Tries to elide each possible copy in turn: a copy and its source can share a buffer if no value in the buffer of one is live
while another value in the buffer of the other is (`congruence.py`). The remaining copies are needed. XLA's copy insertion
works the same way: it adds all copies, then elides those that live ranges prove unnecessary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from msgspec import Struct

from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.congruence import Congruence, Interval
from hlo_run.analysis.buffers.copy_lives import Copy, CopyKind, Life, Lives, Order, find_lives
from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.verify.config import aliases


class CopyPlan(Struct, frozen=True, eq=False):
    """The plan: `needed` copies must be added, `superfluous` copies in the module can be removed.

    `orders` has for every buffer its values by time: for each the instructions that make and read it. The next value may begin
    only after them.
    """

    needed: list[Copy]
    superfluous: list[Copy]
    orders: list[list[list[Life]]]


def plan_copies(dataflow: Dataflow, order_of: Order) -> CopyPlan:
    """Return the plan for a module whose computations run in the given orders."""
    lives = find_lives(dataflow, order_of)
    congruence = _sets(dataflow, lives)
    for one, other in lives.together:
        congruence.force(one, other)
    superfluous: list[Copy] = []
    needed: list[Copy] = []
    for copy in sorted(lives.copies, key=lambda c: (c.kind, -c.life.size_bytes, c.life.start)):
        if congruence.join(copy.life, copy.source):
            superfluous.append(copy)
        else:
            needed.append(copy)
    superfluous = [copy for copy in superfluous if copy.kind is CopyKind.WRITTEN]
    return CopyPlan(needed, superfluous, list(_orders(lives, congruence)))


def _sets(dataflow: Dataflow, lives: Lives) -> Congruence:
    """Return the lives as one set each, sources before their copies."""
    sharing = BufferSharing()
    made: dict[int, list[Life]] = {}
    for life in lives.values.values():
        made.setdefault(life.start, []).append(life)

    def may_follow(earlier: Interval, later: Interval, congruence: Congruence) -> bool:
        """True if the instruction that makes the later value may write it to the buffer of the earlier value that it reads."""
        outputs = [life for life in made.get(later.start, ()) if congruence.value(life) is later.value]
        if earlier.end != later.start or len(outputs) != 1:
            return False
        user, output = outputs[0].instruction, outputs[0].index
        assert user is not None, "values are made by instructions"
        read = [use for use, life in lives.reads.get(user, ()) if congruence.value(life) is earlier.value]
        return bool(read) and all(sharing.may_share(user, use.operand_number, use.operand_index, output) for use in read)

    congruence = Congruence(may_follow)
    entry = dataflow.module.entry
    aliased = {(entry.parameters[number], index) for _, number, index, _ in aliases(dataflow.module)}
    sources: dict[Life, Life] = {copy.life: copy.source for copy in lives.copies}
    results = {copy.life for copy in lives.copies if copy.kind is CopyKind.RESULT}
    waiting = [*lives.values.values(), *(copy.life for copy in lives.copies)]
    added: set[Life] = set()
    for life in waiting:
        chain = [life]
        while chain[-1] in sources and chain[-1] not in added:
            chain.append(sources[chain[-1]])
        for link in reversed(chain):
            if link not in added:
                added.add(link)
                congruence.add(link, sources.get(link), _is_read_only(link, entry, aliased), link in results)
    return congruence


def _is_read_only(life: Life, entry: object, aliased: set[tuple[HloInstruction, tuple[int, ...]]]) -> bool:
    made_by = life.instruction
    if made_by is None:
        return False
    is_parameter = made_by.opcode == "parameter" and made_by.parent is entry and (made_by, life.index) not in aliased
    return is_parameter or made_by.opcode == "constant"


def _orders(lives: Lives, congruence: Congruence) -> Iterator[list[list[Life]]]:
    """Yield for each set with several values the lives of each value, interval by interval."""
    members: dict[Life, list[Life]] = {}
    for life in (*lives.values.values(), *(c.life for c in lives.copies if c.kind is not CopyKind.WRITTEN)):
        members.setdefault(congruence.find(life), []).append(life)
    for name, found in members.items():
        if len(congruence.intervals(name)) < 2:
            continue
        intervals = congruence.intervals(name)
        parts: list[list[Life]] = [[] for _ in intervals]
        for life in sorted(found, key=lambda life: (life.start, life.end)):
            place = bisect_right(intervals, (life.start + 1,)) - 1
            while intervals[place].value is not congruence.value(life):
                place -= 1
            parts[place].append(life)
        yield parts
