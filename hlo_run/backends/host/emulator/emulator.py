"""The emulator: run all threads of a chunk of blocks in lockstep, with one numpy operation per PTX instruction.

No masks are needed while all lanes take the same path. Where lanes diverge, they split into groups with their own registers. The
group with the lowest block in program order runs next, and groups that arrive at the same block merge. Inside a called function
the order is that of the calls, then that of the blocks: as if the function were copied. At barriers and warp-wide instructions a
group waits until all concerned threads are in it; a deadlock is a fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hlo_run.backends.host.emulator.lanes import Array, Chunk, Lanes, Launch, distinct, merge_lanes
from hlo_run.backends.host.emulator.memory import Region
from hlo_run.backends.host.emulator.program import CompiledBlock, Meeting, Program, Registers, set_to_zero
from hlo_run.backends.host.ptx.control_flow import Branch, Exit, Invoke, Jump, KernelGraph, Return, Switch
from hlo_run.errors import DeviceError
from hlo_run.target import WARP_THREADS

Bool = NDArray[np.bool_]

CHUNK_LANES = 32768
"""Lanes that run together: enough to hide the interpreter's cost, few enough that some arrays fit into the cache."""
_CHUNK_MEMORY_BYTES = 16 * 2**20


_Values: TypeAlias = "list[Array | None]"


class _ActiveCall(Struct, frozen=True):
    """A call: the block that ends in it, the lanes that made it, and what they passed to a pure function."""

    block: int
    lanes: Lanes
    passed: _Values
    memory_version: int


class _Kept(Struct, frozen=True):
    """The last results of a pure function, what was passed, and by which lanes."""

    call: _ActiveCall
    results: _Values


_Calls: TypeAlias = "tuple[_ActiveCall, ...]"


class _Group(Struct):
    """Lanes at the start of block `block`, with their registers. `waits` is True while the group must wait for others.

    `calls` are the calls that are active, outermost first.
    """

    calls: _Calls
    block: int
    lanes: Lanes
    registers: Registers
    waits: bool = False

    @property
    def place(self) -> tuple[int, ...]:
        """The place in program order. Groups with the same place can merge."""
        return (*(call.block for call in self.calls), self.block)


