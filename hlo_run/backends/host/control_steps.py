"""Steps that contain other steps, call registered functions or talk to the host; and the mapping of thunks to steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, assert_never

import numpy as np

from hlo_run import custom_calls
from hlo_run.arrays import Array
from hlo_run.artifact import (
    ArraySpec,
    ArrayTree,
    AsyncDoneThunk,
    AsyncStartThunk,
    BufferSlice,
    CollectiveThunk,
    CommandBufferThunk,
    ConditionalThunk,
    CopyThunk,
    CustomCallThunk,
    InfeedThunk,
    KernelThunk,
    LibraryWork,
    MemsetThunk,
    OutfeedThunk,
    RecvThunk,
    RngSeedThunk,
    RngStateThunk,
    SendThunk,
    SequentialThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    SortThunk,
    Thunk,
    WhileThunk,
    accesses,
    nested_sequences,
    tree_leaves,
    tree_slices,
)
from hlo_run.artifact.division import FedArray
from hlo_run.backends.exchange.team import Wait
from hlo_run.backends.host.collective_steps import CollectiveStep
from hlo_run.backends.host.machine import Machine
from hlo_run.backends.host.sort_steps import SortStep, sort_launches
from hlo_run.backends.host.steps import (
    CopyStep,
    FillStep,
    KernelStep,
    Leaf,
    LibraryStep,
    SliceCopyStep,
    SlicedProductStep,
    Step,
    WaitingLeaf,
    WaitingStep,
)
from hlo_run.backends.library.arrays import store, view
from hlo_run.backends.library.calls import library_call
from hlo_run.backends.library.matrix_calls import is_user_function
from hlo_run.backends.library.results import checked_leaves
from hlo_run.backends.literals import Bytes, to_bytes
from hlo_run.backends.thunk_values import seed_bytes, taken_branch
from hlo_run.errors import DeviceError
from hlo_run.hlo.feeds import take_tiles


def make_steps(machine: Machine, thunks: Iterable[Thunk]) -> list[Step]:
    """Return one step per thunk. The kernels of one sort may share a step."""
    waiting = deque(thunks)
    steps: list[Step] = []
    while waiting:
        thunk = waiting.popleft()
        launches = sort_launches(machine, thunk, waiting)
        if launches:
            for _ in launches[1:]:
                waiting.popleft()
            steps.append(SortStep(machine, launches))
        else:
            steps.append(make_step(machine, thunk))
    return steps


def make_step(machine: Machine, thunk: Thunk) -> Step:
    """Return the step of a thunk, including the steps of its nested thunks."""
    match thunk:
        case KernelThunk():
            return KernelStep(machine, thunk)
        case CopyThunk():
            return CopyStep(machine, thunk)
        case SliceCopyThunk():
            return SliceCopyStep(machine, thunk)
        case SlicedProductThunk():
            return SlicedProductStep(machine, thunk)
        case CollectiveThunk():
            return CollectiveStep(machine, thunk)
        case MemsetThunk():
            replica, partition = divmod(machine.device, machine.world.partitions)
            value = {"kReplicaId": replica, "kPartitionId": partition}.get(thunk.kind, thunk.value)
            data = np.array([value], np.uint32).view(np.uint8)
            return FillStep(machine, thunk, thunk.destination, lambda: data, value)
        case RngStateThunk():
            return FillStep(machine, thunk, thunk.result, lambda: machine.rng_states.advance(thunk))
        case RngSeedThunk():
            return FillStep(machine, thunk, thunk.result.slice, lambda: seed_bytes(thunk, machine.seed))
        case WhileThunk():
            return WhileStep(machine, thunk)
        case ConditionalThunk():
            return ConditionalStep(machine, thunk)
        case SequentialThunk():
            return SequenceStep(machine, thunk)
        case AsyncStartThunk():
            return StartStep(machine, thunk)
        case AsyncDoneThunk():
            return DoneStep(machine, thunk)
        case CommandBufferThunk():
            return CommandBufferStep(machine, thunk)
        case CustomCallThunk() if is_user_function(thunk):
            return CustomCallStep(machine, thunk)
        case InfeedThunk() | OutfeedThunk() | SendThunk() | RecvThunk():
            return TransferStep(machine, thunk)
        case LibraryWork() | SortThunk() | CustomCallThunk():
            call = library_call(thunk)
            assert call is not None, f"{thunk.kind} has a library call"
            return LibraryStep(machine, thunk, call)
        case _:
            assert_never(thunk)


def run_steps(machine: Machine, steps: Sequence[Step]) -> Generator[Wait]:
    """Run steps in order, and yield their waits. With a deadline or an observer, look at the clock before each step."""
    watch = machine.watch
    if machine.deadline is None and machine.observer is None and watch is None:
        for step in steps:
            if isinstance(step, WaitingStep):
                yield from step.work()
            else:
                step.run()
        return
    for step in steps:
        machine.check_time(step.thunk.name)
        if watch is not None:
            for piece in watch.before(step.thunk, machine.read, machine.iterations):
                machine.poison(piece)
        begin = time.perf_counter()
        if isinstance(step, WaitingStep):
            yield from step.work()
        else:
            step.run()
        if machine.observer is not None:
            machine.observer.add(step.thunk, begin, machine.read)
        if watch is not None:
            watch.after(step.kernels[-1].thunk if isinstance(step, SortStep) else step.thunk, machine.read)


def work_of(step: Step) -> Callable[[], Generator[Wait] | None]:
    """Return the function that does the work of a step. If the step may wait, it returns a generator of the waits."""
    return step.work if isinstance(step, WaitingStep) else step.run


def every_step(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield all steps, including nested ones."""
    for step in steps:
        yield step
        yield from every_step(step.inner())


