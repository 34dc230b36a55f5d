"""The Host platform: runs an executable's kernels on the CPU, from the PTX text that a GPU would get."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hlo_run.artifact import (
    ArraySpec,
    ArrayTree,
    BufferAllocation,
    BufferSlice,
    CopyThunk,
    Executable,
    Kernel,
    KernelThunk,
    Thunk,
)
from hlo_run.backends.host.checks import ALWAYS_ON, CHECKS, make_observer
from hlo_run.backends.host.control_flow import KernelGraph, build_graph
from hlo_run.backends.host.emulator import check_launch, run_kernel
from hlo_run.backends.host.jit.engine import GUESSED_TURNS, JitEngine, JitFault, has_loops
from hlo_run.backends.host.lanes import Launch
from hlo_run.backends.host.memory import NUMBER_SHIFT, Region, poisoned
from hlo_run.backends.host.program import Program, compile_graph, numbered_variables
from hlo_run.backends.host.ptx import Relocation, Variable
from hlo_run.backends.host.ptx_parser import parse_module
from hlo_run.backends.host.statistics import KernelStatistics
from hlo_run.backends.literals import Bytes, Literal
from hlo_run.backends.transfer import constant_bytes, parameter_bytes, result_literal
from hlo_run.errors import DeviceError, Unsupported, UsageError
from hlo_run.target import TargetSpec

_ALIGNMENT_BYTES = 256
ENGINES = ("auto", "emulator", "jit")
"""What `--host_engine` may name."""
_LONG_LAUNCH = 40_000_000
"""Thread-instructions from which on compiling to native code pays: the emulator does some 800 million a second."""


@dataclass(slots=True)
class _LoadedKernel:
    """A kernel and the memory of its module's variables, which lives as long as the run."""

    graph: KernelGraph
    kernel: Kernel
    source_lines: list[str]
    variables: dict[int, Region]
    is_checked: bool = False


