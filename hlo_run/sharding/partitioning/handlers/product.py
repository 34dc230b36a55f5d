"""Partition dots, and convolutions that are dots: by batch, free and contracting dimensions, one kind after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import Window
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.sharding.analysis.dot_dims import DimGroup, ProductDims
from hlo_run.sharding.partitioning.all_to_all import swapped_dims
from hlo_run.sharding.partitioning.collectives import all_reduce_dims, sum_of
from hlo_run.sharding.partitioning.grouping import slice_of_group
from hlo_run.sharding.partitioning.masks import zero_excess
from hlo_run.sharding.partitioning.reshard import can_permute
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.values.groups import GroupedSharding
from hlo_run.sharding.values.make import REPLICATED
from hlo_run.sharding.values.moves import transpose_collapsing


class Multiply(Protocol):
    """Adds the product of two parts. A convolution may have another window than the original one."""

    def __call__(self, lhs: Part, rhs: Part, window: Window | None = None) -> HloInstruction:
        """Return the product."""
        ...


# Partitions a convolution in ways that a dot does not have; None goes on as for a dot, False gives up.
Special = Callable[["Product", bool], "HloInstruction | bool | None"]


class Product(Struct, frozen=True):
    """A product of `lhs` and `rhs` with a result of shape `base` under `sharding` over `partitions` devices.

    `whole` is the undivided product.
    """

    lhs: Part
    rhs: Part
    base: Shape
    sharding: SingleSharding
    dims: ProductDims
    partitions: int
    multiply: Multiply
    whole: HloInstruction
    special: Special | None = None

    def tiles(self, groups: Sequence[DimGroup], side: str) -> int:
        """Return the number of tiles along dimensions of one side: lhs, rhs or output."""
        sharding = {"lhs": self.lhs.leaf, "rhs": self.rhs.leaf, "output": self.sharding}[side]
        return math.prod(tiles_at(sharding, getattr(group, side)) for group in groups)

    def moved(self, source: str, target: str) -> SingleSharding | None:
        """Return the sharding of one side in the form of another side's; None if a dimension that vanishes is divided."""
        ranks = {"lhs": self.dims.lhs_rank, "rhs": self.dims.rhs_rank, "output": self.dims.output_rank}
        sharding = {"lhs": self.lhs.leaf, "rhs": self.rhs.leaf, "output": self.sharding}[source]
        to_target, to_source = [-1] * ranks[source], [-1] * ranks[target]
        d = self.dims
        for group in (*d.batch, *d.contracting, *d.lhs_free, *d.rhs_free, *d.spatial):
            one, two = getattr(group, source), getattr(group, target)
            if one >= 0:
                to_target[one] = two
            if two >= 0:
                to_source[two] = one
        return transpose_collapsing(sharding, to_target, to_source)


def tiles_at(sharding: SingleSharding, dim: int) -> int:
    """Return the number of tiles along a dimension; 1 for no dimension (-1), and without tiles."""
    return 1 if sharding.tiles is None or dim < 0 else sharding.dims[dim]


def same_sharding(one: SingleSharding | None, two: SingleSharding | None) -> bool:
    """True if both exist and are equal."""
    return one is not None and two is not None and one.is_same(two)


def _known(sharding: SingleSharding | None) -> SingleSharding:
    assert sharding is not None, "only divided dimensions that stay"
    return sharding


def tile_of_fitting(p: Product, by_ring: Callable[[Product], HloInstruction | None]) -> HloInstruction | None:
    """Multiply tiles that fit as they are, or after one operand is resharded; or as `by_ring` does."""
    if p.sharding.subgroups == ("replicated",):
        return None
    d, count = p.dims, p.partitions
    lhs_batch, rhs_batch = p.tiles(d.batch, "lhs"), p.tiles(d.batch, "rhs")
    output_batch = p.tiles(d.batch, "output")
    if lhs_batch == rhs_batch == count and same_sharding(p.moved("lhs", "rhs"), p.rhs.leaf):
        made = p.multiply(p.lhs, p.rhs)
        return Part(made, p.base, _known(p.moved("lhs", "output")), p.lhs.state).reshard(p.sharding).hlo

    def with_other(may_gather: bool) -> HloInstruction | None:
        for side, own, batch in (("lhs", p.lhs, lhs_batch), ("rhs", p.rhs, rhs_batch)):
            other_name, other = ("rhs", p.rhs) if side == "lhs" else ("lhs", p.lhs)
            if batch == count and output_batch == count and same_sharding(p.moved(side, "output"), p.sharding):
                wanted = _known(p.moved(side, other_name))
                if not may_gather and not can_permute(other.leaf, wanted) and swapped_dims(other.leaf, wanted) is None:
                    return None
                moved = other.reshard(wanted)
                return p.multiply(own, moved) if side == "lhs" else p.multiply(moved, own)
        return None

    found = with_other(may_gather=False) or by_ring(p) or with_other(may_gather=True)
    if found is not None:
        return found
    if p.tiles(d.lhs_free, "lhs") == p.tiles(d.lhs_free, "output") == count and same_sharding(
        p.moved("lhs", "output"), p.sharding
    ):
        return p.multiply(p.lhs, p.rhs.replicate())
    if p.tiles(d.rhs_free, "rhs") == p.tiles(d.rhs_free, "output") == count and same_sharding(
        p.moved("rhs", "output"), p.sharding
    ):
        return p.multiply(p.lhs.replicate(), p.rhs)
    return None


def tile_of_resharded(p: Product) -> HloInstruction | None:
    """Reshard the operands as the result needs them, or add the partial products of tiles along contracting dimensions."""
    if p.sharding.subgroups == ("replicated",):
        return None
    d, count = p.dims, p.partitions
    if p.tiles(d.batch, "output") == count:
        return p.multiply(p.lhs.reshard(_known(p.moved("output", "lhs"))), p.rhs.reshard(_known(p.moved("output", "rhs"))))
    if p.tiles(d.lhs_free, "output") == count:
        return p.multiply(p.lhs.reshard(_known(p.moved("output", "lhs"))), p.rhs.replicate())
    if p.tiles(d.rhs_free, "output") == count:
        return p.multiply(p.lhs.replicate(), p.rhs.reshard(_known(p.moved("output", "rhs"))))
    if not p.sharding.is_replicated:
        return None
    lhs, rhs, size = p.lhs, p.rhs, p.base.element_count
    if p.tiles(d.contracting, "rhs") == count and lhs.leaf.is_replicated and rhs.base.element_count > size:
        lhs = lhs.reshard(_known(p.moved("rhs", "lhs")))
    elif p.tiles(d.contracting, "lhs") == count and rhs.leaf.is_replicated and lhs.base.element_count > size:
        rhs = rhs.reshard(_known(p.moved("lhs", "rhs")))
    else:
        return None
    lhs, rhs = zero_excess(lhs), zero_excess(rhs)
    made = p.multiply(lhs, rhs)
    along = [group.lhs for group in d.contracting]
    return all_reduce_dims(lhs.state, made, lhs.leaf, along, sum_of(lhs.state.module, p.base.element_type))


def share_of_whole(part: Part, dims: Sequence[int], grouped: GroupedSharding, state: object) -> Part:
    """Return the share of a replicated part that each group has."""
    assert isinstance(state, type(part.state))
    made = slice_of_group(part.builder, part.replicate().hlo, part.state.partition_id, grouped.devices, dims, grouped.dim_sizes)
    return Part(made, made.shape, REPLICATED, state)
