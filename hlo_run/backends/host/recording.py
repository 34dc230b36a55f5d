"""Record the steps of an executable as a list for a native player, so that a small kernel costs no Python.

Launches on one worker, copies, fills, loops and branches become instructions of the list. Other steps run in Python, between two
calls of the player.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
from msgspec import Struct

from hlo_run.artifact import BufferSlice, LoopOffset
from hlo_run.backends.exchange.team import Wait
from hlo_run.backends.host.control_steps import (
    CommandBufferStep,
    ConditionalStep,
    SequenceStep,
    WhileStep,
    every_step,
    run_steps,
    work_of,
)
from hlo_run.backends.host.emulator.memory import LOCAL_NUMBER, SHARED_NUMBER
from hlo_run.backends.host.jit.body import CANCELLED
from hlo_run.backends.host.jit.engine import ReadyLaunch, slice_shift
from hlo_run.backends.host.jit.llvm import Loaded
from hlo_run.backends.host.jit.plan import CANCEL, CHOSEN, FAULT, LOCAL, SHARED, TABLE
from hlo_run.backends.host.jit.player import CallList, MemoryOffset, Op, Player, Status, Word
from hlo_run.backends.host.jit.workers import (
    FAULT_BYTES,
    Bytes,
    Execution,
    JitFault,
    address_of,
    aligned,
    read_fault,
    scratch_bytes,
    table_rows,
)
from hlo_run.backends.host.machine import Machine
from hlo_run.backends.host.steps import CopyStep, FillStep, KernelStep, SliceCopyStep, SlicedProductStep, Step
from hlo_run.backends.run_watch import RunWatch
from hlo_run.containment.board import KERNELS_FILE, Blame, native

_SCRATCH = range(SHARED, CHOSEN + 1)
_ENDLESS = 1 << 62


class Recording:
    """A list of instructions with the memory that it needs. The steps are bound; `ready` has the launches in native code.

    If the machine is watched, its steps run one by one outside of loops and in the iterations that the watch chooses.
    """

    def __init__(self, machine: Machine, steps: Iterable[Step], ready: Mapping[Step, ReadyLaunch]) -> None:
        self._machine = machine
        self._ready = ready
        self._memory = _Memory(self._ready.values())
        self._list = CallList()
        self._iterations: list[MemoryOffset] = []
        """Words of the list with the iterations of the loops around, innermost last. Loops that copy no slice are left out."""
        self._zero = self._list.data([0])
        self._calls: dict[int, tuple[Callable[[], Generator[Wait] | None], Step]] = {}
        self._spreads: list[_Spread] = []
        self._watch: RunWatch | None = None
        self._is_watched = machine.watch is not None  # the steps that are written now
        self._play_steps(steps)
        self._list.add(Op.END)
        self._player = Player(self._list, self._memory.fault_place)
        self._names = "\n".join(f"{number} {step.thunk.name}" for number, (_, step) in self._calls.items())
        for spread in self._spreads:
            spread.settle(self._player)

    def move(self, places: Sequence[int]) -> None:
        """Set the addresses of the allocations."""
        self._player.move(places)

    def work(self) -> Generator[Wait]:
        """Play the list to its end, and yield the waits. Raises the errors of the steps, and DeviceError after a timeout."""
        self._memory.reset()
        machine = self._machine
        self._watch, machine.watch = machine.watch, None
        try:
            yield from self._play_in_time()
        finally:
            machine.watch = self._watch

    def _play_in_time(self) -> Generator[Wait]:
        deadline = self._machine.deadline
        if deadline is None:
            yield from self._play()
            return
        watch = threading.Timer(max(0.0, deadline - time.monotonic()), self._memory.stop)
        watch.start()
        try:
            yield from self._play()
        finally:
            watch.cancel()
            watch.join()

    def _play(self) -> Generator[Wait]:
        player, machine = self._player, self._machine
        player.rest()
        status, where = self._play_from(0)
        while status is not Status.DONE:
            if status is Status.PAUSE:
                machine.check_time(self._name_of(where))
                player.rest()
                status, where = self._play_from(where)
                continue
            call, step = self._calls[where]
            try:
                if status is Status.FAULT:
                    raise JitFault(*self._memory.fault())
                machine.check_time(step.thunk.name)
                work = call()
                if work is not None:
                    yield from work
            except JitFault as fault:
                self._explain(step, fault)
            status, where = self._play_from(where + 1)

    def _play_from(self, first: int) -> tuple[Status, int]:
        with native("native code", "a kernel", blame=Blame.KERNEL, input_name=KERNELS_FILE, text=self._names):
            return self._player.play(first)

    def _name_of(self, where: int) -> str:
        """Return the name of the first thunk at or behind an instruction."""
        return next((step.thunk.name for number, (_, step) in self._calls.items() if number >= where), "the end")

    def _explain(self, step: Step, fault: JitFault) -> NoReturn:
        assert isinstance(step, KernelStep), "only kernels have faults"
        step.bind()  # to the memory of this run
        graph, launch = step.bound()
        if fault.line == CANCELLED:
            launch.run_out_of_time()
        self._machine.launcher.explain(graph, launch, fault)

    # ---- writing the list ---------------------------------------------------------------------------------------

    def _play_steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._play_step(step)

    def _play_step(self, step: Step) -> None:
        if self._is_watched and _runs_whole(step):
            self._calls[self._list.add(Op.CALL)] = partial(self._run_watched, [step]), step
            return
        match step:
            case WhileStep() if self._is_watched:
                self._play_watched_loop(step)
            case KernelStep() if step in self._ready:
                self._play_kernel(step, self._ready[step])
            case CopyStep():
                source, destination = step.slices
                self._list.add(Op.COPY, _place(destination), _place(source), source.size_bytes)
            case SliceCopyStep() if step.copy.size_bytes:
                copy = step.copy
                to = self._place_in_loop(copy.destination, copy.destination_offset, copy.size_bytes)
                source = self._place_in_loop(copy.source, copy.source_offset, copy.size_bytes)
                self._list.add(Op.SLICE, to, source, copy.size_bytes)
            case FillStep() if step.constant is not None and step.slices[0].size_bytes:
                self._list.add(Op.FILL, _place(step.slices[0]), step.constant, step.slices[0].size_bytes // 4)
            case WhileStep():
                self._play_loop(step)
            case ConditionalStep():
                self._play_branches(step)
            case SequenceStep() | CommandBufferStep():
                self._play_steps(step.sequences[0])
            case _:
                run = self._in_loops(step) if _copies_slices((step,)) else work_of(step)
                self._calls[self._list.add(Op.CALL)] = run, step

    def _place_in_loop(self, whole: BufferSlice, offset: LoopOffset, size_bytes: int) -> MemoryOffset:
        """Write the record of a place that depends on a loop's iteration. Return where it is."""
        is_around = offset.loop < len(self._iterations)
        factor = self._iterations[-1 - offset.loop] if is_around else self._zero
        return self._list.data([factor, _place(whole), offset.first_bytes, offset.step_bytes, whole.size_bytes - size_bytes])

    def _in_loops(self, step: Step) -> Callable[[], Generator[Wait]]:
        """Return a function that runs a step which copies slices, with the numbers of the iterations."""
        around, machine = tuple(self._iterations), self._machine

        def run() -> Generator[Wait]:
            machine.iterations[:] = [self._player.word(place) for place in around]
            yield from run_steps(machine, [step])
            machine.iterations.clear()

        return run

    def _play_kernel(self, step: KernelStep, ready: ReadyLaunch) -> None:
        states = [self._state(step, ready, worker) for worker in range(ready.workers)]
        if ready.workers > 1:
            spread = _Spread(ready, states, self._memory)
            self._spreads.append(spread)
            self._calls[self._list.add(Op.CALL)] = spread.run, step
            return
        launch = ready.launch
        number = self._list.add(Op.KERNEL, ready.compiled.code.address, launch.grid_blocks, states[0], ready.weight)
        self._calls[number] = step.run, step

    def _state(self, step: KernelStep, ready: ReadyLaunch, worker: int) -> MemoryOffset:
        """Write a worker's state with its table of regions. Return its place."""
        plan, scratch = ready.compiled.plan, self._memory.workers[worker]
        bases: list[Word] = [MemoryOffset(piece.allocation, slice_shift(piece.offset_bytes)) for piece in step.slices]
        bases += ready.bases[len(bases) :]  # the module's variables do not move
        own = {SHARED_NUMBER: scratch.places[SHARED], LOCAL_NUMBER: scratch.places[LOCAL]}
        table: list[Word] = []
        for number, row in enumerate(table_rows(plan, own)):
            table += [bases[number], *row[1:]] if number < len(bases) else row
        return self._list.data([*scratch.places, self._list.data(table), *bases])

    def _play_loop(self, step: WhileStep) -> None:
        iteration = self._list.data([0]) if _copies_slices(step.inner()) else None
        if iteration is not None:
            self._list.add(Op.SET, iteration, 0)
            self._iterations.append(iteration)
        condition, body = step.sequences
        if step.trip_count:
            counter = self._list.data([0])
            self._list.add(Op.SET, counter, step.trip_count)
            begin = self._list.here
            self._play_body(body, iteration)
            self._list.add(Op.REPEAT, counter, begin)
        elif step.trip_count is None:
            begin = self._list.here
            self._play_steps(condition)
            leave = self._list.add(Op.UNLESS, _place(step.slices[0]))
            self._play_body(body, iteration)
            self._list.add(Op.JUMP, begin)
            self._list.set_operand(leave, 1, self._list.here)
        if iteration is not None:
            self._iterations.pop()

    def _play_watched_loop(self, step: WhileStep) -> None:
        """Write a loop whose head is a call that runs the watched iterations and sets how many others follow."""
        iteration, others, goes_on = (self._list.data([0]) for _ in range(3))
        copies_slices = _copies_slices(step.inner())
        self._list.add(Op.SET, iteration, 0)
        if copies_slices:
            self._iterations.append(iteration)
        head = self._list.add(Op.CALL)
        self._calls[head] = partial(self._run_watched_iterations, step, iteration, others, goes_on), step
        exits = [self._list.add(Op.UNLESS, goes_on)]
        self._is_watched = False
        begin = self._list.here
        condition, body = step.sequences
        if step.trip_count is None:
            self._play_steps(condition)
            exits.append(self._list.add(Op.UNLESS, _place(step.slices[0])))
        self._play_body(body, iteration)
        self._list.add(Op.REPEAT, others, begin)
        self._list.add(Op.JUMP, head)
        self._is_watched = True
        for leaving in exits:
            self._list.set_operand(leaving, 1, self._list.here)
        if step.trip_count is None:
            self._calls[self._list.add(Op.CALL)] = partial(self._loop_ended, step, iteration), step
        if copies_slices:
            self._iterations.pop()

    def _loop_ended(self, step: WhileStep, iteration: MemoryOffset) -> None:
        assert self._watch is not None, "a list with such a loop is for a watched run"
        self._watch.loop_ended(step.loop, self._player.word(iteration))

    def _run_watched_iterations(
        self, step: WhileStep, iteration: MemoryOffset, others: MemoryOffset, goes_on: MemoryOffset
    ) -> Generator[Wait]:
        """Run iterations as long as they are watched. Set whether the loop goes on, and how many iterations precede the next."""
        machine, player, watch, count = self._machine, self._player, self._watch, step.trip_count
        assert watch is not None, "a list with such a loop is for a watched run"
        number, end = player.word(iteration), _ENDLESS if count is None else count
        following = watch.next_watched(step.loop, number)
        condition, body = step.sequences
        machine.iterations.append(number)
        try:
            while number == following < end:
                machine.iterations[-1] = number
                if count is None:
                    yield from self._run_watched(condition)
                    if not machine.read(step.slices[0])[0]:
                        end = number
                        break
                yield from self._run_watched(body)
                machine.check_time(step.thunk.name)
                number += 1
                following = watch.next_watched(step.loop, number)
        finally:
            machine.iterations.pop()
        player.set_word(iteration, number)
        player.set_word(goes_on, int(number < end))
        player.set_word(others, min(following, end) - number)

    def _run_watched(self, steps: Sequence[Step]) -> Generator[Wait]:
        machine = self._machine
        machine.watch = self._watch
        try:
            yield from run_steps(machine, steps)
        finally:
            machine.watch = None

    def _play_body(self, body: Iterable[Step], iteration: MemoryOffset | None) -> None:
        self._play_steps(body)
        if iteration is not None:
            self._list.add(Op.INCREMENT, iteration)

    def _play_branches(self, step: ConditionalStep) -> None:
        """Write a conditional. A true predicate falls through to a jump to the first branch; a false one skips that jump."""
        sequences, place = step.sequences, _place(step.slices[0])
        if step.is_predicate:
            other = self._list.add(Op.UNLESS, place)
            starts = [self._list.add(Op.JUMP), self._list.add(Op.JUMP)]
            self._list.set_operand(other, 1, starts[1])
        else:
            self._list.add(Op.SWITCH, place, len(sequences))
            starts = [self._list.add(Op.JUMP) for _ in sequences]
        ends: list[int] = []
        for start, sequence in zip(starts, sequences, strict=True):
            self._list.set_operand(start, 0, self._list.here)
            self._play_steps(sequence)
            ends.append(self._list.add(Op.JUMP))
        for end in ends:
            self._list.set_operand(end, 0, self._list.here)