class _Nested(WaitingStep):
    """A step that contains sequences of other steps."""

    def __init__(self, machine: Machine, thunk: Thunk, places: tuple[BufferSlice, ...]) -> None:
        self.thunk = thunk
        self.slices = places
        self._machine = machine
        self.sequences = [make_steps(machine, thunks) for thunks in nested_sequences(thunk)]

    def inner(self) -> Iterator[Step]:
        """Yield the direct inner steps."""
        for steps in self.sequences:
            yield from steps

    def bind(self) -> None:
        """Look up the slice that decides the control flow, if any."""


class SequenceStep(_Nested):
    """Run steps one after the other: the body of a call."""

    def __init__(self, machine: Machine, thunk: SequentialThunk) -> None:
        super().__init__(machine, thunk, ())

    def work(self) -> Generator[Wait]:
        """Run the inner steps in order."""
        yield from run_steps(self._machine, self.sequences[0])


class StartStep(_Nested):
    """Begin the work of another stream: collectives take their operands, and all other steps run at once."""

    def __init__(self, machine: Machine, thunk: AsyncStartThunk) -> None:
        super().__init__(machine, thunk, ())
        self._key = thunk.key

    def work(self) -> Generator[Wait]:
        """Start the collectives, and leave their ends to the `DoneStep`."""
        started: list[Callable[[], Generator[Wait]]] = []
        for step in self.sequences[0]:
            if isinstance(step, CollectiveStep):
                step.arrive()
                started.append(step.finish)
            else:
                yield from _finish(started)  # a later step may read the results
                yield from run_steps(self._machine, [step])
        self._machine.started[self._key] = started


class DoneStep(WaitingLeaf):
    """Wait for the collectives of a `StartStep`."""

    def __init__(self, machine: Machine, thunk: AsyncDoneThunk) -> None:
        self.thunk = thunk
        self.slices = ()
        self._machine = machine
        self._key = thunk.key

    def bind(self) -> None:
        """Do nothing: the collectives look up their slices themselves."""

    def work(self) -> Generator[Wait]:
        """Store the results of the collectives."""
        yield from _finish(self._machine.started.pop(self._key, []))


def _finish(started: list[Callable[[], Generator[Wait]]]) -> Generator[Wait]:
    for finish in started:
        yield from finish()
    started.clear()


class CommandBufferStep(_Nested):
    """Replay a list of calls. The list is recorded at the first run and again after a touched allocation has moved.

    A profile and a time limit need the clock between thunks: then the steps run one by one, without the recording.
    """

    def __init__(self, machine: Machine, thunk: CommandBufferThunk) -> None:
        touched = accesses(thunk)
        super().__init__(machine, thunk, (*touched.reads, *touched.writes))
        self._calls: list[Callable[[], Generator[Wait] | None]] | None = None

    def bind(self) -> None:
        """Discard the recorded calls."""
        self._calls = None

    def work(self) -> Generator[Wait]:
        """Replay the recorded calls, or run the steps one by one."""
        machine = self._machine
        if machine.observer is not None or machine.deadline is not None or machine.watch is not None:
            yield from run_steps(machine, self.sequences[0])
            return
        if self._calls is None:
            self._calls = [work_of(step) for step in self.sequences[0]]
        for call in self._calls:
            work = call()
            if work is not None:
                yield from work


class WhileStep(_Nested):
    """Run the body `trip_count` times if the count is known, otherwise while the condition holds."""

    def __init__(self, machine: Machine, thunk: WhileThunk) -> None:
        super().__init__(machine, thunk, (thunk.predicate,))
        self.loop = thunk
        self.trip_count = thunk.trip_count

    def bind(self) -> None:
        """Take the memory of the predicate."""
        self._predicate = self._machine.read(self.slices[0])

    def work(self) -> Generator[Wait]:
        """Run the loop. Raises DeviceError if the run is out of time."""
        machine, (condition, body) = self._machine, self.sequences
        iterations, count = machine.iterations, self.trip_count
        iterations.append(0)
        watch = machine.watch
        try:
            while count is None or iterations[-1] < count:
                if watch is not None:
                    machine.watch = watch if watch.next_watched(self.loop, iterations[-1]) == iterations[-1] else None
                if count is None:
                    yield from run_steps(machine, condition)
                    if not self._predicate[0]:
                        break
                yield from run_steps(machine, body)
                machine.check_time(self.thunk.name)
                iterations[-1] += 1
            if watch is not None and count is None:
                watch.loop_ended(self.loop, iterations[-1])
        finally:
            machine.watch = watch
            iterations.pop()


