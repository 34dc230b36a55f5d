"""A module, compiled once, that runs with and without faults in its kernels as `hlo-run` runs it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hlo_run
from hlo_run.artifact import Executable, KernelThunk, Thunk, WhileThunk, nested_sequences
from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.host.backend import HostBackend
from hlo_run.commands.run import run
from hlo_run.commands.task import Task
from hlo_run.errors import DeviceError, HloRunError, KernelMismatch, Mismatch
from hlo_run.execution.arguments import MODULE_SEED, Arguments
from hlo_run.execution.console import FilePosition, SilentConsole
from hlo_run.execution.results import FileResult
from hlo_run.hlo.feeds import NO_FEEDS
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module, planned_buffers
from hlo_run.records import replace
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.target import preset
from mutation.alone import ROUNDINGS_OF_MODULE, Alone, Bytes, difference, identities_of, types_of
from mutation.faults import KINDS, Fault, faults
from mutation.stores import Array

# Verdicts on a fault. The last three count apart: the kernel alone gives equal numbers, stops, or the PTX is not valid here.
FOUND, MISSED, EQUIVALENT, STOPPED, INVALID = "found", "missed", "equivalent", "stopped", "invalid"
END_TO_END, ALONE = "end to end", "alone"
# Places of a kind that are tried in a kernel until one is neither equivalent nor stopped.
_TRIES = 3
# Of the arguments on which a fault that the module's comparison missed may show.
_OTHER_SEEDS = (1001, 1002)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault of one kernel.

    `lines` are the lines of the verdict that found it. `units` is how much the kernel's result changes alone, as in `Change`,
    `of_result` how much the module's result changes on other arguments, if its comparison missed the fault. `ptx` is that of a
    missed one.
    """

    file: str
    kernel: str
    kind: str
    place: str
    verdict: str
    lines: str = ""
    units: float = 0.0
    detail: str = ""
    ptx: str = ""
    of_result: float = math.inf

    def row(self) -> str:
        """Return the outcome as tab-separated values."""
        sizes = f"{self.units:.3g}", f"{self.of_result:.3g}"
        cells = (self.file, self.kernel, self.kind, self.verdict, self.lines, *sizes, self.place, self.detail)
        return "\t".join(" ".join(cell.split()) for cell in cells)


HEADINGS = "file\tkernel\tkind\tverdict\tfound by\tunits\tof result\tplace\tmessage"


class Subject:
    """A module with its executable and the types of its buffers."""

    def __init__(self, file: Path, options: Options) -> None:
        self.file, self.options = file.name, options
        self.module = wrap_bare_module(hlo_run.parse(file.read_text(encoding="utf-8"), file.name))
        self.optimized = self.module.clone()
        executable = compile_module(PassContext(preset("h100"), options.compile), self.optimized)
        # Host may sort with numpy in the place of kernels that sort, which would hide faults in them.
        text = module_to_string(self.optimized, FULL)  # by which a run checks its kernels
        self.executable = replace(executable, thunks=without_sorts(executable.thunks), module_text=text)
        self._buffers = planned_buffers(options.compile, self.optimized)
        self._sets: list[list[Literal]] = []
        self._right: list[list[Bytes]] = []
        self._grid: DeviceGrid | None = None

    def launches(self) -> dict[str, KernelThunk]:
        """Return the first launch of each kernel that a run may launch."""
        found: dict[str, KernelThunk] = {}
        for thunk in launched(self.executable.thunks):
            found.setdefault(thunk.kernel, thunk)
        return found

    def alone(self, thunk: KernelThunk, seed: int) -> tuple[Alone, list[Array]]:
        """Return the launch of a kernel alone, and its arrays."""
        types = types_of(self.optimized, self._buffers, thunk)
        arrays = [
            Array(number, argument.slice.size_bytes, types.get(argument.slice, ""), argument.written)
            for number, argument in enumerate(thunk.arguments)
        ]
        identities = identities_of(self.optimized, self._buffers, thunk)
        return Alone(self.executable, thunk, types, seed, identities), arrays

    def verdict(self, kernel: str = "", ptx: str = "") -> tuple[str, str, str]:
        """Return what the default command says, the lines that say so, and its message, with the PTX of a kernel replaced.

        If only the line of the kernels finds the fault, the module's line is asked without it, with all later tries.
        """
        verdict, lines, message = self._verdict(self.options, kernel, ptx)
        if verdict == FOUND and END_TO_END not in lines:
            again, others, _ = self._verdict(dataclasses.replace(self.options, check_kernels="off"), kernel, ptx)
            lines = f"{lines}, {others}" if again == FOUND else lines
        return verdict, lines, message

    def change_of_result(self, kernel: str, ptx: str) -> float:
        """Return how much a fault changes the module's result on ten sets of arguments with other seeds, as `Change.units`.

        Half of them are drawn as a run draws them, half as its later tries. Infinite if a run stops.
        """
        if self._grid is None:
            for seed in _OTHER_SEEDS:
                options = dataclasses.replace(self.options, seed=seed)
                source = Arguments(options, self.module, (), FilePosition(0, 1))
                self._sets += [source.next(1)[0], *(values for values, _ in source.others(1))]
                self._grid = source.grid
            self._right = [self._result(values, "", "") for values in self._sets]
        types = [leaf.element_type for _, leaf in self.module.entry.root.shape.leaves() if leaf.is_array]
        most = 0.0
        for values, right in zip(self._sets, self._right, strict=True):
            try:
                found = self._result(values, kernel, ptx)
            except HloRunError:
                return math.inf
            most = max(most, *map(difference, types, right, found))
            if most > ROUNDINGS_OF_MODULE:
                break
        return most

    def _result(self, values: list[Literal], kernel: str, ptx: str) -> list[Bytes]:
        """Return the bytes of each array of the result."""
        assert self._grid is not None, "the caller has made the arguments"
        backend = HostBackend((), self.options.timeout)
        return _bytes(run_on_grid(backend, self._changed(kernel, ptx), values, self._grid, MODULE_SEED, NO_FEEDS))

    def _changed(self, kernel: str, ptx: str) -> Executable:
        """Return the executable with the PTX of a kernel replaced."""
        kernels = tuple(replace(k, ptx=ptx) if k.name == kernel else k for k in self.executable.kernels)
        return replace(self.executable, kernels=kernels)

    def _verdict(self, options: Options, kernel: str, ptx: str) -> tuple[str, str, str]:
        result = FileResult(self.file, self.module.name, reference="Interpreter")
        task = Task.of(options, FilePosition(0, 1), result, SilentConsole(), lambda choose: choose(()))
        task.executable = self._changed(kernel, ptx)
        try:
            run(task, self.module)
        except Mismatch as error:
            is_alone = any(outcome.differs for iteration in result.iterations for outcome in iteration.kernels)
            lines = [ALONE] if is_alone else []
            lines += [] if isinstance(error, KernelMismatch) else [END_TO_END]
            return FOUND, ", ".join(lines), error.message
        except HloRunError as error:
            return STOPPED, "", error.message
        return MISSED, "", ""


