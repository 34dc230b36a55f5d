"""Thunks of collectives, which several devices run together; `kind` is XLA's `Thunk::Kind`."""

from __future__ import annotations

from typing import Literal

from hlo_run.artifact.buffers import ArraySpec
from hlo_run.artifact.library_thunks import FunctionCall

CollectiveKind = Literal[
    "kAllReduce",
    "kCollectiveKernel",
    "kReduceScatter",
    "kAllGather",
    "kAllToAll",
    "kCollectiveBroadcast",
    "kCollectivePermute",
    "kRaggedAllToAll",
]
ALL_REDUCES: frozenset[CollectiveKind] = frozenset(("kAllReduce", "kCollectiveKernel"))
"""XLA does the second kind in a Triton kernel."""
# XLA's CollectiveOpGroupMode: the meaning of the numbers in groups.
GroupMode = Literal["kCrossReplica", "kCrossPartition", "kCrossReplicaAndPartition", "kFlattenedID"]


class CollectiveThunk(FunctionCall, frozen=True):
    """A collective: each device of a group contributes its operands and receives its results.

    `groups` holds numbers of replicas, partitions or devices, as `mode` says; empty means one group of all. Devices synchronise
    in thunks of the same `key`. `dim` is the dimension that is concatenated or split (-1: none). `reduction` is the opcode of
    the reduction. A permutation has (source, target) pairs in `groups`. With `slice_sizes` a permutation copies a slice of each
    array into a slice of the target's array. The operands are then the inputs, the outputs, and scalars: the start indices in
    the inputs, then in the outputs.
    """

    name: str
    kind: CollectiveKind
    key: str
    operands: tuple[ArraySpec, ...]
    results: tuple[ArraySpec, ...]
    mode: GroupMode
    groups: tuple[tuple[int, ...], ...] = ()
    dim: int = -1
    reduction: str = ""
    slice_sizes: tuple[tuple[int, ...], ...] = ()