class ConditionalStep(_Nested):
    """Run the branch that the selector chooses."""

    def __init__(self, machine: Machine, thunk: ConditionalThunk) -> None:
        super().__init__(machine, thunk, (thunk.selector,))
        self.conditional = thunk

    @property
    def is_predicate(self) -> bool:
        """True if the selector is a pred[], not an s32[]."""
        return self.conditional.is_predicate

    def bind(self) -> None:
        """Take the memory of the selector."""
        self._selector = self._machine.read(self.slices[0])

    def work(self) -> Generator[Wait]:
        """Run the steps of one branch."""
        yield from run_steps(self._machine, self.sequences[taken_branch(self.conditional, self._selector)])


class CustomCallStep(Leaf):
    """Call a registered function."""

    def __init__(self, machine: Machine, thunk: CustomCallThunk) -> None:
        self.thunk = thunk
        self.slices = (*tree_slices(thunk.operands), *tree_slices(thunk.result))
        self._machine = machine
        self._call = thunk

    def bind(self) -> None:
        """Do nothing: the operands are copied at every run, because the function may keep them."""

    def run(self) -> None:
        """Call the function and store its results. Raises DeviceError if it fails, Unsupported if none is registered."""
        thunk = self._call
        operands = [self._array(operand) for operand in thunk.operands]
        result = custom_calls.call(thunk.target, "Host", operands, thunk.config, thunk.name)
        for spec, array in checked_leaves(thunk, result):
            store(spec, self._machine.read(spec.slice), array)
            self._machine.mark_written(spec.slice)

    def _array(self, tree: ArrayTree) -> object:
        if isinstance(tree, ArraySpec):
            array = view(tree, self._machine.read(tree.slice)).copy()
            return array
        return tuple(self._array(part) for part in tree)


class TransferStep(WaitingLeaf):
    """Infeed, outfeed, and send and recv between devices or with the host."""

    def __init__(self, machine: Machine, thunk: InfeedThunk | OutfeedThunk | SendThunk | RecvThunk) -> None:
        self.thunk = thunk
        self._tree = thunk.result if isinstance(thunk, InfeedThunk | RecvThunk) else thunk.source
        self.slices = tuple(tree_slices(self._tree))
        self._machine = machine

    def bind(self) -> None:
        """Do nothing: slices are looked up when the step runs."""

    def work(self) -> Generator[Wait]:
        """Do the transfer. A recv writes zeros if no device sends to it. Raises DeviceError if a message does not arrive."""
        machine = self._machine
        match self.thunk:
            case InfeedThunk(fed=fed):
                leaves = list(tree_leaves(self._tree))
                arrays = self._fed(fed) if fed else (machine.feed(spec.dtype, spec.dims) for spec in leaves)
                pairs = zip(leaves, arrays, strict=True)
                self._write([to_bytes(array, spec.dtype, spec.minor_to_major) for spec, array in pairs])
            case OutfeedThunk():
                machine.outfeed.append(self._literal(self._tree))
            case SendThunk(is_host_transfer=False, channel=channel, pairs=pairs):
                sent = [machine.read(piece).copy() for piece in self.slices]
                for source, target in self._between(pairs):
                    if source == machine.device:
                        machine.world.send(channel, source, target, sent)
            case SendThunk():
                pass  # nothing reads what the host receives
            case RecvThunk(channel=channel, pairs=pairs):
                source = next((source for source, target in self._between(pairs) if target == machine.device), -1)
                nothing = [np.zeros(piece.size_bytes, np.uint8) for piece in self.slices]
                self._write(nothing if source < 0 else (yield from self._received(channel, source)))

    def _fed(self, arrays: tuple[FedArray, ...]) -> Iterator[Array]:
        machine = self._machine
        return take_tiles(machine.feed, arrays, machine.device % machine.world.partitions)

    def _between(self, pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Return the source-target pairs. A single device without pairs sends to itself."""
        world = self._machine.world
        if not pairs and world.replicas * world.partitions > 1:
            hint = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,0}}"}'
            raise DeviceError(f"%{self.thunk.name} has no source-target pairs", hint=hint)
        return pairs or ((0, 0),)

    def _received(self, channel: int, source: int) -> Generator[Wait, None, list[Bytes]]:
        """Wait for the next message from `source` and return its arrays as bytes."""
        machine = self._machine
        waiting = machine.world.box(channel, source, machine.device)
        reason = f"%{self.thunk.name}: device {source} sends nothing on channel {channel}"
        if not waiting:
            yield Wait(lambda: bool(waiting), lambda: reason, lambda: (source,))
        return waiting.popleft()

    def _write(self, data: Sequence[Bytes]) -> None:
        for piece, part in zip(self.slices, data, strict=True):
            self._machine.read(piece)[: part.size] = part
            self._machine.mark_written(piece)

    def _literal(self, tree: ArrayTree) -> Any:
        if isinstance(tree, ArraySpec):
            return view(tree, self._machine.read(tree.slice)).copy()
        return tuple(self._literal(part) for part in tree)
