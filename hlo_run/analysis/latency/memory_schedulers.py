"""Schedules the instructions of a computation to reduce its peak memory.

`list_order` picks from the ready instructions the one that frees most memory. `dfs_order` finishes one operand after the
other, first those with most users. Mirrors XLA's `ListMemoryScheduler` and `DFSMemoryScheduler`; its third is the post-order.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from hlo_run.analysis.buffers.dataflow import Dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue, shape_bytes
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode

_FIRST, _LAST = 2**62, -(2**62)
# The values of these exist before the computation runs, and remain.
_LASTING: frozenset[Opcode] = frozenset(("parameter", "constant"))


def _held(dataflow: Dataflow, instruction: HloInstruction) -> list[HloValue]:
    """Return the values of an instruction's result that are no parameters or constants."""
    values = dict.fromkeys(dataflow.trees[instruction].values)
    return [value for value in values if value.instruction.opcode not in _LASTING]


def _own_values(dataflow: Dataflow, instruction: HloInstruction) -> list[HloValue]:
    return [value for value in _held(dataflow, instruction) if value.instruction is instruction]


def _used(dataflow: Dataflow, instruction: HloInstruction) -> list[HloValue]:
    """Return the values of all operands. A get-tuple-element uses the whole tuple, as in XLA."""
    return list(dict.fromkeys(v for operand in dict.fromkeys(instruction.operands) for v in _held(dataflow, operand)))


def _bytes(value: HloValue) -> int:
    return shape_bytes(value.shape)


def followers(computation: HloComputation) -> dict[HloInstruction, list[HloInstruction]]:
    """Return the control successors of each instruction."""
    found: dict[HloInstruction, list[HloInstruction]] = {}
    for instruction in computation.instructions:
        for first in dict.fromkeys(instruction.control_predecessors):
            found.setdefault(first, []).append(instruction)
    return found


def list_order(computation: HloComputation, dataflow: Dataflow) -> list[HloInstruction]:
    """Return an order that always runs the ready instruction that frees most bytes; scalars as soon as they are ready."""
    return _ListScheduler(computation, dataflow).run()


class _ListScheduler:
    def __init__(self, computation: HloComputation, dataflow: Dataflow) -> None:
        self._computation = computation
        self._used = {instruction: _used(dataflow, instruction) for instruction in computation.instructions}
        self._made_bytes = {i: sum(map(_bytes, _own_values(dataflow, i))) for i in computation.instructions}
        # The caller uses the result after all instructions.
        self._open_uses: Counter[HloValue] = Counter(_held(dataflow, computation.root))
        for values in self._used.values():
            self._open_uses.update(values)
        self._ready: dict[HloInstruction, tuple[int, int]] = {}
        # (negated priority, negated counter, instruction number): of equals the last that became ready is first.
        self._queue: list[tuple[int, int, int, int]] = []
        self._numbers = {instruction: number for number, instruction in enumerate(computation.instructions)}
        self._pushes = 0

    def run(self) -> list[HloInstruction]:
        after = followers(self._computation)
        waiting = {
            i: len(dict.fromkeys(i.operands)) + len(dict.fromkeys(i.control_predecessors)) for i in self._computation.instructions
        }
        for instruction, count in waiting.items():
            if not count:
                self._push(instruction)
        order: list[HloInstruction] = []
        while self._queue:
            *priority, _, number = heapq.heappop(self._queue)
            instruction = self._computation.instructions[number]
            if self._ready.get(instruction) != tuple(priority):
                continue  # it was pushed again with another priority, or has already run
            del self._ready[instruction]
            order.append(instruction)
            has_last_uses = self._close_uses(instruction)
            for user in (*instruction.users, *after.get(instruction, ())):
                waiting[user] -= 1
                if not waiting[user]:
                    self._push(user)
            if has_last_uses:
                self._push_again(instruction)
        return order

    def _close_uses(self, instruction: HloInstruction) -> bool:
        """Count the uses of an instruction that runs; return True if a buffer has one use left."""
        self._open_uses.subtract(self._used[instruction])
        return any(self._open_uses[value] == 1 for value in self._used[instruction])

    def _push_again(self, instruction: HloInstruction) -> None:
        """Push the ready instructions beside one that ran, whose priority is another now."""
        for operand in instruction.operands:
            for user in operand.users:
                if user in self._ready:
                    freed, users = self._priority(user)
                    if (-freed, -users) != self._ready[user]:
                        self._push(user)

    def _push(self, instruction: HloInstruction) -> None:
        freed, users = self._priority(instruction)
        self._ready[instruction] = (-freed, -users)
        self._pushes += 1
        heapq.heappush(self._queue, (-freed, -users, -self._pushes, self._numbers[instruction]))

    def _priority(self, instruction: HloInstruction) -> tuple[int, int]:
        shape = instruction.shape
        if shape.is_array and shape.element_count == 1:
            return _FIRST, _FIRST
        if instruction.opcode in ("infeed", "outfeed") and instruction.attrs.get(f"{instruction.opcode}_config"):
            return (_LAST if instruction.opcode == "infeed" else _FIRST), len(instruction.users)
        freed = sum(_bytes(value) for value in self._used[instruction] if self._open_uses[value] == 1)
        return freed - self._made_bytes[instruction], len(instruction.users)


def dfs_order(computation: HloComputation, dataflow: Dataflow) -> list[HloInstruction]:
    """Return a post-order that visits first the operand with most users above it."""
    post_order = computation.post_order()
    ranks = _ranks(post_order, dataflow)
    order: dict[HloInstruction, None] = {}
    for start in (*_unreachable_roots(computation), computation.root):
        waiting: list[tuple[HloInstruction, Iterator[HloInstruction]]] = [(start, _operands(start, ranks))]
        entered = {start}
        while waiting:
            instruction, rest = waiting[-1]
            following = next((i for i in rest if i not in order and i not in entered), None)
            if following is not None:
                entered.add(following)
                waiting.append((following, _operands(following, ranks)))
                continue
            waiting.pop()
            order[instruction] = None
    return list(order)


_Rank = tuple[int, int, str]


def _operands(instruction: HloInstruction, ranks: dict[HloInstruction, _Rank]) -> Iterator[HloInstruction]:
    found = dict.fromkeys((*instruction.operands, *instruction.control_predecessors))
    return iter(sorted(found, key=ranks.__getitem__))


def _unreachable_roots(computation: HloComputation) -> list[HloInstruction]:
    before = {first for i in computation.instructions for first in i.control_predecessors}
    return [i for i in computation.instructions if not i.users and i is not computation.root and i not in before]


def _ranks(post_order: list[HloInstruction], dataflow: Dataflow) -> dict[HloInstruction, _Rank]:
    """Return (users beyond the first, bytes) of each instruction and all above it, negated, then its name."""
    users: dict[HloInstruction, int] = {}
    sizes: dict[HloInstruction, int] = {}
    all_bytes = 0
    for instruction in post_order:
        users[instruction] = sizes[instruction] = 0
        if instruction.opcode in _LASTING:
            continue
        own = sum(map(_bytes, _own_values(dataflow, instruction)))
        all_bytes += own
        above = list(dict.fromkeys(instruction.operands))
        # Paths that meet count twice. The bound keeps the numbers from growing exponentially.
        users[instruction] = min(max(len(instruction.users) - 1, 0) + sum(users[i] for i in above), len(post_order))
        sizes[instruction] = min(own + sum(sizes[i] for i in above), all_bytes)
    return {i: (-users[i], -sizes[i], i.name) for i in post_order}