def run_kernel(program: Program, launch: Launch, deadline: float | None = None, chosen: range | None = None) -> None:
    """Run all blocks of a launch, or the `chosen` ones. Raises DeviceError for a fault and after the `deadline`.

    Blocks are numbered as %ctaid, x fastest. The deadline is a time of time.monotonic.
    """
    chosen = range(launch.grid_blocks) if chosen is None else chosen
    threads = launch.block_threads
    shared_bytes = max(program.graph.shared.size_bytes, launch.kernel.shared_bytes)
    local_bytes = program.graph.local.size_bytes
    per_block = shared_bytes + local_bytes * threads
    blocks = max(1, min(CHUNK_LANES // threads, _CHUNK_MEMORY_BYTES // max(per_block, 1), len(chosen)))
    shared = Region.copies("shared memory", "shared", shared_bytes, blocks)
    local = Region.copies("local memory", "local", local_bytes, blocks * threads)
    with np.errstate(all="ignore"):
        for first in range(chosen.start, chosen.stop, blocks):
            if first != chosen.start:
                shared.reset()
                local.reset()
            count = min(blocks, chosen.stop - first)
            _ChunkRun(program, Chunk(launch, first, count, shared, local), deadline).run()


class _ChunkRun:
    def __init__(self, program: Program, chunk: Chunk, deadline: float | None) -> None:
        self._blocks = program.blocks
        self._chunk = chunk
        self._deadline = deadline
        self._kept: dict[str, _Kept] = {}
        self._memory_version = 0
        self._groups = [_Group((), 0, Lanes(chunk), program.initial_registers())]

    def run(self) -> None:
        while self._groups:
            group = self._next_group()
            block = self._blocks[group.block]
            if block.meeting is not None and not self._all_here(group, block.meeting):
                group.waits = True
                continue
            self._step(group, block)

    def _next_group(self) -> _Group:
        """Return the group to run next: the one with the lowest place, merged with all others there."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            line = self._line(self._blocks[self._groups[0].block])
            self._chunk.launch.run_out_of_time(line, self._groups[0].lanes.describe(0))
        if len(self._groups) == 1 and not self._groups[0].waits:
            return self._groups[0]
        runnable = [group for group in self._groups if not group.waits]
        if not runnable:
            return self._release()
        place = min(group.place for group in runnable)
        together = [group for group in self._groups if group.place == place]
        return together[0] if len(together) == 1 else self._join(together)

    def _join(self, together: list[_Group]) -> _Group:
        """Merge groups at the same place."""
        calls, block = together[0].calls, together[0].block
        lanes, order = merge_lanes([group.lanes for group in together])
        registers: Registers = [None] * len(together[0].registers)
        for slot in self._live_slots(calls, block):
            parts = [group.registers[slot] for group in together]
            known = next((part for part in parts if part is not None), None)
            if known is None:
                continue
            flat = [
                np.zeros(group.lanes.count, known.dtype) if part is None else group.lanes.flat(part)
                for group, part in zip(together, parts, strict=True)
            ]
            registers[slot] = np.concatenate(flat)[order].reshape(lanes.shape)
        joined = _Group(calls, block, lanes, registers)
        self._groups = [group for group in self._groups if group not in together] + [joined]
        return joined

    def _step(self, group: _Group, block: CompiledBlock) -> None:
        """Run one block and move the group to the next one."""
        decision = block.function(group.lanes, group.registers)
        if block.changes_memory:
            self._memory_version += 1
            self._kept.clear()
        if group.lanes.observer is not None:
            group.lanes.observer.step(group.lanes, block.block, decision)
        match block.block.terminator:
            case Jump(target):
                group.block = target
            case Branch(_, negated, taken, otherwise):
                assert decision is not None, "a branch has a predicate"
                self._branch(group, decision, (otherwise, taken) if negated else (taken, otherwise))
            case Switch(_, targets, line):
                assert decision is not None, "a switch has an index"
                self._switch(group, decision, targets, line)
            case Invoke(_, entry, following):
                self._invoke(group, block, entry, following)
            case Return():
                self._return(group)
            case Exit():
                self._chunk.retire(group.lanes)
                self._groups.remove(group)
                for other in self._groups:
                    other.waits = False
        group.waits = False

    # ---- calls --------------------------------------------------------------------------------------------------

    def _invoke(self, group: _Group, block: CompiledBlock, entry: int, following: int) -> None:
        """Go to a function; or behind the call, if the same lanes passed the same to a pure function before."""
        call, registers = block.call, group.registers
        passed = [registers[slot] for slot in call.inputs] if call else []
        kept = self._kept.get(call.function) if call else None
        # Observers see all instructions.
        if call and kept and group.lanes.observer is None and _is_same(kept.call, group.lanes, passed):
            for slot, result in zip(call.outputs, kept.results, strict=True):
                registers[slot] = result
            group.block = following
            return
        group.calls = (*group.calls, _ActiveCall(group.block, group.lanes, passed, self._memory_version))
        group.block = entry
        set_to_zero(registers, block.unset)

    def _return(self, group: _Group) -> None:
        active = group.calls[-1]
        block = self._blocks[active.block]
        if block.call and active.memory_version == self._memory_version and _are_same(active.lanes, group.lanes):
            self._kept[block.call.function] = _Kept(active, [group.registers[slot] for slot in block.call.outputs])
        assert isinstance(block.block.terminator, Invoke), "a call is active where a function returns"
        group.calls, group.block = group.calls[:-1], block.block.terminator.following

    def _branch(self, group: _Group, predicate: Array, places: tuple[int, int]) -> None:
        if predicate.all():
            group.block = places[0]
        elif not predicate.any():
            group.block = places[1]
        else:
            flat = group.lanes.flat(predicate)
            self._split(group, [(flat, places[0]), (~flat, places[1])])

    def _switch(self, group: _Group, index: Array, targets: tuple[int, ...], line: int) -> None:
        flat = group.lanes.flat(index)
        outside = flat >= len(targets)
        if outside.any():
            lane = int(np.flatnonzero(outside)[0])
            self._chunk.launch.fail("branch index out of range", line, group.lanes.describe(lane))
        numbers = distinct(flat)
        if numbers.size == 1:
            group.block = targets[int(numbers[0])]
        else:
            self._split(group, [(flat == number, targets[int(number)]) for number in numbers])

    def _live_slots(self, calls: _Calls, block: int) -> Iterator[int]:
        """Return the registers that a group at a block and its callers may still read."""
        return chain(self._blocks[block].live_slots, *(self._blocks[call.block].kept_slots for call in calls))

    def _split(self, group: _Group, parts: list[tuple[Bool, int]]) -> None:
        """Split a group by the blocks to which its lanes go."""
        self._groups.remove(group)
        for chosen, block in parts:
            registers: Registers = [None] * len(group.registers)
            for slot in self._live_slots(group.calls, block):
                values = group.registers[slot]
                registers[slot] = None if values is None else group.lanes.gather(values, chosen)
            self._groups.append(_Group(group.calls, block, group.lanes.subset(chosen), registers))

    # ---- threads that meet --------------------------------------------------------------------------------------

    def _all_here(self, group: _Group, meeting: Meeting) -> bool:
        if group.lanes.count == self._chunk.alive_count:
            return True
        return bool(self._complete(group, meeting).all())

    def _complete(self, group: _Group, meeting: Meeting) -> Bool:
        """Return, per lane, whether all living threads of its block or warp that must meet it are in its group."""
        lanes, chunk = group.lanes, self._chunk
        everybody = Lanes(chunk)
        if meeting.scope == "block":
            own = lanes.flat(lanes.rows)
            present = np.bincount(own, minlength=chunk.block_count)
            needed = np.bincount(everybody.flat(everybody.rows)[chunk.alive], minlength=chunk.block_count)
            return (present == needed)[own]
        own = lanes.warps
        members = self._members(group, meeting)
        mask_of_warp = np.zeros(int(everybody.warps[-1]) + 1, np.uint32)
        mask_of_warp[own] = lanes.flat(members)
        bit = np.uint32(1) << (everybody.flat(everybody.threads) % WARP_THREADS).astype(np.uint32)
        needed_lanes = chunk.alive & ((mask_of_warp[everybody.warps] & bit) != 0)
        needed = np.bincount(everybody.warps[needed_lanes], minlength=mask_of_warp.size)
        present_lanes = needed_lanes[lanes.flat_ids]
        present = np.bincount(own[present_lanes], minlength=mask_of_warp.size)
        return (present == needed)[own]

    def _members(self, group: _Group, meeting: Meeting) -> Array:
        if not meeting.members_in_slot:
            return np.full((1, 1), meeting.members, np.uint32)
        members = group.registers[meeting.members]
        assert members is not None, "a live mask has a value"
        return members

    def _release(self) -> _Group:
        """Called when all groups wait: return a group whose blocks or warps are complete. Raises DeviceError for a deadlock."""
        by_place = sorted(self._groups, key=lambda group: group.place)
        places = sorted({group.place for group in by_place})
        for place in places:
            together = [group for group in by_place if group.place == place]
            group = together[0] if len(together) == 1 else self._join(together)
            meeting = self._blocks[group.block].meeting
            assert meeting is not None, "groups wait only where threads meet"
            complete = self._complete(group, meeting)
            if complete.all():
                return group
            if complete.any():
                self._split(group, [(complete, group.block), (~complete, group.block)])
                self._groups[-1].waits = True
                return self._groups[-2]
        self._deadlock(by_place[0])
        raise AssertionError("a deadlock raises")

    def _deadlock(self, group: _Group) -> None:
        meeting = self._blocks[group.block].meeting
        assert meeting is not None, "groups wait only where threads meet"
        what = "barrier" if meeting.scope == "block" else "warp-wide instruction"
        whole = "block" if meeting.scope == "block" else "warp"
        others = [other for other in self._groups if other is not group]
        note = ""
        if others:
            elsewhere = self._blocks[others[0].block]
            note = f"{others[0].lanes.describe(0)} waits at PTX line {self._line(elsewhere)}"
        message = f"divergent {what}: not all threads of the {whole} reach it together"
        self._chunk.launch.fail(message, meeting.line, group.lanes.describe(0), *([note] if note else []))

    @staticmethod
    def _line(block: CompiledBlock) -> int:
        return block.block.operations[0].line if block.block.operations else 0


def _are_same(some: Lanes, others: Lanes) -> bool:
    return some is others or (some.shape == others.shape and np.array_equal(some.flat_ids, others.flat_ids))


def _is_same(call: _ActiveCall, lanes: Lanes, passed: _Values) -> bool:
    """True if a call had the same lanes and the same arguments, bit by bit."""
    return _are_same(call.lanes, lanes) and all(map(_are_equal, call.passed, passed))


def _are_equal(some: Array | None, others: Array | None) -> bool:
    if some is None or others is None or some is others:
        return some is others
    return some.dtype == others.dtype and np.array_equal(some, others)


def check_launch(graph: KernelGraph, launch: Launch) -> None:
    """Raise DeviceError if the launch's sizes or arguments do not match the kernel."""
    kernel, entry = launch.kernel, graph.entry
    threads = launch.block_threads
    if threads < 1 or launch.grid_blocks < 1 or threads > 1024:
        raise DeviceError(f"kernel '{kernel.name}' cannot be launched with grid {kernel.grid} and block {kernel.block}")
    required = (*entry.reqntid, 1, 1)[:3]
    if entry.reqntid and required != kernel.block:
        raise DeviceError(f"kernel '{kernel.name}' requires blocks of {required} threads, not {kernel.block}")
    if entry.maxntid and threads > np.prod(entry.maxntid):
        raise DeviceError(f"kernel '{kernel.name}' allows at most {np.prod(entry.maxntid)} threads a block, not {threads}")
    if len(launch.parameters) != len(entry.parameters):
        raise DeviceError(
            f"kernel '{kernel.name}' has {len(entry.parameters)} parameters, got {len(launch.parameters)} arguments"
        )
