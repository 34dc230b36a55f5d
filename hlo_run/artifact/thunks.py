"""What a device does, step by step; `kind` is XLA's word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from hlo_run.artifact.buffers import ArraySpec, ArrayTree, BufferSlice
from hlo_run.artifact.collective_thunks import CollectiveThunk
from hlo_run.artifact.library_thunks import LibraryThunk, LibraryWork


class HostTransfer:
    """What goes between the device and its host or another device."""

    __slots__ = ()


class Nesting:
    """What runs sequences of thunks."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """One pointer parameter of a kernel: the slice it points to and whether the kernel writes it."""

    slice: BufferSlice
    written: bool


@dataclass(frozen=True, slots=True)
class KernelThunk:
    """Launch `kernel` with a pointer per argument."""

    name: str
    kernel: str
    arguments: tuple[KernelArgument, ...]
    kind: Literal["kCustomKernel"] = "kCustomKernel"


@dataclass(frozen=True, slots=True)
class CopyThunk:
    """Copy device to device; source and destination have the same size."""

    name: str
    source: BufferSlice
    destination: BufferSlice
    kind: Literal["kCopy"] = "kCopy"


@dataclass(frozen=True, slots=True)
class MemsetThunk:
    """Fill with a 32-bit value; the size is a multiple of 4 bytes. `kind` says what the value is."""

    name: str
    destination: BufferSlice
    value: int
    kind: Literal["kMemzero", "kMemset32BitValue", "kReplicaId", "kPartitionId"] = "kMemset32BitValue"


@dataclass(frozen=True, slots=True)
class SortThunk:
    """Sort the operands together along the last dimension by the first one; stable. Floats are in XLA's TOTALORDER."""

    name: str
    operands: tuple[ArraySpec, ...]
    results: tuple[ArraySpec, ...]
    descending: bool
    kind: Literal["kCustomCall"] = "kCustomCall"


@dataclass(frozen=True, slots=True)
class RngStateThunk:
    """Hand out a 128-bit counter as two u64, low half first, and advance it by `delta`; each instruction has its own."""

    name: str
    result: BufferSlice
    delta: int
    kind: Literal["kCustomKernel"] = "kCustomKernel"


@dataclass(frozen=True, slots=True)
class RngSeedThunk:
    """Write the run's seed."""

    name: str
    result: ArraySpec
    kind: Literal["kRngSeed"] = "kRngSeed"


@dataclass(frozen=True, slots=True)
class CustomCallThunk:
    """Call the function that is registered for `target`; `config` is the text of the call's backend_config."""

    name: str
    target: str
    operands: tuple[ArrayTree, ...]
    result: ArrayTree
    config: str = ""
    kind: Literal["kCustomCall"] = "kCustomCall"


@dataclass(frozen=True, slots=True)
class InfeedThunk(HostTransfer):
    """Take the next entry of the queue that the host fills."""

    name: str
    result: ArrayTree
    kind: Literal["kInfeed"] = "kInfeed"


@dataclass(frozen=True, slots=True)
class OutfeedThunk(HostTransfer):
    """Hand data to the host."""

    name: str
    source: ArrayTree
    kind: Literal["kOutfeed"] = "kOutfeed"


@dataclass(frozen=True, slots=True)
class SendThunk(HostTransfer):
    """Post a message on a channel, to the host or to the devices that `pairs` (source, target) names: without any, to itself."""

    name: str
    channel: int
    is_host_transfer: bool
    source: ArrayTree
    pairs: tuple[tuple[int, int], ...] = ()
    kind: Literal["kSend", "kHostSend"] = "kSend"


@dataclass(frozen=True, slots=True)
class RecvThunk(HostTransfer):
    """Take the message of whoever sends to this device on a channel; nobody: zeros."""

    name: str
    channel: int
    result: ArrayTree
    pairs: tuple[tuple[int, int], ...] = ()
    kind: Literal["kRecv"] = "kRecv"


@dataclass(frozen=True, slots=True)
class SequentialThunk(Nesting):
    """The body of a call."""

    name: str
    thunks: tuple[Thunk, ...]
    kind: Literal["kSequential"] = "kSequential"


@dataclass(frozen=True, slots=True)
class WhileThunk(Nesting):
    """Run `body` while `condition` leaves a byte other than 0 in `predicate`; with a trip count, so many times unasked."""

    name: str
    predicate: BufferSlice
    condition: tuple[Thunk, ...]
    body: tuple[Thunk, ...]
    trip_count: int | None = None
    kind: Literal["kWhile"] = "kWhile"


@dataclass(frozen=True, slots=True)
class ConditionalThunk(Nesting):
    """Run one branch. A pred selector chooses branch 0 for true; of a number out of range becomes the last branch's."""

    name: str
    selector: BufferSlice
    is_predicate: bool
    branches: tuple[tuple[Thunk, ...], ...]
    kind: Literal["kConditional"] = "kConditional"


@dataclass(frozen=True, slots=True)
class CommandBufferThunk(Nesting):
    """Thunks that are recorded once and replayed."""

    name: str
    thunks: tuple[Thunk, ...]
    kind: Literal["kCommandBuffer"] = "kCommandBuffer"


Thunk: TypeAlias = (
    KernelThunk
    | CopyThunk
    | MemsetThunk
    | LibraryThunk
    | SortThunk
    | RngStateThunk
    | RngSeedThunk
    | CustomCallThunk
    | CollectiveThunk
    | InfeedThunk
    | OutfeedThunk
    | SendThunk
    | RecvThunk
    | SequentialThunk
    | WhileThunk
    | ConditionalThunk
    | CommandBufferThunk
)


def every_thunk(sequence: Iterable[Thunk]) -> Iterator[Thunk]:
    """Yield all thunks, each before those inside it; bodies of loops and all branches once."""
    for thunk in sequence:
        yield thunk
        for inner in nested_sequences(thunk):
            yield from every_thunk(inner)


def nested_sequences(thunk: Thunk) -> tuple[tuple[Thunk, ...], ...]:
    """Return the sequences inside a thunk, in the order in which XLA prints them."""
    match thunk:
        case WhileThunk():
            return thunk.condition, thunk.body
        case ConditionalThunk():
            return thunk.branches
        case SequentialThunk() | CommandBufferThunk():
            return (thunk.thunks,)
        case (
            KernelThunk()
            | CopyThunk()
            | MemsetThunk()
            | LibraryWork()
            | SortThunk()
            | RngStateThunk()
            | RngSeedThunk()
            | CustomCallThunk()
            | CollectiveThunk()
            | HostTransfer()
        ):
            return ()
        case _:
            assert_never(thunk)
