"""The division of one array between partitions: the tile of each, as splitting and joining need it."""

from __future__ import annotations

import numpy as np

from hlo_run.artifact.division import Division
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.sharding.values.make import device_array


def division_of(shape: Shape, leaf: SingleSharding, partitions: int) -> Division:
    """Return the division of an array of `shape` by `leaf`. Without tiles every partition has the whole array, or an addend.

    Of an array on one device, the others have no tile.
    """
    if leaf.kind == "maximal":
        return Division(shape.dims, (1,) * shape.rank, tuple(0 if device == leaf.device else -1 for device in range(partitions)))
    if leaf.kind != "tiled":
        addends = tuple(range(partitions)) if leaf.kind == "unreduced" else ()
        return Division(shape.dims, (1,) * shape.rank, (0,) * partitions, addends)
    tile_of, addend_of = [0] * partitions, [0] * partitions
    summed = leaf.subgroup_dim("unreduced")
    for place, device in np.ndenumerate(device_array(leaf)):
        tile_of[int(device)] = int(np.ravel_multi_index(place[: leaf.data_rank], leaf.data_dims)) if leaf.data_rank else 0
        addend_of[int(device)] = place[summed]
    return Division(shape.dims, leaf.data_dims, tuple(tile_of), tuple(addend_of) if summed >= 0 else ())
