"""Collectives in numpy: compute each member's results from the operands of all members of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hlo_run.arrays import NumpyType
from hlo_run.artifact import ALL_REDUCES, CollectiveThunk
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.errors import DeviceError
from hlo_run.hlo.values.dtype import DTYPES

# From the operands of every member, in group order, to the results of every member.
Combine = Callable[[CollectiveThunk, Sequence[Sequence[Array]]], list[list[Array]]]

_REDUCE: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def members_of(thunk: CollectiveThunk, device: int, replicas: int, partitions: int) -> tuple[int, ...]:
    """Return the devices of `device`'s group, in the group's order; empty if `device` is in no group.

    Devices are numbered replica-major. Raises DeviceError if a group names a device that does not exist.
    """
    replica, partition = divmod(device, partitions)
    match thunk.mode:
        case "kFlattenedID":
            members = _pick(thunk, device, replicas * partitions)
        case "kCrossPartition":
            members = tuple(replica * partitions + other for other in _pick(thunk, partition, partitions))
        case "kCrossReplica":
            members = tuple(other * partitions + partition for other in _pick(thunk, replica, replicas))
        case "kCrossReplicaAndPartition":
            chosen = _pick(thunk, replica, replicas)
            members = tuple(other * partitions + k for other in chosen for k in range(partitions))
    return members


def _pick(thunk: CollectiveThunk, own: int, count: int) -> tuple[int, ...]:
    """Return the group that holds `own`. Without groups, all members form one group."""
    for group in thunk.groups:
        for number in group:
            if not 0 <= number < count:
                hint = "--num_replicas=N and --num_partitions=N set the counts"
                raise DeviceError(f"%{thunk.name}: a group names member {number}, but the run has {count}", hint=hint)
    if thunk.kind == "kCollectivePermute" or not thunk.groups:
        return tuple(range(count))
    return next((group for group in thunk.groups if own in group), ())


def combine(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Return each member's results. `everyones` holds each member's operands, in the group's order.

    Raises DeviceError if the operands and results are shaped for groups of another size.
    """
    _check_size(thunk, len(everyones))
    return _COMBINE[thunk.kind](thunk, everyones)


def makes_new_arrays(thunk: CollectiveThunk) -> bool:
    """True if no result of `combine` shares memory with an operand."""
    return thunk.kind in ALL_REDUCES | {"kReduceScatter", "kAllGather"} or (thunk.kind == "kAllToAll" and thunk.dim >= 0)


def _check_size(thunk: CollectiveThunk, members: int) -> None:
    """Refuse a group of another size than the shapes are for. Only a count in the module's header lets the verifier see it."""
    first, dim = thunk.operands[0].dims, thunk.dim
    match thunk.kind:
        case "kReduceScatter":
            fits = first[dim] == thunk.results[0].dims[dim] * members
        case "kAllGather":
            fits = first[dim] * members == thunk.results[0].dims[dim]
        case "kAllToAll":
            fits = len(thunk.operands) == members if dim < 0 else first[dim] % members == 0
        case _:
            return
    if not fits:
        hint = "--num_replicas=N and --num_partitions=N set the number of devices"
        raise DeviceError(f"%{thunk.name}: its shapes are not for groups of {members} devices, as this run has", hint=hint)


def lone_call(thunk: CollectiveThunk) -> LibraryCall:
    """Return the call of a collective on a single device."""
    members_of(thunk, 0, 1, 1)

    def compute(operands: Sequence[Array], results: Sequence[Array]) -> None:
        for target, result in zip(results, combine(thunk, [operands])[0], strict=True):
            target[...] = result

    return LibraryCall(thunk.operands, thunk.results, compute)