class HostBackend:
    """Runs executables on the CPU. Programs are kept per PTX text, so a second run of the same kernel starts at once.

    `checks` names what is watched besides bounds and alignment, which always are: names of `CHECKS`, or `all`.
    A run is stopped after `timeout_seconds` (0: never). `statistics` describes the last run's launches in order, where
    the check of that name was asked for. `engine` is one of `ENGINES`: auto takes the JIT for launches that seem long, but for
    kernels that it cannot do or where a check was asked for. With `in_order`, atomics on floats take effect block by block.
    """

    def __init__(
        self, checks: Iterable[str] = (), timeout_seconds: float = 0.0, engine: str = "auto", in_order: bool = False
    ) -> None:
        named = frozenset(checks)
        if unknown := sorted(named - CHECKS - {"all"}):
            raise UsageError(f"unknown host check '{unknown[0]}'", hint=f"choose from {', '.join(sorted(CHECKS))}, all")
        self._checks = CHECKS if "all" in named else named
        if engine not in ENGINES:
            raise UsageError(f"unknown host engine '{engine}'", hint=f"choose from {', '.join(ENGINES)}")
        if engine == "jit" and self._checks - ALWAYS_ON:
            raise UsageError("--host_check needs the emulator", hint="leave --host_engine=jit out")
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._graphs: dict[tuple[str, str], KernelGraph] = {}
        self._programs: dict[tuple[str, str], Program] = {}
        self._lines: dict[str, list[str]] = {}
        self._prepared: Executable | None = None
        self._jit = JitEngine(in_order)
        self._refused: set[tuple[str, str]] = set()
        self.statistics: tuple[KernelStatistics, ...] = ()

    @property
    def name(self) -> str:
        return "Host"

    @property
    def description(self) -> str:
        return "PTX on the CPU" + {"emulator": ", numpy emulator", "jit": ", native code"}.get(self._engine, "")

    @property
    def target(self) -> TargetSpec | None:
        """Any target will do: the PTX reader knows them all."""
        return None

    def run(self, executable: Executable, arguments: Sequence[Literal]) -> Literal:
        """Run with one literal per entry parameter and return the result.

        Raises DeviceError for faults of a kernel and for a timeout, Unsupported for PTX that is not known.
        """
        deadline = time.monotonic() + self._timeout_seconds if self._timeout_seconds else None
        run = _Run(self, executable, self._checks, deadline)
        run.place(arguments)
        if self._engine != "emulator" and self._prepared is not executable:
            self._jit.prepare(run.launches(), deadline)
            self._prepared = executable
        for thunk in executable.thunks:
            run.thunk(thunk)
        run.check_result()
        self.statistics = tuple(run.statistics)
        return result_literal(executable, run.read)

    def report(self) -> str:
        """Return the statistics of the last run, some lines per launch; nothing if they were not asked for."""
        return "\n".join(map(str, self.statistics))

    def launch_records(self) -> list[dict[str, Any]]:
        """Return the same for `--report_json`."""
        return [launch.record() for launch in self.statistics]

    # ---- kernels ------------------------------------------------------------------------------------------------

    def graph(self, kernel: Kernel) -> KernelGraph:
        """Return the kernel's graph, read when it is first asked for."""
        key = (kernel.ptx, kernel.name)
        if key not in self._graphs:
            self._graphs[key] = build_graph(parse_module(kernel.ptx, f"{kernel.name}.ptx"), kernel.name)
        return self._graphs[key]

    def source_lines(self, kernel: Kernel) -> list[str]:
        """Return the kernel's PTX line by line, for messages."""
        lines = self._lines.get(kernel.ptx)
        if lines is None:
            lines = self._lines[kernel.ptx] = kernel.ptx.split("\n")
        return lines

    def launch(self, graph: KernelGraph, launch: Launch, deadline: float | None) -> None:
        """Run one launch on the engine that is meant for it."""
        kernel = launch.kernel
        key = (kernel.ptx, kernel.name)
        if self.takes_jit(graph, launch) and key not in self._refused:
            try:
                self._jit.run(graph, launch, deadline)
                return
            except Unsupported:
                if self._engine == "jit":
                    raise
                self._refused.add(key)
            except JitFault as fault:
                self._explain(graph, launch, fault)
        run_kernel(self._program(graph, kernel), launch, deadline)

    def takes_jit(self, graph: KernelGraph, launch: Launch) -> bool:
        """Say whether a launch is meant for native code."""
        if self._engine != "auto" or self._checks - ALWAYS_ON:
            return self._engine == "jit"
        instructions = sum(len(block.operations) for block in graph.blocks)
        turns = GUESSED_TURNS if has_loops(graph) else 1
        return instructions * turns * launch.block_threads * launch.grid_blocks >= _LONG_LAUNCH

    def _explain(self, graph: KernelGraph, launch: Launch, fault: JitFault) -> NoReturn:
        """Let the emulator say what the block did that native code stopped at."""
        run_kernel(self._program(graph, launch.kernel), launch, chosen=range(fault.block, fault.block + 1))
        launch.fail("a forbidden access, or a meeting that not all threads reach", fault.line, f"block {fault.block}")

    def _program(self, graph: KernelGraph, kernel: Kernel) -> Program:
        key = (kernel.ptx, kernel.name)
        if key not in self._programs:
            self._programs[key] = compile_graph(graph)
        return self._programs[key]


