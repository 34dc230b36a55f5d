"""The Host platform: runs an executable's kernels on the CPU, from the PTX text that a GPU would get."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
from hlo_run.backends.host.checks import CHECKS, KernelStatistics, make_observer
from hlo_run.backends.host.emulator import check_launch, run_kernel
from hlo_run.backends.host.lanes import Launch
from hlo_run.backends.host.memory import NUMBER_SHIFT, Region, poisoned
from hlo_run.backends.host.program import Program, compile_program
from hlo_run.backends.host.ptx import Relocation, Variable
from hlo_run.backends.host.ptx_parser import parse_module
from hlo_run.backends.literals import Bytes, Literal
from hlo_run.backends.transfer import constant_bytes, parameter_bytes, result_literal
from hlo_run.errors import DeviceError, UsageError
from hlo_run.target import TargetSpec

_ALIGNMENT_BYTES = 256


@dataclass(slots=True)
class _LoadedKernel:
    """A compiled kernel and the memory of its module's variables, which lives as long as the run."""

    program: Program
    kernel: Kernel
    source_lines: list[str]
    variables: dict[int, Region]


class HostBackend:
    """Runs executables on the CPU. Programs are kept per PTX text, so a second run of the same kernel starts at once.

    `checks` names what is watched besides bounds, alignment and barriers, which always are: `race`, `statistics`.
    A run is stopped after `timeout_seconds` (0: never). `statistics` describes the last run's launches in order, where
    the check of that name was asked for.
    """

    def __init__(self, checks: Iterable[str] = (), timeout_seconds: float = 0.0) -> None:
        self._checks = frozenset(checks)
        if unknown := sorted(self._checks - CHECKS):
            raise UsageError(f"unknown host check '{unknown[0]}'", hint=f"choose from {', '.join(sorted(CHECKS))}")
        self._timeout_seconds = timeout_seconds
        self._programs: dict[tuple[str, str], Program] = {}
        self.statistics: tuple[KernelStatistics, ...] = ()

    @property
    def name(self) -> str:
        return "Host"

    @property
    def description(self) -> str:
        return "PTX on the CPU, numpy emulator"

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
        for thunk in executable.thunks:
            run.thunk(thunk)
        self.statistics = tuple(run.statistics)
        return result_literal(executable, run.read)

    def report(self) -> str:
        """Return the statistics of the last run, one line per launch; nothing if they were not asked for."""
        return "\n".join(map(str, self.statistics))

    def program(self, kernel: Kernel) -> Program:
        """Return the kernel's program, compiled when it is first asked for."""
        key = (kernel.ptx, kernel.name)
        if key not in self._programs:
            self._programs[key] = compile_program(parse_module(kernel.ptx, f"{kernel.name}.ptx"), kernel.name)
        return self._programs[key]


class _Run:
    """One run: the memory of the allocations and the kernels that were loaded."""

    def __init__(self, backend: HostBackend, executable: Executable, checks: frozenset[str], deadline: float | None) -> None:
        self._backend = backend
        self._executable = executable
        self._checks = checks
        self._deadline = deadline
        self._memory: dict[int, Bytes] = {}
        self._kernels: dict[str, _LoadedKernel] = {}
        # The caller's arrays stay as they are, and no result shares memory with them.
        self._own = frozenset((*_written_allocations(executable.thunks), *_allocations(executable.result)))
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

    def _launch(self, thunk: KernelThunk) -> None:
        loaded = self._load(thunk.kernel)
        regions, parameters = self._argument_regions(thunk)
        statistics = KernelStatistics(loaded.kernel.name)
        launch = Launch(
            loaded.kernel,
            loaded.source_lines,
            {**regions, **loaded.variables},
            parameters,
            make_observer(self._checks, statistics),
        )
        check_launch(loaded.program, launch)
        run_kernel(loaded.program, launch, self._deadline)
        if "statistics" in self._checks:
            self.statistics.append(statistics)

    def _argument_regions(self, thunk: KernelThunk) -> tuple[dict[int, Region], list[NDArray[np.uint64]]]:
        """Give each argument a number of its own: a pointer that leaves its slice is seen even inside the allocation."""
        regions: dict[int, Region] = {}
        parameters: list[NDArray[np.uint64]] = []
        for number, argument in enumerate(thunk.arguments):
            piece = argument.slice
            end = piece.offset_bytes + piece.size_bytes
            regions[number + 1] = Region(
                f"argument {number} (allocation {piece.allocation})",
                "global",
                self._memory[piece.allocation],
                piece.offset_bytes,
                end,
                writable=argument.written,
            )
            address = ((number + 1) << NUMBER_SHIFT) + piece.offset_bytes
            parameters.append(np.full((1, 1), address, np.uint64))
        return regions, parameters

    def _load(self, name: str) -> _LoadedKernel:
        loaded = self._kernels.get(name)
        if loaded is None:
            kernel = self._executable.kernel(name)
            program = self._backend.program(kernel)
            loaded = _LoadedKernel(program, kernel, kernel.ptx.split("\n"), variable_regions(program.variables))
            self._kernels[name] = loaded
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


def _allocations(tree: ArrayTree) -> Iterable[int]:
    if isinstance(tree, ArraySpec):
        yield tree.slice.allocation
        return
    for part in tree:
        yield from _allocations(part)
