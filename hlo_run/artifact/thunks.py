"""Thunks: the steps that a device runs; `kind` is XLA's `Thunk::Kind`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct

from hlo_run.artifact.buffers import ArraySpec, ArrayTree, BufferSlice
from hlo_run.artifact.collective_thunks import CollectiveThunk
from hlo_run.artifact.division import FedArray
from hlo_run.artifact.library_thunks import FunctionCall, GemmThunk, LibraryThunk
from hlo_run.artifact.sort_orders import SortOrder


class HostTransfer(FunctionCall, frozen=True):
    """A transfer between the device and its host or another device."""


class Nesting(Struct, frozen=True):
    """A thunk that runs sequences of thunks."""


class KernelArgument(Struct, frozen=True):
    """One pointer parameter of a kernel: the slice it points to and whether the kernel writes it."""

    slice: BufferSlice
    written: bool


class KernelThunk(Struct, frozen=True):
    """Launch `kernel` with one pointer per argument.

    With `sort`, this is the first of the launches that sort; the others follow directly. A `kCopy` only copies bytes.
    """

    name: str
    kernel: str
    arguments: tuple[KernelArgument, ...]
    kind: Literal["kCustomKernel", "kCopy"] = "kCustomKernel"
    sort: SortOrder | None = None


class CopyThunk(Struct, frozen=True):
    """Copy device to device; source and destination have the same size."""

    name: str
    source: BufferSlice
    destination: BufferSlice
    kind: Literal["kCopy"] = "kCopy"


class LoopOffset(Struct, frozen=True):
    """A byte offset: `first_bytes` in the first iteration of a loop, and `step_bytes` more in each iteration after it.

    `loop` counts the loops around from the innermost one, 0. Without such a loop the iteration is the first one.
    """

    first_bytes: int = 0
    step_bytes: int = 0
    loop: int = 0


class SliceCopyThunk(Struct, frozen=True):
    """Copy `size_bytes` from an offset in `source` to an offset in `destination`. Both may depend on a loop's iteration.

    As with a dynamic-slice, an offset from which too few bytes are left becomes the last one with enough.
    """

    name: str
    source: BufferSlice
    destination: BufferSlice
    size_bytes: int
    source_offset: LoopOffset = LoopOffset()
    destination_offset: LoopOffset = LoopOffset()
    kind: Literal["kCopy"] = "kCopy"


class MovingArray(Struct, frozen=True):
    """An array of a product, by its field of `GemmThunk`, that is a part of `whole`, from an offset on."""

    field: Literal["lhs", "rhs", "addend", "result"]
    whole: BufferSlice
    offset: LoopOffset


class SlicedProductThunk(Nesting, frozen=True):
    """Run a product, some of whose arrays are parts of larger arrays; their places may depend on the iteration of a loop.

    `product` has the arrays where they are in the first iteration. One that would write what it reads has its result in `room`;
    it is copied from there to the place in `moving`. `parameter_count` and `result_count` are those of the call.
    """

    name: str
    product: GemmThunk
    moving: tuple[MovingArray, ...]
    parameter_count: int
    result_count: int
    room: BufferSlice | None = None
    kind: Literal["kDynamicSliceFusion"] = "kDynamicSliceFusion"


class MemsetThunk(Struct, frozen=True):
    """Fill `destination` with a 32-bit value; its size is a multiple of 4 bytes. `kind` says where the value is from."""

    name: str
    destination: BufferSlice
    value: int
    kind: Literal["kMemzero", "kMemset32BitValue", "kReplicaId", "kPartitionId"] = "kMemset32BitValue"


class SortThunk(FunctionCall, frozen=True):
    """Stable sort of all operands along the last dimension by the first operand. Floats compare in XLA's total order."""

    name: str
    operands: tuple[ArraySpec, ...]
    results: tuple[ArraySpec, ...]
    descending: bool
    kind: Literal["kCustomCall"] = "kCustomCall"


class RngStateThunk(FunctionCall, frozen=True):
    """Write a 128-bit counter as two u64, low half first, and advance it by `delta`. Each instruction has its own counter."""

    name: str
    result: BufferSlice
    delta: int
    kind: Literal["kCustomKernel"] = "kCustomKernel"


class RngSeedThunk(FunctionCall, frozen=True):
    """Write the run's random seed."""

    name: str
    result: ArraySpec
    kind: Literal["kRngSeed"] = "kRngSeed"


class CustomCallThunk(FunctionCall, frozen=True):
    """Call the function that is registered for `target`; `config` is the text of the call's backend_config."""

    name: str
    target: str
    operands: tuple[ArrayTree, ...]
    result: ArrayTree
    config: str = ""
    kind: Literal["kCustomCall"] = "kCustomCall"