def _runs_whole(step: Step) -> bool:
    """True if a watched run does not look for steps inside of a step."""
    is_nested = isinstance(step, WhileStep | ConditionalStep | SequenceStep | CommandBufferStep)
    return not is_nested or step.thunk.kind == "kDynamicSliceFusion"


def _copies_slices(steps: Iterable[Step]) -> bool:
    return any(isinstance(step, SliceCopyStep | SlicedProductStep) for step in every_step(steps))


def _place(piece: BufferSlice) -> MemoryOffset:
    return MemoryOffset(piece.allocation, piece.offset_bytes)


class _Scratch:
    """The scratch memory of one worker, large enough for every launch, as launches run one after the other."""

    def __init__(self, sizes: dict[int, int], cancel: Bytes) -> None:
        self._arrays = {index: aligned(size) for index, size in sizes.items()}
        self.fault = aligned(FAULT_BYTES)
        arrays = {**self._arrays, FAULT: self.fault, CANCEL: cancel}
        self.places = [address_of(arrays[index]) for index in range(TABLE)]
        """The first words of a state."""


class _Memory:
    """The scratch memory of all workers."""

    def __init__(self, launches: Iterable[ReadyLaunch]) -> None:
        sizes = dict.fromkeys(_SCRATCH, 0)
        workers = 1
        for ready in launches:
            workers = max(workers, ready.workers)
            for index, size in scratch_bytes(ready.compiled.plan).items():
                sizes[index] = max(sizes[index], size)
        self._cancel = aligned(4)
        self.workers = [_Scratch(sizes, self._cancel) for _ in range(workers)]

    @property
    def fault_place(self) -> int:
        """The address where a launch on one worker writes its fault."""
        return address_of(self.workers[0].fault)

    def reset(self) -> None:
        """Clear the faults and the request to stop."""
        self._cancel[:] = 0
        for scratch in self.workers:
            scratch.fault[:] = 0

    def stop(self) -> None:
        """Request all workers to stop."""
        self._cancel[:4].view(np.int32)[0] = 1

    def fault(self) -> tuple[int, int]:
        """Return (line, block) of the first worker's fault."""
        return read_fault(self.workers[0].fault)


class _PlacedWorker(Struct, frozen=True):
    """A worker whose state is in the list."""

    state_place: int
    fault: Bytes

    def run(self, code: Loaded, first: int, last: int) -> tuple[int, int]:
        code.run(first, last, self.state_place)
        return read_fault(self.fault)


class _Spread:
    """A launch on several workers."""

    def __init__(self, ready: ReadyLaunch, states: list[MemoryOffset], memory: _Memory) -> None:
        self._ready = ready
        self._states = states
        self._memory = memory
        self.workers: list[_PlacedWorker] = []

    def settle(self, player: Player) -> None:
        """Look up the addresses of the states after the list is complete."""
        faults = [scratch.fault for scratch in self._memory.workers]
        self.workers = [_PlacedWorker(player.own_place(state), fault) for state, fault in zip(self._states, faults, strict=False)]

    def stop(self) -> None:
        self._memory.stop()

    def run(self) -> None:
        Execution(self._ready.compiled.code, self, self._ready.launch).run(None)
