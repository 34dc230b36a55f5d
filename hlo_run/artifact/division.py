"""The division of whole arrays between the partitions of a run."""

from __future__ import annotations

from msgspec import Struct


class Division(Struct, frozen=True):
    """The tiles of an array with dimensions `dims`: `counts` per dimension, and the row-major number of each partition's tile.

    All tiles have the size of the first; the last ones of a dimension may reach beyond the array. Where the array is the sum of
    what partitions hold, `addend_of` numbers the addends of each tile, and says which one each partition has; else it is ().
    A tile of -1 is none: one partition has the whole array.
    """

    dims: tuple[int, ...]
    counts: tuple[int, ...]
    tile_of: tuple[int, ...]
    addend_of: tuple[int, ...] = ()

    @property
    def tile_dims(self) -> tuple[int, ...]:
        """The dimensions of a tile."""
        return tuple(-(-size // count) for size, count in zip(self.dims, self.counts, strict=True))

    def ranges(self, tile: int) -> tuple[slice, ...]:
        """Return the ranges of a tile; the last tiles of a dimension may reach beyond the array."""
        found: list[slice] = []
        for count, size in zip(reversed(self.counts), reversed(self.tile_dims), strict=True):
            tile, place = divmod(tile, count)
            found.append(slice(place * size, (place + 1) * size))
        return tuple(reversed(found))


class DividedEntry(Struct, frozen=True):
    """The divisions of the leaves of each parameter and of the result, without tokens. Only arrays have one."""

    parameters: tuple[tuple[Division | None, ...], ...]
    result: tuple[Division | None, ...]


class FedArray(Struct, frozen=True):
    """A whole array that an infeed takes, of which each partition keeps its tile; a tile of -1 is none."""

    element_type: str
    division: Division