class InfeedThunk(HostTransfer, frozen=True):
    """Take the next entry of the queue that the host fills. With `fed`, it has whole arrays, and the device keeps its tiles."""

    name: str
    result: ArrayTree
    fed: tuple[FedArray, ...] = ()
    kind: Literal["kInfeed"] = "kInfeed"


class OutfeedThunk(HostTransfer, frozen=True):
    """Append data to the queue that the host reads."""

    name: str
    source: ArrayTree
    kind: Literal["kOutfeed"] = "kOutfeed"


class SendThunk(HostTransfer, frozen=True):
    """Send a message on `channel`, to the host or by the (source, target) `pairs` of devices. No pairs: to the same device."""

    name: str
    channel: int
    is_host_transfer: bool
    source: ArrayTree
    pairs: tuple[tuple[int, int], ...] = ()
    kind: Literal["kSend", "kHostSend"] = "kSend"


class RecvThunk(HostTransfer, frozen=True):
    """Receive the message sent to this device on `channel`. The result is zeros if no device sends one."""

    name: str
    channel: int
    result: ArrayTree
    pairs: tuple[tuple[int, int], ...] = ()
    kind: Literal["kRecv"] = "kRecv"


class SequentialThunk(Nesting, frozen=True):
    """Run the thunks of a called computation in order. A `kGroup` holds collectives that run as one operation.

    A `kDynamicSliceFusion` copies a part of an array, at an offset that depends on the iteration of the loop. `copied` are the
    arrays that it copies from and to.
    """

    name: str
    thunks: tuple[Thunk, ...]
    kind: Literal["kSequential", "kGroup", "kDynamicSliceFusion"] = "kSequential"
    copied: tuple[BufferSlice, ...] = ()


class WhileThunk(Nesting, frozen=True):
    """Run `body` while `condition` leaves a byte other than 0 in `predicate`.

    With a trip count, run `body` that many times and skip `condition`.
    """

    name: str
    predicate: BufferSlice
    condition: tuple[Thunk, ...]
    body: tuple[Thunk, ...]
    trip_count: int | None = None
    kind: Literal["kWhile"] = "kWhile"


class ConditionalThunk(Nesting, frozen=True):
    """Run one branch. A pred selector chooses branch 0 for true. An s32 selector out of range chooses the last branch."""

    name: str
    selector: BufferSlice
    is_predicate: bool
    branches: tuple[tuple[Thunk, ...], ...]
    kind: Literal["kConditional"] = "kConditional"


class CommandBufferThunk(Nesting, frozen=True):
    """Thunks that are recorded once and replayed, as a CUDA graph is."""

    name: str
    thunks: tuple[Thunk, ...]
    kind: Literal["kCommandBuffer"] = "kCommandBuffer"


class AsyncStartThunk(Nesting, frozen=True):
    """Run thunks on another stream, after all work before them. The `AsyncDoneThunk` with the `key` waits for the end."""

    name: str
    key: str
    stream: Literal["communication", "computation"]
    stream_number: int
    thunks: tuple[Thunk, ...]
    kind: Literal["kAsyncStart"] = "kAsyncStart"


class AsyncDoneThunk(Struct, frozen=True):
    """Let later work wait for the thunks of the `AsyncStartThunk` with the same `key`."""

    name: str
    key: str
    kind: Literal["kAsyncDone"] = "kAsyncDone"


Thunk: TypeAlias = (
    KernelThunk
    | CopyThunk
    | SliceCopyThunk
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
    | SlicedProductThunk
    | WhileThunk
    | ConditionalThunk
    | CommandBufferThunk
    | AsyncStartThunk
    | AsyncDoneThunk
)


def every_thunk(sequence: Iterable[Thunk]) -> Iterator[Thunk]:
    """Yield all thunks, each before the thunks inside it. Loop bodies and all branches are visited once."""
    for thunk in sequence:
        yield thunk
        for inner in nested_sequences(thunk):
            yield from every_thunk(inner)


def nested_sequences(thunk: Thunk) -> tuple[tuple[Thunk, ...], ...]:
    """Return the thunk sequences inside a thunk, in XLA's printing order."""
    match thunk:
        case WhileThunk():
            return thunk.condition, thunk.body
        case ConditionalThunk():
            return thunk.branches
        case SequentialThunk() | CommandBufferThunk() | AsyncStartThunk():
            return (thunk.thunks,)
        case SlicedProductThunk():
            return ((thunk.product,),)
        case KernelThunk() | CopyThunk() | SliceCopyThunk() | MemsetThunk() | FunctionCall() | AsyncDoneThunk():
            return ()
        case _:
            assert_never(thunk)
