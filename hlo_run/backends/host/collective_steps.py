"""Collectives on Host: the members of a group wait for each other, and the last to arrive computes all results.

An asynchronous collective takes its operands when it starts, and waits for the others when it is done. Its results are computed
in another thread meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from hlo_run.artifact import CollectiveThunk
from hlo_run.backends.exchange.team import Wait
from hlo_run.backends.exchange.world import Meeting
from hlo_run.backends.host.machine import Machine
from hlo_run.backends.host.steps import WaitingLeaf
from hlo_run.backends.library.arrays import store, view
from hlo_run.backends.library.collectives import makes_new_arrays, members_of
from hlo_run.errors import DeviceError
from hlo_run.hlo.values.dtype import DTYPES


class CollectiveStep(WaitingLeaf):
    """One device's part of a collective. The work is `arrive`, then `finish`."""

    def __init__(self, machine: Machine, thunk: CollectiveThunk) -> None:
        self.thunk = thunk
        self.slices = tuple(spec.slice for spec in (*thunk.operands, *thunk.results))
        self._machine = machine
        self._collective = thunk
        # The group and its meeting, from the arrival to the end. No group: the device is in none.
        self._members: tuple[int, ...] | None = None  # not known yet
        self._arrived: tuple[tuple[int, ...], Meeting | None] = ((), None)

    def bind(self) -> None:
        """Do nothing: slices are looked up when the step runs."""

    def work(self) -> Generator[Wait]:
        """Take the operands, and store the results once all members have arrived."""
        self.arrive(at_once=True)
        yield from self.finish()

    def arrive(self, *, at_once: bool = False) -> None:
        """Take the operands. The last member's start the computation of all results: `at_once`, or while the device works on.

        Raises DeviceError in no group, except for a broadcast.
        """
        machine, thunk = self._machine, self._collective
        world = machine.world
        if self._members is None:
            self._members = members_of(thunk, machine.device, world.replicas, world.partitions)
        members = self._members
        if not members:
            if thunk.kind != "kCollectiveBroadcast":
                raise DeviceError(f"device {machine.device} is in no group of %{thunk.name}")
            self._arrived = ((), None)
            return
        operands = [view(spec, machine.read(spec.slice)) for spec in thunk.operands]
        if not at_once or world.link is not None or not makes_new_arrays(thunk):  # else they stay as they are until all arrive
            operands = [np.array(operand) for operand in operands]
        self._arrived = (members, world.arrive(thunk, members, machine.device, operands, at_once=at_once))

    def finish(self) -> Generator[Wait]:
        """Wait for the other members and store the results; zeros outside of all groups."""
        machine, thunk = self._machine, self._collective
        (members, meeting), self._arrived = self._arrived, ((), None)
        if meeting is None:
            results = [np.zeros(spec.dims, DTYPES[spec.dtype].numpy) for spec in thunk.results]
        else:
            if not meeting.is_complete:
                yield self._wait(members, meeting)
            results = meeting.take(machine.device)
        for spec, result in zip(thunk.results, results, strict=True):
            store(spec, machine.read(spec.slice), result)
            machine.mark_written(spec.slice)

    def _wait(self, members: tuple[int, ...], meeting: Meeting) -> Wait:
        def missing() -> tuple[int, ...]:
            return tuple(member for member in members if not meeting.has(member))

        return Wait(lambda: meeting.is_complete, lambda: self._missing(members, meeting), missing)

    def _missing(self, members: tuple[int, ...], meeting: Meeting) -> str:
        missing = ", ".join(str(member) for member in members if not meeting.has(member))
        return f"%{self._collective.name}: of its group {{{','.join(map(str, members))}}}, {missing} did not arrive"
