"""Shardings between two others: with a dimension split in two, or with a dimension not divided."""

from __future__ import annotations

from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.sharding.values.moves import split_dim
from hlo_run.sharding.values.replicate import replicate_dims


def _copies(sharding: SingleSharding) -> int:
    return sharding.dims[sharding.subgroup_dim("replicated")] if "replicated" in sharding.subgroups else 1


def split_pair(base: Shape, source: SingleSharding, target: SingleSharding) -> tuple[SingleSharding, SingleSharding, int] | None:
    """Return both shardings with one dimension split alike, and that dimension, such that they differ less; None if none does."""
    if source.kind != "tiled" or target.kind != "tiled" or source.data_rank != target.data_rank:
        return None
    if _copies(source) != _copies(target):
        return None
    one_sided: list[int] = []
    two_sided: list[int] = []
    for dim in range(target.data_rank):
        low, high = sorted((source.dims[dim], target.dims[dim]))
        if low == high or base.dims[dim] == 0:
            continue
        if low == 1:
            one_sided.append(dim)
        elif high % low == 0 and -(-base.dims[dim] // low) * low % high == 0:
            two_sided.append(dim)
    for dim in two_sided:
        for other in one_sided:
            if source.dims[dim] * source.dims[other] == target.dims[dim] * target.dims[other]:
                size = min(source.dims[dim], target.dims[dim])
                return split_dim(source, dim, size), split_dim(target, dim, size), dim
    for dim in two_sided:
        if source.dims[dim] > target.dims[dim]:
            return split_dim(source, dim, target.dims[dim]), split_dim(target, dim, target.dims[dim]), dim
    return None


def partly_replicated(source: SingleSharding, target: SingleSharding) -> SingleSharding | None:
    """Return `source` without the division of one dimension, such that as many devices share data as in `target`; or None."""
    if "replicated" not in target.subgroups:
        return None
    for dim in range(source.data_rank):
        if source.dims[dim] != 1 and source.dims[dim] * _copies(source) == _copies(target):
            return replicate_dims(source, [dim])
    return None
