"""One step per thunk: bound to memory once, then run many times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hlo_run.artifact import (
    ArraySpec,
    BufferSlice,
    CopyThunk,
    KernelThunk,
    MemsetThunk,
    RngSeedThunk,
    RngStateThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    Thunk,
    accesses,
)
from hlo_run.backends.exchange.team import Wait, run_alone
from hlo_run.backends.host.emulator.checks import make_observer
from hlo_run.backends.host.emulator.emulator import check_launch
from hlo_run.backends.host.emulator.lanes import Launch
from hlo_run.backends.host.emulator.memory import Region
from hlo_run.backends.host.emulator.statistics import KernelStatistics
from hlo_run.backends.host.machine import Machine, argument_region, pointer
from hlo_run.backends.host.ptx.control_flow import KernelGraph
from hlo_run.backends.library.arrays import Array, LibraryCall, empty, is_viewable, store, view
from hlo_run.backends.library.calls import library_call
from hlo_run.backends.literals import Bytes
from hlo_run.backends.thunk_values import copied_places, copied_result, product_at


class Step(Protocol):
    """The work of one thunk. `bind` is called before the first run and after one of `slices` has moved."""

    @property
    def thunk(self) -> Thunk:
        """The thunk."""
        ...

    @property
    def slices(self) -> tuple[BufferSlice, ...]:
        """The buffer slices that the step accesses."""
        ...

    def inner(self) -> Iterator[Step]:
        """Yield the direct inner steps."""
        ...

    def bind(self) -> None:
        """Take the memory of the slices."""
        ...

    def run(self) -> None:
        """Do the work of the thunk."""
        ...


class Leaf:
    """A step without inner steps."""

    def inner(self) -> Iterator[Step]:
        """Yield nothing."""
        return iter(())


class WaitingStep(ABC):
    """A step that may wait for other devices."""

    @abstractmethod
    def work(self) -> Generator[Wait]:
        """Do the work of the thunk. Yields when the device has to wait."""

    def run(self) -> None:
        """Do the work of the thunk. Raises DeviceError if it has to wait."""
        run_alone(self.work())


class WaitingLeaf(WaitingStep, Leaf):
    """A step without inner steps that may wait for other devices."""


class KernelStep(Leaf):
    """Launch a kernel."""

    def __init__(self, machine: Machine, thunk: KernelThunk) -> None:
        self.thunk = thunk
        self.slices = tuple(argument.slice for argument in thunk.arguments)
        self._machine = machine
        self._launch: Launch | None = None

    def bind(self) -> None:
        """Load the kernel, and prepare its launch with the current memory. Raises DeviceError if the launch is invalid."""
        machine = self._machine
        loaded = machine.load(self.thunk.kernel)
        regions: dict[int, Region] = {}
        parameters: list[NDArray[np.uint64]] = []
        for number, argument in enumerate(self.thunk.arguments):
            piece = argument.slice
            data, written = machine.memory[piece.allocation], machine.written.get(piece.allocation)
            regions[number + 1] = argument_region(number, piece, data, argument.written, written)
            parameters.append(pointer(number, piece.offset_bytes))
        self._launch = Launch(loaded.kernel, loaded.source_lines, {**regions, **loaded.variables}, parameters)
        check_launch(loaded.graph, self._launch)
        self._graph = loaded.graph

    def bound(self) -> tuple[KernelGraph, Launch]:
        """Return the graph and the launch of `run`."""
        assert self._launch is not None, "the step is bound"
        return self._graph, self._launch

    def run(self) -> None:
        """Launch the kernel, with an observer if checks are on."""
        machine, launch = self._machine, self._launch
        assert launch is not None, "the step is bound"
        if machine.checks:
            statistics = KernelStatistics(launch.kernel.name)
            launch.observer = make_observer(machine.checks, self._graph, statistics)
            if "statistics" in machine.checks:
                machine.statistics.append(statistics)
        machine.launcher.launch(self._graph, launch, machine.deadline)


class CopyStep(Leaf):
    """Copy bytes."""

    def __init__(self, machine: Machine, thunk: CopyThunk) -> None:
        self.thunk = thunk
        self.slices = (thunk.source, thunk.destination)
        self._machine = machine

    def bind(self) -> None:
        """Take the memory of source and destination."""
        self._source, self._destination = (self._machine.read(piece) for piece in self.slices)

    def run(self) -> None:
        """Copy the bytes."""
        self._destination[:] = self._source
        self._machine.copy_written(self.thunk.source, self.thunk.destination)


class SliceCopyStep(Leaf):
    """Copy bytes between places that depend on the iteration of a loop."""

    def __init__(self, machine: Machine, thunk: SliceCopyThunk) -> None:
        self.thunk = thunk
        self.copy = thunk
        self.slices = (thunk.source, thunk.destination)
        self._machine = machine

    def bind(self) -> None:
        """Do nothing: the places are looked up when the step runs."""

    def run(self) -> None:
        """Copy the bytes."""
        machine = self._machine
        source, destination = copied_places(self.copy, machine.iterations)
        machine.read(destination)[:] = machine.read(source)
        machine.copy_written(source, destination)


class FillStep(Leaf):
    """Fill a slice with bytes that are known when the step runs. If they repeat a known 32-bit value, it is `constant`."""

    def __init__(
        self,
        machine: Machine,
        thunk: MemsetThunk | RngStateThunk | RngSeedThunk,
        place: BufferSlice,
        data: Callable[[], Bytes],
        constant: int | None = None,
    ) -> None:
        self.constant = constant
        self.thunk = thunk
        self.slices = (place,)
        self._machine = machine
        self._data = data

    def bind(self) -> None:
        """Take the memory of the slice."""
        self._target = self._machine.read(self.slices[0])

    def run(self) -> None:
        """Fill the slice, repeating the bytes."""
        data = self._data()
        self._target[:] = np.resize(data, self._target.size)
        self._machine.mark_written(self.slices[0])


class LibraryStep(Leaf):
    """Call numpy on views of the buffers."""

    def __init__(self, machine: Machine, thunk: Thunk, call: LibraryCall) -> None:
        self.thunk = thunk
        self.slices = tuple(spec.slice for spec in (*call.inputs, *call.outputs))
        self._machine = machine
        self._call = call
        self._inputs: list[Array | None] = []
        self._outputs: list[Array | None] = []
        self._bound: Callable[[], object] | None = None

    def bind(self) -> None:
        """Make views of the operands and results, and bind the call if all have views."""
        self._inputs = [self._view(spec) for spec in self._call.inputs]
        self._outputs = [self._view(spec) for spec in self._call.outputs]
        inputs, outputs = ([array for array in arrays if array is not None] for arrays in (self._inputs, self._outputs))
        if self._call.bind and len(inputs) == len(self._inputs) and len(outputs) == len(self._outputs):
            self._bound = self._call.bind(inputs, outputs)

    def _view(self, spec: ArraySpec) -> Array | None:
        return view(spec, self._machine.read(spec.slice)) if is_viewable(spec) else None

    def run(self) -> None:
        """Call the function, and store the results that have no view."""
        machine, call = self._machine, self._call
        if self._bound is not None and not machine.written:
            self._bound()
            return
        inputs = [
            view(spec, machine.read(spec.slice)) if seen is None else seen
            for spec, seen in zip(call.inputs, self._inputs, strict=True)
        ]
        outputs = [empty(spec) if seen is None else seen for spec, seen in zip(call.outputs, self._outputs, strict=True)]
        call.compute(inputs, outputs)
        for spec, array, seen in zip(call.outputs, outputs, self._outputs, strict=True):
            if seen is None:
                store(spec, machine.read(spec.slice), array)
            machine.mark_written(spec.slice)


class SlicedProductStep(Leaf):
    """Multiply arrays whose places depend on the iteration of a loop."""

    def __init__(self, machine: Machine, thunk: SlicedProductThunk) -> None:
        self.thunk = thunk
        self._product = thunk
        touched = accesses(thunk)
        self.slices = (*touched.reads, *touched.writes)
        self._machine = machine
        self._placed: dict[tuple[BufferSlice, ...], LibraryStep] = {}

    def bind(self) -> None:
        """Forget the views of the memory before."""
        self._placed = {}

    def run(self) -> None:
        """Multiply the arrays of this iteration."""
        product = product_at(self._product, self._machine.iterations)
        key = tuple(spec.slice for spec in (product.lhs, product.rhs, product.addend, product.result) if spec is not None)
        step = self._placed.get(key)
        if step is None:
            call = library_call(product)
            assert call is not None, "a product has a library call"
            step = LibraryStep(self._machine, product, call)
            step.bind()
            self._placed[key] = step
        step.run()
        copied = copied_result(self._product, self._machine.iterations)
        if copied is not None:
            source, target = copied
            self._machine.read(target)[:] = self._machine.read(source)
            self._machine.copy_written(source, target)