class _Run:
    """One run: the memory of the allocations and the kernels that were loaded."""

    def __init__(self, backend: HostBackend, executable: Executable, checks: frozenset[str], deadline: float | None) -> None:
        self._backend = backend
        self._executable = executable
        self._checks = checks
        self._deadline = deadline
        self._memory: dict[int, Bytes] = {}
        self._written: dict[int, NDArray[np.bool_]] = {}  # if `init` is checked, the bytes that something wrote
        self._kernels: dict[str, _LoadedKernel] = {}
        # The caller's arrays stay as they are, and no result shares memory with them.
        self._own = frozenset(
            (*_written_allocations(executable.thunks), *(piece.allocation for piece in _slices(executable.result)))
        )
        self.statistics: list[KernelStatistics] = []

    # ---- memory -------------------------------------------------------------------------------------------------

    def place(self, arguments: Sequence[Literal]) -> None:
        """Make the allocations: arguments and constants with their bytes, all others uninitialised."""
        executable = self._executable
        given: dict[int, list[tuple[BufferSlice, Bytes]]] = {}
        for piece, data in (*constant_bytes(executable), *parameter_bytes(executable, arguments)):
            given.setdefault(piece.allocation, []).append((piece, data))
        for allocation in executable.allocations:
            self._memory[allocation.index] = self._allocate(allocation, given.get(allocation.index, []))

    def _allocate(self, allocation: BufferAllocation, given: list[tuple[BufferSlice, Bytes]]) -> Bytes:
        if len(given) == 1 and allocation.index not in self._own:
            piece, data = given[0]
            fills = piece.offset_bytes == 0 and data.size == allocation.size_bytes
            if fills and data.size % 4 == 0 and data.ctypes.data % 16 == 0:
                return data  # nothing writes here: no copy is needed
        try:
            memory = poisoned(-(-allocation.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        except MemoryError as error:
            raise DeviceError(f"no memory for allocation {allocation.index} of {allocation.size_bytes} bytes") from error
        for piece, data in given:
            memory[piece.offset_bytes : piece.offset_bytes + data.size] = data
        if "init" in self._checks:
            written = self._written[allocation.index] = np.zeros(memory.size, np.bool_)
            for piece, data in given:
                written[piece.offset_bytes : piece.offset_bytes + data.size] = True
        return memory

    def read(self, piece: BufferSlice) -> Bytes:
        """Return the bytes of a slice, not a copy."""
        return self._memory[piece.allocation][piece.offset_bytes : piece.offset_bytes + piece.size_bytes]

    # ---- thunks -------------------------------------------------------------------------------------------------

    def thunk(self, thunk: Thunk) -> None:
        """Do what one thunk asks for."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DeviceError(f"the run ran out of time before thunk '{thunk.name}'")
        match thunk:
            case KernelThunk():
                self._launch(thunk)
            case CopyThunk():
                self.read(thunk.destination)[:] = self.read(thunk.source)
                self._copy_written(thunk.source, thunk.destination)

    def _copy_written(self, source: BufferSlice, destination: BufferSlice) -> None:
        known = self._written.get(source.allocation)
        start, end = source.offset_bytes, source.offset_bytes + source.size_bytes
        if (target := self._written.get(destination.allocation)) is not None:
            first = destination.offset_bytes
            target[first : first + destination.size_bytes] = True if known is None else known[start:end]

    def check_result(self) -> None:
        """Raise a DeviceError if `init` is checked and some of the result was never written."""
        for piece in _slices(self._executable.result):
            written = self._written.get(piece.allocation)
            part = np.ones(1, np.bool_) if written is None else written[piece.offset_bytes :][: piece.size_bytes]
            if not part.all():
                missing = int(np.count_nonzero(~part))
                message = (
                    f"uninitialised result: nothing has written byte {int(np.argmin(part))} of an array of {piece.size_bytes}"
                )
                raise DeviceError(message, notes=(f"{missing} of its bytes are missing",))

    def launches(self) -> Iterator[tuple[KernelGraph, Launch]]:
        """Yield the launches for native code that are certain, as far as compiling it goes."""
        for thunk in self._executable.thunks:
            if isinstance(thunk, KernelThunk):
                loaded, launch = self._make_launch(thunk)
                if self._backend.takes_jit(loaded.graph, launch):
                    yield loaded.graph, launch

    def _make_launch(self, thunk: KernelThunk) -> tuple[_LoadedKernel, Launch]:
        loaded = self._load(thunk.kernel)
        regions, parameters = self._argument_regions(thunk)
        launch = Launch(loaded.kernel, loaded.source_lines, {**regions, **loaded.variables}, parameters)
        if not loaded.is_checked:
            check_launch(loaded.graph, launch)
            loaded.is_checked = True
        return loaded, launch

    def _launch(self, thunk: KernelThunk) -> None:
        loaded, launch = self._make_launch(thunk)
        statistics = KernelStatistics(loaded.kernel.name) if self._checks else None
        if statistics is not None:
            launch.observer = make_observer(self._checks, loaded.graph, statistics)
        self._backend.launch(loaded.graph, launch, self._deadline)
        if statistics is not None and "statistics" in self._checks:
            self.statistics.append(statistics)

    def _argument_regions(self, thunk: KernelThunk) -> tuple[dict[int, Region], list[NDArray[np.uint64]]]:
        """Give each argument a number of its own: a pointer that leaves its slice is seen even inside the allocation."""
        regions: dict[int, Region] = {}
        addresses: list[int] = []
        for number, argument in enumerate(thunk.arguments):
            piece = argument.slice
            end = piece.offset_bytes + piece.size_bytes
            written = self._written.get(piece.allocation)
            region = regions[number + 1] = Region(
                f"argument {number} (allocation {piece.allocation})",
                "global",
                self._memory[piece.allocation],
                piece.offset_bytes,
                end,
                writable=argument.written,
                written=written,
            )
            if written is not None:
                written[end : region.word_high] = True  # the last word of packed data is read whole
            addresses.append(((number + 1) << NUMBER_SHIFT) + piece.offset_bytes)
        return regions, list(np.array(addresses, np.uint64).reshape(-1, 1, 1))

    def _load(self, name: str) -> _LoadedKernel:
        loaded = self._kernels.get(name)
        if loaded is None:
            kernel = self._executable.kernel(name)
            graph = self._backend.graph(kernel)
            variables = variable_regions(numbered_variables(graph)) if graph.variables else {}
            loaded = self._kernels[name] = _LoadedKernel(graph, kernel, self._backend.source_lines(kernel), variables)
        return loaded


def variable_regions(variables: Mapping[int, Variable]) -> dict[int, Region]:
    """Return fresh memory for a module's global and constant variables; without initialiser they are zero, as PTX says."""
    numbers = {variable.name: number for number, variable in variables.items()}
    regions: dict[int, Region] = {}
    for number, variable in variables.items():
        data = np.zeros(-(-variable.size_bytes // 16) * 16, np.uint8)
        if variable.initializer is not None:
            data[: len(variable.initializer)] = np.frombuffer(variable.initializer, np.uint8)
        for relocation in variable.relocations:
            _relocate(data, relocation, numbers)
        writable = variable.space == "global"
        regions[number] = Region(f"variable {variable.name}", variable.space, data, 0, variable.size_bytes, writable=writable)
    return regions


def _relocate(data: Bytes, relocation: Relocation, numbers: Mapping[str, int]) -> None:
    number = numbers.get(relocation.symbol)
    if number is None:
        raise DeviceError(f"the PTX takes the address of '{relocation.symbol}', which it does not define")
    address = (number << NUMBER_SHIFT) + relocation.addend
    data[relocation.offset : relocation.offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)


def _written_allocations(thunks: Sequence[Thunk]) -> Iterable[int]:
    for thunk in thunks:
        match thunk:
            case KernelThunk():
                yield from (argument.slice.allocation for argument in thunk.arguments if argument.written)
            case CopyThunk():
                yield thunk.destination.allocation


def _slices(tree: ArrayTree) -> Iterable[BufferSlice]:
    if isinstance(tree, ArraySpec):
        yield tree.slice
        return
    for part in tree:
        yield from _slices(part)
