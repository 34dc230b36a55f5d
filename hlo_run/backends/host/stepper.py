"""Runs the steps of an executable one at a time, and reads and writes its memory between them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from hlo_run.artifact import ArraySpec, ArrayTree, BufferSlice, Executable
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.host.control_steps import (
    CommandBufferStep,
    ConditionalStep,
    SequenceStep,
    WhileStep,
    every_step,
    make_steps,
)
from hlo_run.backends.host.machine import Machine
from hlo_run.backends.host.steps import KernelStep, Step
from hlo_run.backends.literals import Bytes, Literal, dynamic_to_bytes, to_bytes
from hlo_run.backends.thunk_values import taken_branch
from hlo_run.backends.transfer import literal_of
from hlo_run.hlo.feeds import Feed


class Stepper:
    """The memory of an executable on Host, and its steps. A run has the same steps."""

    def __init__(self, backend: HostBackend, executable: Executable) -> None:
        self._machine = Machine(backend, executable, frozenset())
        self._backend = backend
        self.steps = make_steps(self._machine, executable.thunks)

    def begin(self, arguments: Sequence[Literal], seed: int, feed: Feed, timeout_seconds: float = 0.0) -> None:
        """Bring the arguments to the memory and prepare all launches. Runs nothing. Raises errors of the HloRunError family."""
        machine = self._machine
        machine.start(time.monotonic() + timeout_seconds if timeout_seconds else None, seed, feed)
        machine.place(arguments)
        steps = list(every_step(self.steps))
        for step in steps:
            step.bind()
        self._backend.prepare([step.bound() for step in steps if isinstance(step, KernelStep)], machine.deadline)

    def run(self, steps: Iterable[Step], iterations: Sequence[int] = ()) -> None:
        """Run some steps in order, in these iterations of the loops around. Raises DeviceError for the fault of a kernel."""
        self._machine.iterations[:] = iterations
        with np.errstate(all="ignore"):
            for step in steps:
                self._machine.check_time(step.thunk.name)
                step.run()

    def read(self, tree: ArrayTree) -> Literal:
        """Return a copy of the value in the memory. A workspace, which no thunk uses and Host does not allocate, is zeros."""
        return literal_of(tree, self._copy)

    def _copy(self, piece: BufferSlice) -> Bytes:
        data = self._machine.read(piece)
        return data.copy() if data.size == piece.size_bytes else np.zeros(piece.size_bytes, np.uint8)

    def write(self, tree: ArrayTree, value: Literal) -> None:
        """Write a value into the memory. Bytes that are equal already are not touched: the memory may be the caller's array."""
        if not isinstance(tree, ArraySpec):
            assert isinstance(value, tuple), "both have one shape"
            for part, element in zip(tree, value, strict=True):
                self.write(part, element)
            return
        assert not isinstance(value, tuple), "both have one shape"
        order = tree.minor_to_major
        data = dynamic_to_bytes(value, tree.dtype, tree.dims, order) if any(tree.dynamic) else to_bytes(value, tree.dtype, order)
        target = self._machine.read(tree.slice)[: data.size]
        if target.size == data.size and target.tobytes() != data.tobytes():
            target[:] = data

    def allocation(self, number: int) -> Bytes:
        """Return the memory of an allocation; writing to it changes the run."""
        return self._machine.memory[number]

    def poison(self, piece: BufferSlice) -> None:
        """Fill a slice with a value that no right kernel leaves there."""
        self._machine.poison(piece)

    def is_true(self, piece: BufferSlice) -> bool:
        """Return the value of a loop's predicate."""
        return bool(self._machine.read(piece)[0])

    def taken(self, step: ConditionalStep) -> int:
        """Return the index of the branch that the memory selects."""
        return taken_branch(step.conditional, self._machine.read(step.slices[0]))


def flattened(steps: Iterable[Step]) -> list[Step]:
    """Return the steps with the contents of command buffers in place of the buffers."""
    found: list[Step] = []
    for step in steps:
        found += flattened(step.sequences[0]) if isinstance(step, CommandBufferStep) else [step]
    return found


def sequences_of(step: Step) -> list[list[Step]]:
    """Return the sequences of a loop (condition, body), conditional (branches) or call; [] for other steps."""
    return step.sequences if isinstance(step, WhileStep | ConditionalStep | SequenceStep) else []
