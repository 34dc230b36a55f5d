"""Collectives as calls of NCCL: which function moves which bytes. Opens nothing; `nccl.py` makes the calls.

A communicator has the members of a group as its ranks, in the group's order. NCCL splits and joins arrays along their most major
dimension only, knows no integers of 16 bits and no bitwise operations. What only moves goes as bytes, whatever its type. Where
NCCL cannot do a collective, the plan is the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from hlo_run.artifact import ALL_REDUCES, ArraySpec, BufferSlice, CollectiveThunk
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace

# NCCL's names of element types, and those of operations on them.
_TYPES = {
    "s8": "Int8",
    "u8": "Uint8",
    "s32": "Int32",
    "u32": "Uint32",
    "s64": "Int64",
    "u64": "Uint64",
    "f16": "Float16",
    "bf16": "Bfloat16",
    "f32": "Float32",
    "f64": "Float64",
}
# NCCL computes with these from Hopper on.
_NARROW_TYPES = {"f8e4m3fn": "Float8e4m3", "f8e5m2": "Float8e5m2"}
_OPERATIONS = {"add": "Sum", "multiply": "Prod", "maximum": "Max", "minimum": "Min"}
# A pred is a byte that is 0 or 1.
_OF_PREDS = {"add": "Max", "or": "Max", "maximum": "Max", "multiply": "Min", "and": "Min", "minimum": "Min"}
_BYTES = "Uint8"


class NcclCall(Struct, frozen=True):
    """A call: the function, the slices that it reads and writes (None for no slice), and the number of elements.

    `operation` is the reduction, `peer` the rank of the other side or the root.
    """

    function: Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv"]
    source: BufferSlice | None
    target: BufferSlice | None
    count: int
    type: str = _BYTES
    operation: str = ""
    peer: int = -1


class NcclPlan(Struct, frozen=True):
    """The calls of one device, made as a group, after the slices `cleared` are filled with zeros."""

    calls: tuple[NcclCall, ...]
    cleared: tuple[BufferSlice, ...] = ()


def plan_collective(
    thunk: CollectiveThunk, members: tuple[int, ...], device: int, *, reduces_narrow: bool = False
) -> NcclPlan | str:
    """Return the calls of a device for its group, or the reason why NCCL cannot do the collective.

    `reduces_narrow`: the GPU is one on which NCCL computes with f8e4m3fn and f8e5m2.
    """
    pairs = tuple(zip(thunk.operands, thunk.results, strict=False))
    if any(any(spec.dynamic) for spec in (*thunk.operands, *thunk.results)):
        return "NCCL knows no arrays of dynamic size"
    match thunk.kind:
        case "kAllReduce" | "kCollectiveKernel" | "kReduceScatter":
            return _reduction(thunk, pairs, len(members), _TYPES | (_NARROW_TYPES if reduces_narrow else {}))
        case "kAllGather":
            if any(not _is_major(result, thunk.dim) for result in thunk.results):
                return "NCCL joins arrays along their major dimension only"
            return NcclPlan(tuple(NcclCall("all_gather", one.slice, to.slice, one.slice.size_bytes) for one, to in pairs))
        case "kAllToAll":
            return _all_to_all(thunk, pairs, len(members))
        case "kCollectiveBroadcast":
            root = tuple(NcclCall("broadcast", one.slice, to.slice, one.slice.size_bytes, peer=0) for one, to in pairs)
            return NcclPlan(root)
        case "kCollectivePermute":
            return _permutation(thunk, pairs, members.index(device))
        case "kRaggedAllToAll":
            return "its sizes are on the device, where the host does not see them"


def _reduction(
    thunk: CollectiveThunk, pairs: tuple[tuple[ArraySpec, ArraySpec], ...], ranks: int, types: Mapping[str, str]
) -> NcclPlan | str:
    calls: list[NcclCall] = []
    for operand, result in pairs:
        dtype = DTYPES[operand.dtype]
        elements = math.prod(result.dims)
        kind, operation = types.get(operand.dtype), _OPERATIONS.get(thunk.reduction)
        if dtype.kind == "pred":
            kind, operation = _BYTES, _OF_PREDS.get(thunk.reduction)
        elif dtype.is_complex and thunk.reduction == "add":
            kind, elements = {"c64": "Float32", "c128": "Float64"}[operand.dtype], 2 * elements
        if kind is None or operation is None:
            return f"NCCL has no {thunk.reduction} of {operand.dtype}"
        if thunk.kind == "kReduceScatter" and not _is_major(operand, thunk.dim):
            return "NCCL splits arrays along their major dimension only"
        assert thunk.kind in ALL_REDUCES or math.prod(operand.dims) == ranks * math.prod(result.dims), "each rank gets a piece"
        calls.append(
            NcclCall(
                "all_reduce" if thunk.kind in ALL_REDUCES else "reduce_scatter",
                operand.slice,
                result.slice,
                elements,
                kind,
                operation,
            )
        )
    return NcclPlan(tuple(calls))


def _all_to_all(thunk: CollectiveThunk, pairs: tuple[tuple[ArraySpec, ArraySpec], ...], ranks: int) -> NcclPlan | str:
    """Exchange the pieces of an array along a dimension; without one, send operand i to rank i and receive result i from it."""
    if thunk.dim < 0:
        return NcclPlan(tuple(call for peer, (one, to) in enumerate(pairs) for call in _both_ways(one.slice, to.slice, peer)))
    if any(not _is_major(spec, thunk.dim) for spec in (*thunk.operands, *thunk.results)):
        return "NCCL splits arrays along their major dimension only"
    if any(one.slice.size_bytes % ranks for one, _ in pairs):
        return "its pieces are no whole bytes"
    pieces = ((_piece(one.slice, peer, ranks), _piece(to.slice, peer, ranks), peer) for one, to in pairs for peer in range(ranks))
    return NcclPlan(tuple(call for source, target, peer in pieces for call in _both_ways(source, target, peer)))


def _permutation(thunk: CollectiveThunk, pairs: tuple[tuple[ArraySpec, ArraySpec], ...], rank: int) -> NcclPlan | str:
    if thunk.slice_sizes:
        return "its places are on the device, where the host does not see them"
    source = next((one for one, target in thunk.groups if target == rank), -1)
    targets = [target for one, target in thunk.groups if one == rank]
    calls: list[NcclCall] = []
    for operand, result in pairs:
        calls += [NcclCall("send", operand.slice, None, operand.slice.size_bytes, peer=target) for target in targets]
        if source >= 0:
            calls.append(NcclCall("recv", None, result.slice, result.slice.size_bytes, peer=source))
    return NcclPlan(tuple(calls), () if source >= 0 else tuple(result.slice for _, result in pairs))


def _piece(whole: BufferSlice, number: int, count: int) -> BufferSlice:
    """Return one of `count` equal pieces of a slice."""
    size = whole.size_bytes // count
    return replace(whole, offset_bytes=whole.offset_bytes + number * size, size_bytes=size)


def _both_ways(source: BufferSlice, target: BufferSlice, peer: int) -> Iterator[NcclCall]:
    yield NcclCall("send", source, None, source.size_bytes, peer=peer)
    yield NcclCall("recv", None, target, target.size_bytes, peer=peer)


def _is_major(spec: ArraySpec, dim: int) -> bool:
    """True if the array's pieces along `dim` lie one after the other: all dimensions that are more major have the size 1."""
    if DTYPES[spec.dtype].bits < 8:
        return False
    order = spec.minor_to_major
    return all(spec.dims[other] == 1 for other in order[order.index(dim) + 1 :])
