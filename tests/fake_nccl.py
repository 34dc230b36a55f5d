"""A stand-in for `nccl.bindings.nccl` of nccl4py 0.6.0: it checks arguments as the binding does, and moves data as NCCL does.

All processes of a test share a `Network`. Communicators do not block: the state is InProgress until every rank has done the same.
The work of a group is done once all ranks have ended theirs. With `do`, which puts work on a stream, it is done when all ranks'
streams have come to it, and the state is Success before that, as with NCCL. Element types and their sizes are those of NCCL.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

# As `help` of the binding prints them.
SIGNATURES = """
get_version() -> int
get_unique_id()
get_last_error(comm) -> str
comm_init_rank_config(int nranks, comm_id, int rank, config)
comm_get_async_error(comm) -> int
comm_abort(comm)
comm_finalize(comm)
comm_destroy(comm)
group_start()
group_end()
all_reduce(intptr_t sendbuff, intptr_t recvbuff, size_t count, int datatype, int op, comm, intptr_t stream)
reduce_scatter(intptr_t sendbuff, intptr_t recvbuff, size_t recvcount, int datatype, int op, comm, intptr_t stream)
all_gather(intptr_t sendbuff, intptr_t recvbuff, size_t sendcount, int datatype, comm, intptr_t stream)
broadcast(intptr_t sendbuff, intptr_t recvbuff, size_t count, int datatype, int root, comm, intptr_t stream)
send(intptr_t sendbuff, size_t count, int datatype, int peer, comm, intptr_t stream)
recv(intptr_t recvbuff, size_t count, int datatype, int peer, comm, intptr_t stream)
""".strip().splitlines()


class DataType(IntEnum):
    Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, Float8e4m3, Float8e5m2 = range(12)


class RedOp(IntEnum):
    Sum, Prod, Max, Min, Avg = range(5)


class Result(IntEnum):
    Success, UnhandledCudaError, SystemError, InternalError, InvalidArgument, InvalidUsage, RemoteError, InProgress = range(8)


class NCCLError(Exception):
    pass


class Comm:
    def __init__(self, handle: int = 0) -> None:
        self.handle = handle

    def __bool__(self) -> bool:
        return bool(self.handle)


class UniqueId:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bytes__(self) -> bytes:
        return self._data

    @staticmethod
    def from_buffer(buffer: bytearray) -> UniqueId:
        if len(buffer) != 128:
            raise ValueError("buffer length must be 128 bytes")
        return UniqueId(bytes(buffer))


class Config:
    ptr = 4242

    def __init__(self) -> None:
        self.blocking = -(1 << 31)


_NUMPY = {
    **{DataType.Int8: np.int8, DataType.Uint8: np.uint8, DataType.Int32: np.int32, DataType.Uint32: np.uint32},
    **{DataType.Int64: np.int64, DataType.Uint64: np.uint64, DataType.Float16: np.float16, DataType.Float32: np.float32},
    **{DataType.Float64: np.float64, DataType.Bfloat16: ml_dtypes.bfloat16},
    **{DataType.Float8e4m3: ml_dtypes.float8_e4m3fn, DataType.Float8e5m2: ml_dtypes.float8_e5m2},
}
_REDUCE: dict[RedOp, np.ufunc] = {
    RedOp.Sum: np.add,
    RedOp.Prod: np.multiply,
    RedOp.Max: np.maximum,
    RedOp.Min: np.minimum,
}


class Network:
    """What the communicators of a test share: who has joined, and the groups of calls that each rank has ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.joined: dict[bytes, set[int]] = defaultdict(set)
        self.waiting: dict[bytes, dict[int, deque[list[Any]]]] = defaultdict(lambda: defaultdict(deque))
        self.finalized: dict[bytes, set[int]] = defaultdict(set)
        self.ids = 0


