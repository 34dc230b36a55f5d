"""NCCL through nccl4py: a communicator per group of devices, and the calls of a plan. Imported when a shared run begins."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from hlo_run.artifact import BufferSlice
from hlo_run.backends.cuda.collectives import NcclCall, NcclPlan
from hlo_run.errors import DeviceError
from hlo_run.processes.messages import Parcel
from hlo_run.processes.partners import Partners

_GROUP = "group"


def load_nccl() -> Any:
    """Return the module `nccl.bindings.nccl` of nccl4py; raises ImportError."""
    return importlib.import_module("nccl.bindings.nccl")


class Nccl:
    """The communicators of this process's device, which is `partners.launch.number`. `stream` is the handle for all calls."""

    def __init__(self, binding: Any, partners: Partners, stream: int) -> None:
        self._binding, self._partners, self._stream = binding, partners, stream
        self._communicators: dict[tuple[int, ...], Any] = {}

    def open(self, groups: Sequence[tuple[int, ...]], seconds: float, now: Callable[[], float]) -> None:
        """Make the communicators of these groups, each with the members in the order of ranks.

        All processes must open the groups of the same executable. The order is the same in all of them, so no two wait for each
        other. The first member makes the id and sends it to the others, which wait for at most `seconds`. Raises DeviceError.
        """
        own = self._partners.launch.number
        for members in sorted({group for group in groups if own in group} - self._communicators.keys()):
            label = Parcel(_GROUP, 0, "", members)
            if members[0] == own:
                identity = bytearray(bytes(self._call(members, self._binding.get_unique_id)))
                for other in members[1:]:
                    self._partners.post(other, label, (memoryview(identity),))
            else:
                (sent,) = self._partners.take(members[0], label, now() + seconds if seconds > 0 else None)
                identity = sent
            arguments = len(members), self._binding.UniqueId.from_buffer(identity), members.index(own)
            self._communicators[members] = self._call(members, self._binding.comm_init_rank, *arguments)

    def run(self, plan: NcclPlan, members: tuple[int, ...], address: Callable[[BufferSlice], int]) -> None:
        """Enqueue the calls of a plan as one group. `address` returns the address of a slice. Raises DeviceError."""
        binding, communicator = self._binding, self._communicators.get(members)
        if communicator is None:
            raise DeviceError(f"the group of devices {', '.join(map(str, members))} has ended")
        self._call(members, binding.group_start)
        try:
            for call in plan.calls:
                self._call(members, *self._arguments(call, communicator, address))
        finally:
            self._call(members, binding.group_end)

    def abort(self) -> None:
        """End all calls that are in progress: a process is gone. Another thread may wait for the stream meanwhile."""
        self._each("comm_abort")

    def close(self) -> None:
        """Release the communicators, after all work on the stream."""
        self._each("comm_destroy")

    def _each(self, function: str) -> None:
        communicators, self._communicators = self._communicators, {}
        for members, communicator in communicators.items():
            self._call(members, getattr(self._binding, function), communicator)

    def _arguments(self, call: NcclCall, communicator: Any, address: Callable[[BufferSlice], int]) -> tuple[Any, ...]:
        """Return the function of a call and its arguments."""
        binding = self._binding
        source = address(call.source) if call.source is not None else 0
        target = address(call.target) if call.target is not None else 0
        kind = int(getattr(binding.DataType, call.type))
        both, end = (source, target, call.count, kind), (communicator, self._stream)
        match call.function:
            case "all_reduce" | "reduce_scatter":
                return getattr(binding, call.function), *both, int(getattr(binding.RedOp, call.operation)), *end
            case "all_gather":
                return binding.all_gather, *both, *end
            case "all_to_all":
                return binding.allto_all, *both, *end
            case "broadcast":
                return binding.broadcast, *both, call.peer, *end
            case "send":
                return binding.send, source, call.count, kind, call.peer, *end
            case "recv":
                return binding.recv, target, call.count, kind, call.peer, *end

    def _call(self, members: tuple[int, ...], function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._binding.NCCLError as error:
            raise DeviceError(f"NCCL failed in the group of devices {', '.join(map(str, members))}: {error}") from error
