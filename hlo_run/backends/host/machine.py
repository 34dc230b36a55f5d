"""The state of one executable on one device: its memory, loaded kernels, queues and counters."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NoReturn, Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.artifact import BufferAllocation, BufferSlice, Executable, Kernel, accesses, tree_slices, used_allocations
from hlo_run.backends.exchange.team import Wait
from hlo_run.backends.exchange.world import World
from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.emulator.memory import NUMBER_SHIFT, Region, poisoned
from hlo_run.backends.host.emulator.program import numbered_variables
from hlo_run.backends.host.emulator.statistics import KernelStatistics
from hlo_run.backends.host.jit.engine import ReadyLaunch
from hlo_run.backends.host.jit.workers import JitFault, address_of
from hlo_run.backends.host.ptx.control_flow import KernelGraph
from hlo_run.backends.host.variables import variable_regions
from hlo_run.backends.literals import Bytes, Literal
from hlo_run.backends.profile import ThunkObserver
from hlo_run.backends.run_watch import RunWatch
from hlo_run.backends.thunk_values import RngStates
from hlo_run.backends.transfer import constant_bytes, parameter_bytes
from hlo_run.errors import DeviceError, OutOfTime
from hlo_run.hlo.feeds import NO_FEEDS, Feed

_ALIGNMENT_BYTES = 256
_COPIED_BYTES = 1 << 20
"""Results up to this size are copied. A larger result is handed out without a copy, so its memory moves at the next run."""


class Launcher(Protocol):
    """Runs kernels. With `may_replace`, other code with the same results may run in their place."""

    @property
    def may_replace(self) -> bool:
        """True if kernels may be replaced by equivalent code."""
        ...

    @property
    def native_kernels(self) -> int:
        """Grows between runs when more kernels run in native code."""
        ...

    def graph(self, kernel: Kernel) -> KernelGraph:
        """Return a kernel's graph."""
        ...

    def prepare(self, launches: Iterable[tuple[KernelGraph, Launch]], deadline: float | None) -> None:
        """Prepare the launches of a run, for example by compiling them together."""
        ...

    def launch(self, graph: KernelGraph, launch: Launch, deadline: float | None) -> None:
        """Run one launch."""
        ...

    def ready(self, graph: KernelGraph, launch: Launch, deadline: float | None) -> ReadyLaunch | None:
        """Return a function that runs a launch in native code; None if the launch needs another engine. It obeys the deadline."""
        ...

    def explain(self, graph: KernelGraph, launch: Launch, fault: JitFault) -> NoReturn:
        """Raise the DeviceError of a fault in native code."""
        ...


_Given: TypeAlias = "dict[int, list[tuple[BufferSlice, Bytes]]]"


class _Same(Struct, frozen=True):
    """The arrays of a run's arguments, and the parts that every run copies. All other arrays are used in place."""

    leaves: list[Array]
    copied: _Given

    def holds(self, leaves: list[Array]) -> bool:
        """True if these are the same array objects. Their elements may have changed."""
        return len(leaves) == len(self.leaves) and all(map(operator.is_, leaves, self.leaves))


class LoadedKernel(Struct):
    """A kernel with the memory of its module's variables."""

    graph: KernelGraph
    kernel: Kernel
    source_lines: list[str]
    variables: dict[int, Region]