def _reduced(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[Array]:
    """Reduce each operand over all members. Narrow floats are reduced in f32 and rounded once."""
    totals: list[Array] = []
    for number, spec in enumerate(thunk.operands):
        dtype = DTYPES[spec.dtype]
        column = [operands[number] for operands in everyones]
        if dtype.kind == "pred":
            function = {"add": np.logical_or, "multiply": np.logical_and}.get(thunk.reduction, _REDUCE[thunk.reduction])
        else:
            function = _REDUCE[thunk.reduction]
        wide = np.dtype(np.float32) if dtype.is_float and dtype.bits < 32 else _computing(column[0])
        total: Array = column[0].astype(wide)
        for other in column[1:]:
            total = function(total, other.astype(wide, copy=False), out=total)
        totals.append(total.astype(dtype.numpy, copy=False))
    return totals


def _computing(array: Array) -> NumpyType:
    """Return the numpy type of the reduction. ml_dtypes' integers below 8 bits are reduced in s8."""
    return array.dtype if array.dtype.kind in "bifuc" and array.dtype.itemsize * 8 >= 8 else np.dtype(np.int8)


def _all_reduce(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    return [_reduced(thunk, everyones)] * len(everyones)


def _reduce_scatter(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    pieces = [np.split(total, len(everyones), axis=thunk.dim) for total in _reduced(thunk, everyones)]
    return [[piece[member] for piece in pieces] for member in range(len(everyones))]


def _all_gather(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    joined = [np.concatenate(column, axis=thunk.dim) for column in zip(*everyones, strict=True)]
    return [joined] * len(everyones)


def _all_to_all(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Send piece i along a dimension to member i and concatenate the received pieces. Without one, send operand i to member i."""
    count = len(everyones)
    if thunk.dim < 0:
        return [[operands[member] for operands in everyones] for member in range(count)]
    pieces = [np.split(operands[0], count, axis=thunk.dim) for operands in everyones]
    return [[np.concatenate([piece[member] for piece in pieces], axis=thunk.dim)] for member in range(count)]


def _broadcast(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    del thunk
    return [list(everyones[0])] * len(everyones)


def _permute(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Permute among all members. A member without a source gets zeros, or keeps its outputs if slices are moved."""
    source_of = {target: source for source, target in thunk.groups}
    if thunk.slice_sizes:
        return [
            _with_slices(thunk, own, everyones[source_of[member]] if member in source_of else None)
            for member, own in enumerate(everyones)
        ]
    nothing = [np.zeros(spec.dims, DTYPES[spec.dtype].numpy) for spec in thunk.results]
    return [list(everyones[source_of[member]]) if member in source_of else nothing for member in range(len(everyones))]


def _with_slices(thunk: CollectiveThunk, own: Sequence[Array], sender: Sequence[Array] | None) -> list[Array]:
    """Return a member's outputs with the sender's slices written into them."""
    sizes = thunk.slice_sizes
    count, ranks = len(sizes), [len(each) for each in sizes]
    outputs = [array.copy() for array in own[count : 2 * count]]
    if sender is None:
        return outputs
    for number, output in enumerate(outputs):
        first = 2 * count + sum(ranks[:number])
        taken = _place(thunk, sender[first : first + ranks[number]], sizes[number], sender[number])
        output[_place(thunk, own[first + sum(ranks) :][: ranks[number]], sizes[number], output)] = sender[number][taken]
    return outputs


def _place(thunk: CollectiveThunk, starts: Sequence[Array], sizes: Sequence[int], array: Array) -> tuple[slice, ...]:
    places = tuple(slice(int(start), int(start) + size) for start, size in zip(starts, sizes, strict=True))
    if any(place.start < 0 or place.stop > bound for place, bound in zip(places, array.shape, strict=True)):
        found = ", ".join(f"{place.start}:{place.stop}" for place in places)
        raise DeviceError(f"%{thunk.name}: slice [{found}] is out of bounds of {list(array.shape)}")
    return places


def _ragged_all_to_all(thunk: CollectiveThunk, everyones: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Operands: input, output, input offsets, send sizes, output offsets (in the receiver's output), receive sizes."""
    outputs: list[Array] = [operands[1].copy() for operands in everyones]
    for data, _, starts, sizes, places, _ in everyones:
        if not starts.size or starts.size % len(everyones):
            raise DeviceError(f"%{thunk.name}: {starts.size} offsets do not divide evenly among {len(everyones)} members")
        each = starts.size // len(everyones)
        triples = zip(starts.reshape(-1), sizes.reshape(-1), places.reshape(-1), strict=True)
        for number, (start, size, place) in enumerate(triples):
            output = outputs[number // each]
            if min(start, size, place) < 0 or start + size > len(data) or place + size > len(output):
                piece = f"rows {start} to {start + size} of {len(data)} to {place} of {len(output)}"
                raise DeviceError(f"%{thunk.name}: out of bounds: {piece}")
            output[place : place + size] = data[start : start + size]
    return [[output] for output in outputs]


_COMBINE: dict[str, Combine] = {
    **dict.fromkeys(ALL_REDUCES, _all_reduce),
    "kReduceScatter": _reduce_scatter,
    "kAllGather": _all_gather,
    "kAllToAll": _all_to_all,
    "kCollectiveBroadcast": _broadcast,
    "kCollectivePermute": _permute,
    "kRaggedAllToAll": _ragged_all_to_all,
}
