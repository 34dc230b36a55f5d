"""Compares shardings by how finely they divide, and merges shardings that divide different dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, SingleSharding, TupleSharding, tiled
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment
from hlo_run.sharding.values.make import device_array, elements_of, is_manual, is_maximal, is_whole, listed_tiles


def is_more_specific(one: Sharding, two: Sharding) -> bool:
    """True if `one` divides more than `two`. A tuple: if some leaf does, and no leaf of `two` does."""
    left, right = elements_of(one), elements_of(two)
    if not isinstance(one, TupleSharding):
        return _leaf_more_specific(left[0], right[0])
    if any(_leaf_more_specific(b, a) for a, b in zip(left, right, strict=True)):
        return False
    return any(_leaf_more_specific(a, b) for a, b in zip(left, right, strict=True))


def _leaf_more_specific(one: SingleSharding, two: SingleSharding) -> bool:
    if one.is_manual and two.is_whole:
        return True
    if one.is_manual or two.is_manual:
        return False
    if not two.is_whole:
        return one.tile_count > two.tile_count
    return not (one.is_replicated if two.is_replicated else one.is_whole)


def is_subtiling(dims: Sequence[int], fine: SingleSharding, coarse: SingleSharding) -> bool:
    """True if every device's part of an array with these dimensions under `fine` lies in its part under `coarse`."""
    if fine.is_manual or coarse.is_manual:
        return False
    if coarse.is_whole:
        return True
    if fine.is_whole or fine.data_rank != coarse.data_rank or fine.data_rank != len(dims):
        return False
    if any(a < b for a, b in zip(fine.data_dims, coarse.data_dims, strict=True)):
        return False
    fine_tile = [-(-size // count) for size, count in zip(dims, fine.data_dims, strict=True)]
    coarse_tile = [-(-size // count) for size, count in zip(dims, coarse.data_dims, strict=True)]
    begins: dict[int, list[int]] = {}
    for place, device in np.ndenumerate(device_array(coarse)):
        begins[int(device)] = [size * at for size, at in zip(coarse_tile, place, strict=False)]
    for place, device in np.ndenumerate(device_array(fine)):
        outer = begins.get(int(device), [0] * len(dims))
        for dim, size in enumerate(dims):
            begin = fine_tile[dim] * place[dim]
            end = begin + fine_tile[dim]
            if begin < outer[dim] or (end <= size and end > outer[dim] + coarse_tile[dim]):
                return False
    return True


def merged(new: SingleSharding, old: SingleSharding, least_tiles: int) -> SingleSharding | None:
    """Return a sharding that refines both, with at least `least_tiles` tiles, or None if there is none.

    Every device keeps its tile along the dimensions that each of the two divides; `old` must have devices with the same data.
    """
    if new.is_whole:
        return None
    if old.is_whole:
        return new
    if "replicated" not in old.subgroups or new.tiles is None or old.tiles is None:
        return None
    if new.data_rank != old.data_rank or ("manual" in new.subgroups) != ("manual" in old.subgroups):
        return None
    plan = _Plan.of(new, old)
    if plan is None or new.device_count % math.prod(plan.dims) or math.prod(plan.dims) < least_tiles:
        return None
    if "manual" in new.subgroups:
        manual = new.dims[new.subgroup_dim("manual")]
        if manual != old.dims[old.subgroup_dim("manual")] or new.device_count % (math.prod(plan.dims) * manual):
            return None
        plan.dims.append(manual)
        for side in (plan.new, plan.old):
            side.kept.append(manual)
            side.places[new.data_rank] = len(side.kept) - 1
    copies = new.device_count // math.prod(plan.dims)
    subgroups = ["manual"] if "manual" in new.subgroups else []
    if copies > 1:
        plan.dims.append(copies)
        subgroups.append("replicated")
    tiles = _by_moves(new, old, plan, copies) or _by_members(new, old, plan, copies)
    if tiles is None:
        return None
    return tiled(tiles, subgroups, _joined_metadata(old.metadata, new.metadata))


def _joined_metadata(one: tuple[OpMetadata, ...], two: tuple[OpMetadata, ...]) -> tuple[OpMetadata, ...]:
    return (*one, *(data for data in two if data not in one))


class _Side(Struct):
    """The split of the devices with the same data of one sharding: `kept` are its own extents, `more` the ones that it gets."""

    kept: list[int] = field(default_factory=list[int])
    more: list[int] = field(default_factory=list[int])
    more_at: list[int] = field(default_factory=list[int])
    places: dict[int, int] = field(default_factory=dict[int, int])


class _Plan(Struct):
    dims: list[int]
    new: _Side
    old: _Side

    @staticmethod
    def of(new: SingleSharding, old: SingleSharding) -> _Plan | None:
        plan = _Plan([], _Side(), _Side())
        for dim, (a, b) in enumerate(zip(new.data_dims, old.data_dims, strict=True)):
            if a != b and a != 1 and b != 1:
                return None
            plan.dims.append(max(a, b))
            for side, own, other in ((plan.new, a, b), (plan.old, b, a)):
                if own == other or own != 1:
                    side.places[dim] = len(side.kept)
                    side.kept.append(own)
                else:
                    side.more.append(other)
                    side.more_at.append(dim)
        return plan


def _by_moves(new: SingleSharding, old: SingleSharding, plan: _Plan, copies: int) -> TileAssignment | None:
    """Return tiles that both shardings become when their devices with the same data are divided in some order."""
    ways = [_ways(sharding, side, plan, copies) for sharding, side in ((new, plan.new), (old, plan.old))]
    found: TileAssignment | None = None
    for of_old in ways[1]:
        for of_new in ways[0]:
            if of_old.dims == of_new.dims and (of_old.order == of_new.order or of_old.devices() == of_new.devices()):
                found = of_old if isinstance(of_old.order, Iota) else of_new
    return found


def _ways(sharding: SingleSharding, side: _Side, plan: _Plan, copies: int) -> list[TileAssignment]:
    assert sharding.tiles is not None
    same = sharding.dims[sharding.subgroup_dim("replicated")] if "replicated" in sharding.subgroups else 0
    if not same or same == copies:
        return [sharding.tiles]
    more, more_at = list(side.more), list(side.more_at)
    if copies > 1:
        more.append(copies)
        more_at.append(len(plan.dims) - 1)
    found: list[TileAssignment] = []
    for order in itertools.permutations(range(len(more))):
        places = dict(side.places)
        for number, which in enumerate(order):
            places[more_at[which]] = len(side.kept) + number
        dims = (*side.kept, *(more[which] for which in order))
        if math.prod(dims) != sharding.device_count:
            return []
        found.append(sharding.tiles.reshape(dims).transpose([places[dim] for dim in range(len(plan.dims))]))
    return found


def _by_members(new: SingleSharding, old: SingleSharding, plan: _Plan, copies: int) -> TileAssignment | None:
    """Return tiles in which each place has the smallest device not used yet that both shardings allow there."""
    rank = new.data_rank
    members = [_members(sharding, rank) for sharding in (new, old)]
    grid = np.zeros(plan.dims, np.int64)
    for place in np.ndindex(*plan.dims):
        sets: list[set[int]] = []
        for sharding, sets_of in zip((new, old), members, strict=True):
            at = [0 if sharding.dims[dim] == 1 else place[dim] for dim in range(rank)]
            if "manual" in sharding.subgroups:
                at.append(place[rank])
            sets.append(sets_of[tuple(at)])
        both = sets[0] & sets[1]
        if not both:
            return None
        device = min(both)
        grid[place] = device
        sets[0].remove(device)
        sets[1].remove(device)
    return listed_tiles(grid)


def _members(sharding: SingleSharding, rank: int) -> dict[tuple[int, ...], set[int]]:
    found: dict[tuple[int, ...], set[int]] = {}
    manual = sharding.subgroup_dim("manual")
    for place, device in np.ndenumerate(device_array(sharding)):
        key = (*place[:rank], *((place[manual],) if manual >= 0 else ()))
        found.setdefault(tuple(map(int, key)), set()).add(int(device))
    return found


def common(shardings: Sequence[SingleSharding], otherwise: SingleSharding | None = None) -> SingleSharding:
    """Return the merge of all shardings; if they do not merge, `otherwise`, or the first one."""
    result = shardings[0]
    for sharding in shardings[1:]:
        if result.is_same(sharding):
            continue
        joined = merged(sharding, result, result.tile_count) if not (sharding.is_manual or result.is_manual) else None
        if joined is None:
            return otherwise or shardings[0]
        result = joined
    return result


def merge(old: Sharding, new: Sharding, may_combine: bool) -> tuple[bool, Sharding]:
    """Refine `new` by `old` where both replicate some devices (with `may_combine`). Return whether `new` improves on `old`."""
    if isinstance(new, TupleSharding):
        pairs = [merge(a, b, may_combine) for a, b in zip(elements_of(old), elements_of(new), strict=True)]
        return any(changed for changed, _ in pairs), TupleSharding(tuple(elements_of(result)[0] for _, result in pairs))
    (before,), (after,) = elements_of(old), elements_of(new)
    if (
        may_combine
        and "replicated" in before.subgroups
        and "replicated" in after.subgroups
        and before.device_count == after.device_count
    ):
        joined = merged(before, after, max(before.tile_count, after.tile_count) + 1)
        if joined is not None:
            return True, joined
    return _leaf_more_specific(after, before), after


def improved(new: Sharding, old: Sharding | None, shape: Shape, may_combine: bool, reshards: bool = False) -> Sharding | None:
    """Return the sharding to take instead of `old` (None: there is none yet) when `new` arrives, or None to keep `old`.

    `shape` is that of the value. With `reshards`, a finer sharding is taken that does not refine the old one.
    """
    if old is not None and _is_strictly_better(new, old):
        return new
    if is_maximal(new):
        return None
    if old is None:
        return new
    if is_manual(new):
        return None
    better, result = merge(old, new, may_combine)
    if not better:
        return None
    if not reshards and shape.is_array and not is_whole(old):
        (before,), (after,), (arrived,) = elements_of(old), elements_of(result), elements_of(new)
        if after.tile_count == arrived.tile_count and not is_subtiling(shape.dims, after, before):
            return None
    return result


def _is_strictly_better(one: Sharding, two: Sharding) -> bool:
    pairs = list(zip(elements_of(one), elements_of(two), strict=True))
    better = any(a.is_manual and b.is_whole for a, b in pairs)
    return better and not any(b.is_manual and a.is_whole for a, b in pairs)