class Machine:
    """The memory of an executable's allocations, kept between runs, and the by-products of a run.

    Temporaries and constants stay in place. A parameter that no thunk writes is the caller's array itself, and large results are
    handed out to the caller, so both may move between runs: `place` returns the allocations that did.
    """

    def __init__(
        self,
        launcher: Launcher,
        executable: Executable,
        checks: frozenset[str],
        observer: ThunkObserver | None = None,
        world: World | None = None,
        device: int = 0,
    ) -> None:
        self.world = world or World()
        self.device = device
        self.launcher = launcher
        self.executable = executable
        self.checks = checks
        self.observer = observer
        self.watch: RunWatch | None = None
        self.memory: list[Bytes] = [np.empty(0, np.uint8)] * len(executable.allocations)
        self.places = [0] * len(executable.allocations)
        """The address of each allocation."""
        self.written: dict[int, NDArray[np.bool_]] = {}  # with the check `init`: the bytes that have been written
        self.statistics: list[KernelStatistics] = []
        self.deadline: float | None = None
        self.seed = 0
        self.iterations: list[int] = []
        """The numbers of the iterations, from 0, of the loops that run; the innermost one last."""
        self.feed: Feed = NO_FEEDS(device)
        self.outfeed: list[Literal] = []
        self.started: dict[str, list[Callable[[], Generator[Wait]]]] = {}
        """By the key of a thunk on another stream: what is left to do when its results are needed."""
        self.rng_states = RngStates()
        results = dict.fromkeys(piece.allocation for piece in tree_slices(executable.result))
        sizes = {number: executable.allocations[number].size_bytes for number in results}
        self._handed_out = dict.fromkeys(number for number, size in sizes.items() if size > _COPIED_BYTES)
        # The caller's arrays must not change, and no result may share memory with them.
        self._own = results.keys() | {piece.allocation for thunk in executable.thunks for piece in accesses(thunk).writes}
        # All other allocations are workspaces of libraries that Host does not use.
        self._used = sorted(used_allocations(executable))
        self._kernels: dict[str, LoadedKernel] = {}
        self._first_values: list[tuple[Region, Bytes]] = []
        self._kernel_by_name = {kernel.name: kernel for kernel in executable.kernels}
        self._ours: set[int] = set()
        self._is_first = True
        self._same: _Same | None = None

    @property
    def may_replace(self) -> bool:
        """True if kernels may be replaced by other code with the same results."""
        return self.launcher.may_replace and not self.checks and self.observer is None

    # ---- memory -------------------------------------------------------------------------------------------------

    def place(self, arguments: Sequence[Literal]) -> set[int]:
        """Bring the arguments to their allocations. Return the allocations whose address has changed."""
        leaves = list(_leaves(arguments))
        whole = self._is_first or "init" in self.checks
        same, self._same = self._same, None  # after an error half way the next run must place everything
        if same is not None and not whole and same.holds(leaves):
            given = same.copied
        else:
            given, same = self._take(leaves, arguments)
        if whole:
            for piece, data in constant_bytes(self.executable):
                given.setdefault(piece.allocation, []).append((piece, data))
        numbers = self._used if whole else dict.fromkeys((*given, *self._handed_out))
        allocations = self.executable.allocations
        moved: set[int] = set()
        for number in numbers:
            memory = self.memory[number] = self._fill(allocations[number], given.get(number, []))
            place = address_of(memory)
            if self.places[number] != place:
                self.places[number] = place
                moved.add(number)
        self._is_first = False
        self._same = same
        return moved

    def _take(self, leaves: list[Array], arguments: Sequence[Literal]) -> tuple[_Given, _Same | None]:
        """Return the bytes of all arguments. If arrays are used in place, also return what a run with the same arrays copies."""
        given: _Given = {}
        pieces = list(parameter_bytes(self.executable, arguments))
        for piece, data in pieces:
            given.setdefault(piece.allocation, []).append((piece, data))
        lie_so = all(np.may_share_memory(leaf, data) for leaf, (_, data) in zip(leaves, pieces, strict=True) if data.size)
        copied = {number: values for number, values in given.items() if number in self._own or not self._fits(number, values)}
        return given, _Same(leaves, copied) if lie_so and "init" not in self.checks else None

    def _fits(self, number: int, given: list[tuple[BufferSlice, Bytes]]) -> bool:
        """True if an argument's own memory can serve as the allocation."""
        piece, data = given[0]
        fills = len(given) == 1 and piece.offset_bytes == 0 and data.size == self.executable.allocations[number].size_bytes
        return fills and data.size % 4 == 0 and address_of(data) % 16 == 0

    def _fill(self, allocation: BufferAllocation, given: list[tuple[BufferSlice, Bytes]]) -> Bytes:
        if given and allocation.index not in self._own and self._fits(allocation.index, given):
            self._ours.discard(allocation.index)
            return given[0][1]  # no thunk writes here, so no copy is needed
        memory = self.memory[allocation.index]
        if "init" in self.checks or memory.size < allocation.size_bytes or allocation.index not in self._ours:
            memory = self._allocate(allocation)
            self._ours.add(allocation.index)
        for piece, data in given:
            memory[piece.offset_bytes : piece.offset_bytes + data.size] = data
        if "init" in self.checks:
            written = self.written[allocation.index] = np.zeros(memory.size, np.bool_)
            for piece, data in given:
                written[piece.offset_bytes : piece.offset_bytes + data.size] = True
        return memory

    def _allocate(self, allocation: BufferAllocation) -> Bytes:
        """Return new memory. At a first run it is poisoned, so that a kernel that skips an element fails its test."""
        size = -(-allocation.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        try:
            return poisoned(size) if self._is_first or "init" in self.checks else np.empty(size, np.uint8)
        except MemoryError as error:
            raise DeviceError(f"no memory for allocation {allocation.index} of {allocation.size_bytes} bytes") from error

    def read(self, piece: BufferSlice) -> Bytes:
        """Return the bytes of a slice as a view."""
        return self.memory[piece.allocation][piece.offset_bytes : piece.offset_bytes + piece.size_bytes]

    def poison(self, piece: BufferSlice) -> None:
        """Fill a slice with a value that no right kernel leaves there."""
        target = self.read(piece)
        target[:] = poisoned(target.size)

    def read_result(self, piece: BufferSlice) -> Bytes:
        """Return the bytes of a part of the result. The caller may keep them."""
        data = self.read(piece)
        return data if piece.allocation in self._handed_out else data.copy()

    def release_results(self) -> None:
        """Drop the memory of results that were handed out. The next run allocates new memory for them."""
        for number in self._handed_out:
            self.memory[number] = np.empty(0, np.uint8)

    def start(self, deadline: float | None, seed: int, feed: Feed) -> None:
        """Reset the state of a run: deadline, seed, queues, statistics and random number states."""
        self.deadline, self.seed, self.feed = deadline, seed, feed
        if self.observer is not None:
            self.observer.begin_run()
        self.statistics = []
        self.outfeed = []
        self.iterations.clear()
        self.rng_states = RngStates()

    def check_time(self, name: str) -> None:
        """Raise OutOfTime if the deadline has passed, and end if another device failed. `name` is the next thunk."""
        if self.world.team is not None:
            self.world.team.check()
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime(f"the run ran out of time before thunk '{name}'", hint="raise --timeout")

    # ---- written bytes, for the check `init` -------------------------------------------------------------------

    def mark_written(self, piece: BufferSlice) -> None:
        """Record that a whole slice was written."""
        known = self.written.get(piece.allocation)
        if known is not None:
            known[piece.offset_bytes : piece.offset_bytes + piece.size_bytes] = True

    def copy_written(self, source: BufferSlice, destination: BufferSlice) -> None:
        """Record that a slice was copied. Bytes that were unwritten in the source are unwritten in the destination."""
        target = self.written.get(destination.allocation)
        if target is not None:
            known = self.written.get(source.allocation)
            first, start = destination.offset_bytes, source.offset_bytes
            new = True if known is None else known[start : start + source.size_bytes]
            target[first : first + destination.size_bytes] = new

    def check_result(self) -> None:
        """Raise DeviceError if `init` is checked and some bytes of the result were never written."""
        for piece in tree_slices(self.executable.result) if self.written else ():
            written = self.written.get(piece.allocation)
            part = np.ones(1, np.bool_) if written is None else written[piece.offset_bytes :][: piece.size_bytes]
            if not part.all():
                missing = int(np.count_nonzero(~part))
                first = int(np.argmin(part))
                message = f"uninitialised result: nothing has written byte {first} of an array of {piece.size_bytes}"
                raise DeviceError(message, notes=(f"{missing} of its bytes were never written",))

    # ---- kernels ------------------------------------------------------------------------------------------------

    def load(self, name: str) -> LoadedKernel:
        """Return a kernel with its variables. It is loaded on first use."""
        loaded = self._kernels.get(name)
        if loaded is None:
            kernel = self._kernel_by_name[name]
            graph = self.launcher.graph(kernel)
            variables = variable_regions(numbered_variables(graph))
            loaded = self._kernels[name] = LoadedKernel(graph, kernel, kernel.ptx.split("\n"), variables)
            self._first_values += [(region, region.data.copy()) for region in variables.values() if region.writable]
        return loaded

    def forget_variables(self) -> None:
        """Reset the writable variables of all kernels to their initial values, in place."""
        for region, values in self._first_values:
            region.data[:] = values


def _leaves(literals: Sequence[Literal]) -> Iterator[Array]:
    for literal in literals:
        if isinstance(literal, tuple):
            yield from _leaves(literal)
        else:
            yield literal


def argument_region(number: int, piece: BufferSlice, data: Bytes, writable: bool, written: NDArray[np.bool_] | None) -> Region:
    """Return the region of a kernel's argument.

    Every argument has its own region number, so a pointer that leaves its slice is detected even inside the allocation.
    """
    end = piece.offset_bytes + piece.size_bytes
    region = Region(
        f"argument {number} (allocation {piece.allocation})",
        "global",
        data,
        piece.offset_bytes,
        end,
        writable=writable,
        written=written,
    )
    if written is not None:
        written[end : region.word_high] = True  # the last word of packed data is read whole
    return region


def pointer(number: int, offset_bytes: int) -> NDArray[np.uint64]:
    """Return the address of an argument in the form that a launch takes: [1, 1] of u64."""
    return np.full((1, 1), ((number + 1) << NUMBER_SHIFT) + offset_bytes, np.uint64)
