"""What the infeeds of a run take: arrays one after the other, each device its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hlo_run.errors import DeviceError, UsageError
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape

# Returns the next array for an infeed that wants this element type and these dimensions; raises UsageError for another kind
# of array, DeviceError when none is left.
Feed: TypeAlias = Callable[[str, tuple[int, ...]], NDArray[Any]]
# Returns a device's feed, from its beginning. Devices are numbered replica-major.
Feeds: TypeAlias = Callable[[int], Feed]


def given_feeds(arrays: Iterable[Any], source: str = "the caller") -> Feeds:
    """Return feeds that give every device these arrays, in order; the leaves of a tuple follow each other."""
    kept = tuple(map(np.asarray, arrays))

    def feed(_device: int) -> Feed:
        return _Given(kept, source)

    return feed


def take_literal(feed: Feed, shape: Shape) -> Literal:
    """Return the next value of a shape: leaf by leaf."""
    if shape.is_tuple:
        return tuple(take_literal(feed, part) for part in shape.tuple_shapes)
    return feed(shape.element_type, shape.dims) if shape.is_array else ()


class _Given:
    """Arrays that somebody gave."""

    def __init__(self, arrays: tuple[NDArray[Any], ...], source: str) -> None:
        self._arrays = arrays
        self._source = source
        self._taken = 0

    def __call__(self, element_type: str, dims: tuple[int, ...]) -> NDArray[Any]:
        number, count = self._taken, len(self._arrays)
        if number >= count:
            hint = "--infeed=FILE.npz holds infeed0, infeed1, ..: the leaves of one infeed after the other"
            raise DeviceError(f"'infeed': {self._source} gives {count} arrays, all are taken", hint=hint)
        self._taken += 1
        array = self._arrays[number]
        if array.dtype != DTYPES[element_type].numpy or array.shape != dims:
            wanted = f"{element_type}[{','.join(map(str, dims))}]"
            raise UsageError(f"'infeed' takes {wanted}, array {number} of {self._source} is {array.dtype}{list(array.shape)}")
        return np.ascontiguousarray(array).reshape(dims)


NO_FEEDS = given_feeds((), "nobody")
