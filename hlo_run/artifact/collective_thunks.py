"""What devices do together; `kind` is XLA's word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hlo_run.artifact.buffers import ArraySpec

CollectiveKind = Literal[
    "kAllReduce", "kReduceScatter", "kAllGather", "kAllToAll", "kCollectiveBroadcast", "kCollectivePermute", "kRaggedAllToAll"
]
# XLA's CollectiveOpGroupMode: what the numbers in groups are.
GroupMode = Literal["kCrossReplica", "kCrossPartition", "kCrossReplicaAndPartition", "kFlattenedID"]


@dataclass(frozen=True, slots=True)
class CollectiveThunk:
    """The devices of a group meet: each gives its operands and takes its results.

    `groups` are of replicas, partitions or devices, as `mode` says; none means everyone in one group. Devices meet in thunks
    of one `key`. `dim` is the dimension that is joined or divided (-1: none). `reduction` names the opcode that reduces.
    A permutation has the (source, target) pairs in `groups`. With `slice_sizes` it moves a slice of each array into a place of
    the target's: operands are inputs, outputs, and as scalars the starts in the inputs and in the outputs.
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
