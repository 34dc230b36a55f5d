"""Infeed data of a run: a sequence of arrays per device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hlo_run.arrays import Array
from hlo_run.errors import DeviceError, UsageError
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape

if TYPE_CHECKING:
    from hlo_run.artifact.division import FedArray

# Returns the next array for an infeed of this element type and these dimensions. Raises UsageError if the array has another
# type or other dimensions, DeviceError if no array is left.
Feed: TypeAlias = Callable[[str, tuple[int, ...]], Array]
# Returns the feed of a device, from its first array. Devices are numbered replica-major.
Feeds: TypeAlias = Callable[[int], Feed]


def given_feeds(arrays: Iterable[object], source: str = "the caller") -> Feeds:
    """Return feeds that give every device these arrays, in order; a tuple takes one array per leaf.

    `source` names the origin of the arrays in errors.
    """
    kept = tuple(map(np.asarray, arrays))

    def feed(_device: int) -> Feed:
        return _Given(kept, source)

    return feed


def of_replicas(feeds: Feeds, partitions: int) -> Feeds:
    """Return feeds that give all partitions of a replica the arrays of its first device."""
    return lambda device: feeds(device // partitions * partitions)


def take_literal(feed: Feed, shape: Shape) -> Literal:
    """Take the next value of a shape from the feed, leaf by leaf."""
    leaves = (leaf for _, leaf in shape.leaves())
    return literal_of(shape, (feed(leaf.element_type, leaf.dims) for leaf in leaves if leaf.is_array))


def literal_of(shape: Shape, arrays: Iterator[Array]) -> Literal:
    """Return a value of a shape that has these arrays as its leaves."""
    if shape.is_tuple:
        return tuple(literal_of(part, arrays) for part in shape.tuple_shapes)
    return next(arrays) if shape.is_array else ()


def take_tiles(feed: Feed, arrays: Sequence[FedArray], partition: int) -> Iterator[Array]:
    """Take the next whole arrays from the feed, and yield the partition's tile of each, if it has one.

    Tiles at the end of an array are smaller than others, or empty.
    """
    for array in arrays:
        division = array.division
        tile, whole = division.tile_of[partition], feed(array.element_type, division.dims)
        if tile >= 0:
            yield np.array(whole[division.ranges(tile)], order="C")


class _Given:
    """A feed of given arrays."""

    def __init__(self, arrays: tuple[Array, ...], source: str) -> None:
        self._arrays = arrays
        self._source = source
        self._taken = 0

    def __call__(self, element_type: str, dims: tuple[int, ...]) -> Array:
        number, count = self._taken, len(self._arrays)
        if number >= count:
            hint = "pass --infeed=FILE.npz with infeed0, infeed1, ..: the leaves of all infeeds in order"
            raise DeviceError(f"'infeed' needs another array: {self._source} gives only {count} arrays", hint=hint)
        self._taken += 1
        array = self._arrays[number]
        if array.dtype != DTYPES[element_type].numpy or array.shape != dims:
            wanted = f"{element_type}[{','.join(map(str, dims))}]"
            raise UsageError(f"'infeed' takes {wanted}, array {number} of {self._source} is {array.dtype}{list(array.shape)}")
        return np.ascontiguousarray(array).reshape(dims)


NO_FEEDS = given_feeds((), "the caller")
