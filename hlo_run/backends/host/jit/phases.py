"""Phases: the code that one thread runs from one meeting of threads to the next.

A phase begins at the kernel's start or at an instruction at which threads meet. It ends before the next such instruction or with
the thread. All threads of a block run a phase one after the other, so all work before a meeting is done before any thread
continues after it. Registers that are live across a meeting have a slot per thread.
"""

from __future__ import annotations

from msgspec import Struct

from hlo_run.backends.host.ptx.control_flow import Block, Exit, FunctionBlocks, KernelGraph
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.errors import Unsupported
from hlo_run.walks import walk


class Phase(Struct, frozen=True):
    """A phase. `blocks` are the blocks that a thread may pass, ascending. `successors` are the numbers of possible next phases.

    `exits`: threads may end in the phase. `loops`: the phase has a back edge.
    """

    number: int
    entry: int
    blocks: tuple[int, ...]
    successors: tuple[int, ...]
    exits: bool
    loops: bool
    meeting: Operation | None

    @property
    def is_uniform(self) -> bool:
        """True if all threads that run the phase leave it to the same successor or all end."""
        return len(self.successors) + self.exits == 1


def cut_phases(graph: KernelGraph) -> tuple[Phase, ...]:
    """Return the phases of a kernel by number: first the phase of its start, then the others in text order."""
    blocks = graph.blocks
    entries = [0]
    seen = {0}
    bodies: dict[int, tuple[list[int], list[int]]] = {}
    for entry in entries:
        inside, ends = _reach(blocks, entry)
        bodies[entry] = inside, ends
        for end in ends:
            if end not in seen:
                seen.add(end)
                entries.append(end)
    numbers = {entry: number for number, entry in enumerate([0, *sorted(seen - {0})])}
    return tuple(_phase(blocks, entry, bodies[entry], numbers) for entry in numbers)


def function_phase(graph: KernelGraph, function: FunctionBlocks) -> Phase:
    """Return the code of a called function as a phase. Raises Unsupported if threads meet in it."""
    blocks = graph.blocks
    inside, ends = _reach(blocks, function.entry)
    if ends or blocks[function.entry].cut is not None:
        raise Unsupported(
            f"threads meet in function '{function.name}', which kernel '{graph.entry.name}' calls",
            hint="the emulator runs it: --host_engine=emulator",
        )
    return _phase(blocks, function.entry, (inside, []), {function.entry: 0})


def _phase(blocks: list[Block], entry: int, body: tuple[list[int], list[int]], numbers: dict[int, int]) -> Phase:
    inside, ends = body
    members = set(inside)
    exits = any(isinstance(blocks[index].terminator, Exit) for index in inside)
    loops = any(target <= index and target in members for index in inside for target in _onward(blocks, index))
    successors = tuple(sorted(numbers[end] for end in ends))
    return Phase(numbers[entry], entry, tuple(inside), successors, exits, loops, blocks[entry].cut)


def _reach(blocks: list[Block], entry: int) -> tuple[list[int], list[int]]:
    """Return the blocks reachable from `entry` without a meeting, and the meetings reached, both ascending."""
    inside = sorted(walk([entry], lambda index: _onward(blocks, index)))
    ends = {target for index in inside for target in blocks[index].successors() if blocks[target].cut is not None}
    return inside, sorted(ends)


def _onward(blocks: list[Block], index: int) -> tuple[int, ...]:
    return tuple(target for target in blocks[index].successors() if blocks[target].cut is None)
