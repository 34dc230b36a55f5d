"""Run the thunks of an executable on a device. numpy runs thunks without a device library, on copies of the arrays."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, assert_never

import numpy as np
from msgspec import Struct

from hlo_run import custom_calls
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
    Executable,
    FunctionCall,
    GemmThunk,
    InfeedThunk,
    Kernel,
    KernelThunk,
    LibraryWork,
    MemsetThunk,
    Nesting,
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
    tree_leaves,
    tree_slices,
)
from hlo_run.backends.cuda.graphs import Graphs
from hlo_run.backends.cuda.libraries import Libraries
from hlo_run.backends.cuda.memory import DeviceMemory
from hlo_run.backends.cuda.shared_device import SharedDevice
from hlo_run.backends.library.arrays import LibraryCall, empty, store, view
from hlo_run.backends.library.calls import library_call
from hlo_run.backends.library.matrix_calls import is_user_function
from hlo_run.backends.library.results import checked_leaves
from hlo_run.backends.literals import Bytes, Literal, to_bytes
from hlo_run.backends.profile import ThunkObserver
from hlo_run.backends.run_watch import RunWatch
from hlo_run.backends.thunk_values import RngStates, copied_places, copied_result, counted, product_at, seed_bytes, taken_branch
from hlo_run.errors import DeviceError
from hlo_run.hlo.feeds import NO_FEEDS, Feed


class DeviceState(Struct, frozen=True):
    """Everything that runs share. All work but asynchronous collectives is on `stream`; `function` loads a kernel."""

    driver: Any
    stream: Any
    memory: DeviceMemory
    libraries: Libraries
    graphs: Graphs
    function: Callable[[Kernel], Any]


class CudaRun:
    """Runs thunks in order on the stream of `state`."""

    def __init__(
        self,
        state: DeviceState,
        executable: Executable,
        seed: int,
        observer: ThunkObserver | None = None,
        feed: Feed | None = None,
        shared: SharedDevice | None = None,
        watch: RunWatch | None = None,
    ) -> None:
        self._shared, self._watch = shared, watch
        self._state, self._executable, self._seed = state, executable, seed
        self._driver, self._memory, self._observer = state.driver, state.memory, observer
        self._feed = feed or NO_FEEDS(0)
        self.outfeed: list[Literal] = []
        self._rng_states = RngStates()
        self._iterations: list[int] = []
        self._messages: dict[int, deque[list[Bytes]]] = {}

    def run(self) -> None:
        """Enqueue the executable's thunks. The device may finish later."""
        if self._observer is not None:
            self._observer.begin_run()
        self._sequence(self._executable.thunks)

    def _sequence(self, thunks: Sequence[Thunk]) -> None:
        for thunk in thunks:
            if self._watch is not None:
                self._memory.settle()
                for piece in self._watch.before(thunk, self._read, self._iterations):
                    self._memory.poison(piece)
            begin = time.perf_counter()
            self._thunk(thunk)
            if self._watch is not None:
                self._memory.settle()
                self._watch.after(thunk, self._read)
            if self._observer is not None:
                self._memory.settle()
                self._observer.add(thunk, begin, self._read)

    def _thunk(self, thunk: Thunk) -> None:
        match thunk:
            case KernelThunk():
                self.launcher(thunk)()
            case CopyThunk():
                if thunk.source.size_bytes:
                    target, source = self._address(thunk.destination), self._address(thunk.source)
                    self._memory.copy(target, source, thunk.source.size_bytes)
            case SliceCopyThunk():
                if thunk.size_bytes:
                    source, target = map(self._address, copied_places(thunk, self._iterations))
                    self._memory.copy(target, source, thunk.size_bytes)
            case SlicedProductThunk():
                self._thunk(product_at(thunk, self._iterations))
                copied = copied_result(thunk, self._iterations)
                if copied is not None:
                    source, target = map(self._address, copied)
                    self._memory.copy(target, source, copied[0].size_bytes)
            case MemsetThunk():
                count = thunk.destination.size_bytes // 4
                replica, partition = (0, 0) if self._shared is None else self._shared.place
                value = {"kReplicaId": replica, "kPartitionId": partition}.get(thunk.kind, thunk.value)
                self._memory.fill_words(self._address(thunk.destination), value, count)
            case SequentialThunk():
                self._sequence(thunk.thunks)
            case AsyncStartThunk():
                if not self._start(thunk):
                    self._sequence(thunk.thunks)
            case AsyncDoneThunk():
                if self._shared is not None:
                    self._shared.finish(thunk.key)
            case CommandBufferThunk():
                self._command_buffer(thunk)
            case WhileThunk():
                self._while(thunk)
            case ConditionalThunk():
                self._conditional(thunk)
            case RngStateThunk():
                self._write(thunk.result, self._rng_states.advance(thunk))
            case RngSeedThunk():
                seed = seed_bytes(thunk, self._seed)
                self._write(thunk.result.slice, np.resize(seed, thunk.result.slice.size_bytes))
            case CustomCallThunk() if is_user_function(thunk):
                self._custom_call(thunk)
            case InfeedThunk() | OutfeedThunk() | SendThunk() | RecvThunk():
                self._transfer(thunk)
            case CollectiveThunk() if self._shared is not None:
                reason = self._shared.collective(thunk, self._memory)
                if reason:
                    self._state.libraries.refused[f"{thunk.name} ({thunk.kind})"] = reason
            case LibraryWork() | SortThunk() | CustomCallThunk() | CollectiveThunk():
                if not self._state.libraries.run(thunk):
                    call = library_call(thunk)
                    assert call is not None, f"{thunk.kind} has a library call"
                    self._by_numpy(call)
            case _:
                assert_never(thunk)

    def _start(self, thunk: AsyncStartThunk) -> bool:
        """Begin asynchronous collectives beside the main stream. False: they run on it, in the order of the thunks.

        So do other asynchronous thunks, and all in a run that is observed or watched, which reads results after each thunk.
        """
        collectives = [inner for inner in thunk.thunks if isinstance(inner, CollectiveThunk)]
        if self._shared is None or self._is_observed or len(collectives) != len(thunk.thunks):
            return False
        return self._shared.start(thunk.key, thunk.stream_number, collectives, self._memory)

    def _command_buffer(self, thunk: CommandBufferThunk) -> None:
        """Run a command buffer from its graph if it has one. A run that is observed runs each thunk by itself instead."""
        if self._is_observed:
            self._sequence(thunk.thunks)
            return
        work = partial(self._sequence, thunk.thunks)
        self._state.graphs.run(thunk.name, work, lambda: all(map(self._is_recordable, thunk.thunks)))

    def _is_recordable(self, thunk: Thunk) -> bool:
        """True for a thunk that only enqueues work on the stream. A product that numpy computes does not."""
        match thunk:
            case KernelThunk() | CopyThunk() | MemsetThunk():
                return True
            case GemmThunk():
                return self._state.libraries.takes_product(thunk)
            case SliceCopyThunk() | FunctionCall() | Nesting() | AsyncDoneThunk():
                return False
            case _:
                assert_never(thunk)

    def _while(self, thunk: WhileThunk) -> None:
        watch = self._watch
        try:
            for _ in counted(self._iterations, thunk.trip_count, lambda: self._goes_on(thunk, watch)):
                self._choose_watch(thunk, watch)
                self._sequence(thunk.body)
        finally:
            self._watch = watch

    def _choose_watch(self, thunk: WhileThunk, watch: RunWatch | None) -> None:
        """Let the iteration that begins be watched, or not."""
        if watch is not None:
            number = self._iterations[-1]
            self._watch = watch if watch.next_watched(thunk, number) == number else None

    def _goes_on(self, thunk: WhileThunk, watch: RunWatch | None) -> bool:
        self._choose_watch(thunk, watch)
        self._sequence(thunk.condition)
        goes_on = bool(self._read(thunk.predicate)[0])
        if watch is not None and not goes_on:
            watch.loop_ended(thunk, self._iterations[-1])
        return goes_on

    def _conditional(self, thunk: ConditionalThunk) -> None:
        self._sequence(thunk.branches[taken_branch(thunk, self._read(thunk.selector))])

    @property
    def _is_observed(self) -> bool:
        return self._observer is not None or self._watch is not None

    # ---- memory -------------------------------------------------------------------------------------------------

    def _address(self, place: BufferSlice) -> int:
        return self._memory.address(place)

    def _read(self, place: BufferSlice) -> Bytes:
        return self._memory.read(place)

    def _write(self, place: BufferSlice, data: Bytes) -> None:
        self._memory.write(place, data)

    # ---- kernels and libraries ----------------------------------------------------------------------------------

    def launcher(self, thunk: KernelThunk) -> Callable[[], None]:
        """Return a function that launches the thunk's kernel. The kernel is loaded and its arguments are bound."""
        kernel = self._executable.kernel(thunk.kernel)
        function = self._state.function(kernel)
        pointers = [np.uint64(self._address(argument.slice)) for argument in thunk.arguments]
        return partial(function, *pointers, grid=kernel.grid, block=kernel.block, stream=self._state.stream)

    def _by_numpy(self, call: LibraryCall) -> None:
        inputs = [view(spec, self._read(spec.slice)) for spec in call.inputs]
        outputs = [empty(spec) for spec in call.outputs]
        call.compute(inputs, outputs)
        for spec, array in zip(call.outputs, outputs, strict=True):
            data = np.empty(spec.slice.size_bytes, np.uint8)
            store(spec, data, array)
            self._write(spec.slice, data)

    def _custom_call(self, thunk: CustomCallThunk) -> None:
        operands = [self._array(operand) for operand in thunk.operands]
        result = custom_calls.call(thunk.target, "CUDA", operands, thunk.config, thunk.name)
        for spec, array in checked_leaves(thunk, result):
            data = np.empty(spec.slice.size_bytes, np.uint8)
            store(spec, data, array)
            self._write(spec.slice, data)

    def _array(self, tree: ArrayTree) -> Any:
        if isinstance(tree, ArraySpec):
            return view(tree, self._read(tree.slice))
        return tuple(self._array(part) for part in tree)

    def _transfer(self, thunk: InfeedThunk | OutfeedThunk | SendThunk | RecvThunk) -> None:
        """Pass messages, from the device to itself if it is the only one, and literals through infeed and outfeed queues."""
        if self._shared is not None and isinstance(thunk, SendThunk) and not thunk.is_host_transfer:
            self._shared.send(thunk, self._memory)
        elif self._shared is not None and isinstance(thunk, RecvThunk):
            self._shared.receive(thunk, self._memory)
        elif isinstance(thunk, SendThunk) and not thunk.is_host_transfer:
            sent = [self._read(piece) for piece in tree_slices(thunk.source)]
            self._messages.setdefault(thunk.channel, deque()).append(sent)
        elif isinstance(thunk, RecvThunk):
            waiting = self._messages.get(thunk.channel)
            if not waiting:
                raise DeviceError(f"%{thunk.name} waits forever: nothing was sent on channel {thunk.channel}")
            for piece, data in zip(tree_slices(thunk.result), waiting.popleft(), strict=True):
                self._write(piece, data)
        elif isinstance(thunk, InfeedThunk):
            for spec in tree_leaves(thunk.result):
                self._write(spec.slice, to_bytes(self._feed(spec.dtype, spec.dims), spec.dtype, spec.minor_to_major))
        elif isinstance(thunk, OutfeedThunk):
            self.outfeed.append(self._array(thunk.source))