def launched(thunks: Iterable[Thunk]) -> Iterator[KernelThunk]:
    """Yield the launches of kernels. A loop with a known trip count never runs its condition."""
    for thunk in thunks:
        if isinstance(thunk, KernelThunk):
            yield thunk
        elif isinstance(thunk, WhileThunk) and thunk.trip_count is not None:
            yield from launched(thunk.body)
        else:
            for inner in nested_sequences(thunk):
                yield from launched(inner)


def without_sorts(thunks: Sequence[Thunk]) -> tuple[Thunk, ...]:
    """Return thunks whose kernels sort themselves."""
    return tuple(replace(thunk, sort=None) if isinstance(thunk, KernelThunk) else thunk for thunk in thunks)


def outcomes(file: Path, options: Options, kernels: int, kinds: int, seed: int, only: Sequence[str] = KINDS) -> Iterator[Outcome]:
    """Yield the outcomes of faults of at most `kinds` kinds in at most `kernels` kernels of a module, chosen by the seed."""
    subject = Subject(file, options)
    verdict, lines, detail = subject.verdict()
    if verdict != MISSED:
        yield Outcome(file.name, "", "none", "", verdict, lines, 0.0, detail)
        return
    choice = random.Random(f"{seed} {file.name}")
    launches = subject.launches()
    for name in choice.sample(sorted(launches), min(kernels, len(launches))):
        alone, arrays = subject.alone(launches[name], seed)
        kernel = subject.executable.kernel(name)
        places = {kind: faults(kernel.ptx, kind, arrays, kernel.grid) for kind in KINDS}
        possible = [kind for kind, found in places.items() if found and kind in only]
        for kind in choice.sample(possible, min(kinds, len(possible))):
            found = places[kind]
            for fault in choice.sample(found, min(_TRIES, len(found))):
                outcome = _outcome(subject, alone, name, fault)
                yield outcome
                if outcome.verdict in (FOUND, MISSED):
                    break


def _outcome(subject: Subject, alone: Alone, name: str, fault: Fault) -> Outcome:
    kernel = replace(subject.executable.kernel(name), ptx=fault.ptx)
    change = alone.change(kernel)

    def made(verdict: str, lines: str = "", detail: str = "") -> Outcome:
        return Outcome(subject.file, name, fault.kind, fault.place, verdict, lines, change.units, detail)

    if change.error is not None:
        return made(STOPPED if isinstance(change.error, DeviceError) else INVALID, "", change.error.message)
    if not change.units:
        return made(EQUIVALENT)
    found = made(*subject.verdict(name, fault.ptx))
    if found.verdict in (FOUND, MISSED) and END_TO_END not in found.lines:
        found = dataclasses.replace(found, of_result=subject.change_of_result(name, fault.ptx))
    return dataclasses.replace(found, ptx=fault.ptx) if found.verdict == MISSED else found


def _bytes(result: Literal) -> list[Bytes]:
    """Return the bytes of each array of a result, in order."""
    if isinstance(result, tuple):
        return [part for each in result for part in _bytes(each)]
    return [np.ascontiguousarray(result).reshape(-1).view(np.uint8)]