class FakeNccl:
    """The binding in one process. `view(address, size)` returns device memory. `log` has the names of calls.

    `do(stream, name, work)` puts work, which returns True once it is done, on the stream of a handle. None: at once.
    """

    DataType, RedOp, Result, NCCLError, Comm, UniqueId, Config = DataType, RedOp, Result, NCCLError, Comm, UniqueId, Config

    def __init__(
        self,
        network: Network,
        view: Callable[[int, int], Any],
        do: Callable[[int, str, Callable[[], bool]], None] | None = None,
    ) -> None:
        self._network, self._view, self._do = network, view, do
        self._comms: dict[int, SimpleNamespace] = {}
        self._group: list[tuple[str, SimpleNamespace, dict[str, Any]]] | None = None
        self.log: list[str] = []
        self.failing: dict[str, Result] = {}
        for line in SIGNATURES:
            name, parameters = re.match(r"(\w+)\((.*?)\)", line).groups()  # type: ignore[union-attr]
            setattr(self, name, self._checked(name, [each.split() for each in parameters.split(", ") if each]))

    def _checked(self, name: str, parameters: list[list[str]]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.log.append(name)
            if len(arguments) != len(parameters):
                raise TypeError(f"{name}() takes exactly {len(parameters)} positional arguments ({len(arguments)} given)")
            values: dict[str, Any] = {}
            for (*kind, parameter), value in zip(parameters, arguments, strict=True):
                if kind:
                    assert type(value) is int, f"{name}: {parameter} is {value!r}"
                    if kind == ["size_t"] and value < 0:
                        raise OverflowError("can't convert negative value to size_t")
                elif parameter == "comm" and not isinstance(value, Comm):
                    raise TypeError(f"Cannot convert {type(value).__name__} to nccl.bindings.nccl.Comm")
                values[parameter] = value
            if name in self.failing:
                raise NCCLError(f"{self.failing[name].name} ({self.failing[name].value}): ..")
            own = getattr(self, f"_do_{name}", None)
            return own(**values) if own is not None else self._enqueue(name, **values)

        return call

    def _do_get_version(self) -> int:
        return 23203

    def _do_get_unique_id(self) -> UniqueId:
        with self._network.lock:
            self._network.ids += 1
            return UniqueId(self._network.ids.to_bytes(128, "little"))

    def _do_get_last_error(self, comm: Comm) -> str:
        return "socketProgress: Connection closed by remote peer\n" if self.failing else ""

    def _do_comm_init_rank_config(self, nranks: int, comm_id: UniqueId, rank: int, config: Any) -> Comm:
        assert isinstance(comm_id, UniqueId)
        assert config == Config.ptr
        assert 0 <= rank < nranks
        key = bytes(comm_id)
        with self._network.lock:
            assert rank not in self._network.joined[key], "a rank joins once"
            self._network.joined[key].add(rank)
        comm = Comm(1 + len(self._comms))
        self._comms[comm.handle] = SimpleNamespace(key=key, ranks=nranks, rank=rank, finalized=False)
        return comm

    def _do_comm_get_async_error(self, comm: Comm) -> int:
        known, network = self._known(comm), self._network
        if "async" in self.failing:
            return int(self.failing["async"])
        with network.lock:
            if known.finalized:
                is_ready = len(network.finalized[known.key]) == known.ranks
            else:
                has_waiting = self._do is None and bool(network.waiting[known.key][known.rank])
                is_ready = len(network.joined[known.key]) == known.ranks and not has_waiting
        return int(Result.Success if is_ready else Result.InProgress)

    def _do_comm_abort(self, comm: Comm) -> None:
        del self._comms[comm.handle]

    def _do_comm_finalize(self, comm: Comm) -> None:
        known = self._known(comm)
        known.finalized = True
        with self._network.lock:
            self._network.finalized[known.key].add(known.rank)

    def _do_comm_destroy(self, comm: Comm) -> None:
        assert self._known(comm).finalized, "a communicator that does not block is finalized first"
        del self._comms[comm.handle]

    def _do_group_start(self) -> None:
        assert self._group is None, "no group within a group"
        self._group = []

    def _do_group_end(self) -> None:
        assert self._group is not None
        calls, self._group = self._group, None
        for key in dict.fromkeys(known.key for _, known, _ in calls):
            own = [call for call in calls if call[1].key == key]
            (stream,) = {values["stream"] for _, _, values in own}
            work = self._work(own)
            if self._do is None:
                work()
            else:
                self._do(stream, f"nccl {own[0][0]}", work)

    def _work(self, own: list[tuple[str, SimpleNamespace, dict[str, Any]]]) -> Callable[[], bool]:
        """Return what arrives at a collective with the first call, and is true once all ranks have arrived."""
        known, network = own[0][1], self._network
        arrived: list[Any] = []

        def work() -> bool:
            with network.lock:
                waiting = network.waiting[known.key]
                if not arrived:
                    arrived.append([(name, values, self._view) for name, _, values in own])
                    waiting[known.rank].append(arrived[0])
                    if len(waiting) == known.ranks and all(waiting.values()):
                        _execute([waiting[rank].popleft() for rank in range(known.ranks)])
                return not any(each is arrived[0] for each in waiting[known.rank])

        return work

    def _enqueue(self, name: str, comm: Comm, **values: Any) -> None:
        known = self._known(comm)
        assert self._do_comm_get_async_error(comm) != Result.InProgress, "no call before the one before it is done"
        assert self._group is not None, "calls are made in groups"
        self._group.append((name, known, values))

    def _known(self, comm: Comm) -> SimpleNamespace:
        if comm.handle not in self._comms:
            raise NCCLError("InvalidArgument (4): invalid argument")
        return self._comms[comm.handle]


def _execute(ranks: list[list[Any]]) -> None:
    """Do what all ranks of a communicator want: messages by pairs in order, and collectives in order."""
    sent: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
    for rank, calls in enumerate(ranks):
        for name, values, view in calls:
            if name == "send":
                sent[rank, values["peer"]].append(_array(view, values["sendbuff"], values["count"], values["datatype"]).copy())
    for rank, calls in enumerate(ranks):
        for name, values, view in calls:
            if name == "recv":
                data = sent[values["peer"], rank].popleft()
                target = _array(view, values["recvbuff"], values["count"], values["datatype"])
                assert target.shape == data.shape, "both sides know the size of a message"
                target[:] = data
    assert not any(sent.values()), "every message is received"
    collectives = [[call for call in calls if call[0] not in ("send", "recv")] for calls in ranks]
    for calls in zip(*collectives, strict=True):
        _collective(list(calls))


def _array(view: Callable[[int, int], Any], address: int, count: int, datatype: int) -> Any:
    kind = np.dtype(_NUMPY[DataType(datatype)])
    return view(address, count * kind.itemsize).view(kind)


def _collective(calls: list[Any]) -> None:
    name, first, _ = calls[0]
    place = ("sendbuff", "recvbuff", "stream")
    same = {key: value for key, value in first.items() if key not in place}
    assert all(call == name and {k: v for k, v in values.items() if k not in place} == same for call, values, _ in calls)
    count, kind, ranks = (
        next(first[key] for key in ("count", "recvcount", "sendcount") if key in first),
        first["datatype"],
        len(calls),
    )
    sent_count = count * ranks if name == "reduce_scatter" else count
    sent = [_array(view, values["sendbuff"], sent_count, kind).copy() for _, values, view in calls]
    for rank, (_, values, view) in enumerate(calls):
        result = _array(view, values["recvbuff"], count * ranks if name == "all_gather" else count, kind)
        if name == "all_gather":
            result[:] = np.concatenate(sent)
        elif name == "broadcast":
            result[:] = sent[first["root"]]
        else:
            total = _REDUCE[RedOp(first["op"])].reduce(_wide(np.stack(sent), kind))
            total = total.astype(_NUMPY[DataType(kind)])
            result[:] = total if name == "all_reduce" else np.split(total, ranks)[rank]


def _wide(data: Any, kind: int) -> Any:
    """Return floats as f64; NCCL rounds after each step, which the values of tests do not show."""
    return data.astype(np.float64) if kind >= DataType.Float16 else data
