"""NCCL through nccl4py: a communicator per group of devices, and the calls of a plan. Imported when a shared run begins.

Communicators do not block: NCCL works in threads of its own, and `is_ready` says how far it is. So no call waits for ever for a
process that is gone, and the others can abort.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hlo_run.artifact import BufferSlice
from hlo_run.backends.cuda.collectives import NcclCall, NcclPlan
from hlo_run.errors import DeviceError
from hlo_run.processes.messages import Parcel
from hlo_run.processes.partners import Partners

_GROUP = "group"
_CLOSE_SECONDS = 10.0
_POLL_SECONDS = 0.001
_BLOCKING = 0


def load_nccl() -> Any:
    """Return the module `nccl.bindings.nccl` of nccl4py. Raises ImportError, also if the library itself is not there."""
    binding = importlib.import_module("nccl.bindings.nccl")
    try:
        binding.get_version()
    except Exception as error:  # the binding has no common type for what it cannot load
        raise ImportError(str(error).partition("\n")[0]) from error
    return binding


class Nccl:
    """The communicators of this process's device, which is `partners.launch.number`: one for each group, kept for later runs."""

    def __init__(self, binding: Any, partners: Partners) -> None:
        self._binding, self._partners = binding, partners
        self._communicators: dict[tuple[int, ...], Any] = {}

    def open(
        self,
        groups: Sequence[tuple[int, ...]],
        deadline: float | None,
        wait: Callable[[tuple[int, ...], Callable[[], bool]], None],
    ) -> None:
        """Make the communicators of these groups, each with the members in the order of ranks.

        All processes must open the groups of the same executable. The order is the same in all of them, so no two wait for each
        other. The first member makes the id and sends it to the others, which wait for it until the deadline (of
        `time.monotonic`). `wait` waits for a group until its function is true. Raises DeviceError.
        """
        own, binding = self._partners.launch.number, self._binding
        for members in sorted({group for group in groups if own in group} - self._communicators.keys()):
            label = Parcel(_GROUP, 0, "", members)
            if members[0] == own:
                identity = bytearray(bytes(self._call(members, binding.get_unique_id)))
                for other in members[1:]:
                    self._partners.post(other, label, (memoryview(identity),))
            else:
                (identity,) = self._partners.take(members[0], label, deadline)
            config = binding.Config()
            config.blocking = _BLOCKING
            arguments = len(members), binding.UniqueId.from_buffer(identity), members.index(own), config.ptr
            self._communicators[members] = self._call(members, binding.comm_init_rank_config, *arguments)
            wait(members, lambda members=members: self.is_ready(members))

    def is_ready(self, members: tuple[int, ...]) -> bool:
        """True if NCCL has taken all calls for a group, so that their work is on the stream. Raises DeviceError if one failed."""
        result = self._binding.Result
        state = self._call(members, self._binding.comm_get_async_error, self._communicator(members))
        if state not in (int(result.Success), int(result.InProgress)):
            raise self._error(members, f"{result(state).name} ({state})")
        return state == int(result.Success)

    def run(self, plan: NcclPlan, members: tuple[int, ...], address: Callable[[BufferSlice], int], stream: int) -> None:
        """Make the calls of a plan as one group. `address` returns the address of a slice. Raises DeviceError.

        The work is on the stream of the handle once `is_ready` is true.
        """
        binding, communicator = self._binding, self._communicator(members)
        self._call(members, binding.group_start)
        try:
            for call in plan.calls:
                self._call(members, *self._arguments(call, communicator, address, stream))
        except BaseException:  # an interrupt too ends the group
            with suppress(DeviceError):  # the group repeats the error of its call
                self._call(members, binding.group_end)
            raise
        self._call(members, binding.group_end)

    def abort(self) -> None:
        """End all calls that are in progress: a process is gone."""
        while self._communicators:
            members, communicator = self._communicators.popitem()
            with suppress(DeviceError):  # an earlier error is the one to report
                self._call(members, self._binding.comm_abort, communicator)

    def close(self) -> None:
        """Release the communicators once their work is done. Abort the ones whose other processes do not do the same soon."""
        end = time.monotonic() + _CLOSE_SECONDS
        for members, communicator in sorted(self._communicators.items()):
            self._call(members, self._binding.comm_finalize, communicator)
            while not self.is_ready(members):
                if time.monotonic() > end:
                    self.abort()
                    return
                time.sleep(_POLL_SECONDS)
            del self._communicators[members]
            self._call(members, self._binding.comm_destroy, communicator)

    def _communicator(self, members: tuple[int, ...]) -> Any:
        communicator = self._communicators.get(members)
        if communicator is None:
            raise DeviceError(f"the group of devices {', '.join(map(str, members))} has ended")
        return communicator

    def _arguments(
        self, call: NcclCall, communicator: Any, address: Callable[[BufferSlice], int], stream: int
    ) -> tuple[Any, ...]:
        """Return the function of a call and its arguments."""
        binding = self._binding
        source = address(call.source) if call.source is not None else 0
        target = address(call.target) if call.target is not None else 0
        kind = int(getattr(binding.DataType, call.type))
        both, end = (source, target, call.count, kind), (communicator, stream)
        match call.function:
            case "all_reduce" | "reduce_scatter":
                return getattr(binding, call.function), *both, int(getattr(binding.RedOp, call.operation)), *end
            case "all_gather":
                return binding.all_gather, *both, *end
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
            raise self._error(members, str(error)) from error

    def _error(self, members: tuple[int, ...], what: str) -> DeviceError:
        """Return the error of a group, with NCCL's last words about it."""
        message = f"NCCL failed in the group of devices {', '.join(map(str, members))}: {what}"
        last: str = self._binding.get_last_error(self._communicators.get(members) or self._binding.Comm())
        return DeviceError(message, notes=(last.strip(),) if last.strip() else (), hint="NCCL_DEBUG=INFO prints what NCCL does")
