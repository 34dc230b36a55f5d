"""Split whole arguments into the tiles of each partition, and join the tiles of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from hlo_run.artifact.division import DividedEntry, Division
from hlo_run.backends.literals import Literal


def split_arguments(divided: DividedEntry, arguments: Sequence[Sequence[Literal]], partitions: int) -> list[list[Literal]]:
    """Return the arguments of every device: its tile of each whole argument. Tiles that reach beyond the array end in zeros.

    Where a tile is the sum of several devices' arrays, the first addend is the tile, and the others are zeros.
    """
    return [
        [
            _mapped(value, iter(divisions), partial(_tile, partition=device % partitions))
            for value, divisions in zip(values, divided.parameters, strict=True)
        ]
        for device, values in enumerate(arguments)
    ]


def join_results(divided: DividedEntry, results: Sequence[Literal], partitions: int) -> list[Literal]:
    """Return the whole result of every device: the tiles of its replica's partitions joined."""
    joined: list[Literal] = []
    for first in range(0, len(results), partitions):
        parts = results[first : first + partitions]
        leaves = [list(leaves_of(part)) for part in parts]
        wholes = [
            list(arrays) if division is None else _joined(arrays, division)
            for arrays, division in zip(zip(*leaves, strict=True), divided.result, strict=True)
        ]
        joined += [rebuilt(part, iter([whole[number] for whole in wholes])) for number, part in enumerate(parts)]
    return joined


def rebuilt(value: Literal, leaves: Iterator[Literal]) -> Literal:
    """Return a value with the tuples of `value` and other leaves."""
    return tuple(rebuilt(part, leaves) for part in value) if isinstance(value, tuple) else next(leaves)


def _mapped(value: Literal, divisions: Iterator[Division | None], change: Callable[[Literal, Division], Literal]) -> Literal:
    """Return a value with `change(array, division)` for each leaf."""
    if isinstance(value, tuple):
        return tuple(_mapped(part, divisions, change) for part in value)
    division = next(divisions)
    return value if division is None else change(value, division)


def leaves_of(value: Literal) -> Iterator[Literal]:
    """Yield the leaves of a value, depth first."""
    if isinstance(value, tuple):
        for part in value:
            yield from leaves_of(part)
    else:
        yield value


def _tile(array: Literal, division: Division, partition: int) -> Literal:
    part = np.asarray(array)[division.ranges(division.tile_of[partition])]
    if division.addend_of and division.addend_of[partition]:
        part = np.zeros_like(part)
    missing = [(0, size - own) for size, own in zip(division.tile_dims, part.shape, strict=True)]
    return np.pad(part, missing) if any(more for _, more in missing) else part.copy()


def _joined(arrays: Sequence[Literal], division: Division) -> list[Literal]:
    """Return the whole array that each partition's view of the tiles gives: its own tile, and one of each other one."""
    if division.addend_of:
        arrays = _summed(arrays, division)
    size = tuple(count * own for count, own in zip(division.counts, division.tile_dims, strict=True))
    if all(count == 1 for count in division.counts):
        holder = division.tile_of.index(0) if -1 in division.tile_of else -1
        return [arrays[holder] if holder >= 0 else array for array in arrays]
    wholes: list[Literal] = []
    cut = tuple(slice(0, own) for own in division.dims)
    for own in range(len(arrays)):
        whole = np.zeros(size, np.asarray(arrays[0]).dtype)
        for partition in (*range(len(arrays)), own):
            whole[division.ranges(division.tile_of[partition])] = arrays[partition]
        wholes.append(whole[cut].copy())
    return wholes


def _summed(arrays: Sequence[Literal], division: Division) -> list[Literal]:
    """Return each partition's tile as the sum of its addends, of which each is taken once."""
    sums: dict[int, Literal] = {}
    seen: set[tuple[int, int]] = set()
    for tile, addend, array in zip(division.tile_of, division.addend_of, arrays, strict=True):
        if (tile, addend) not in seen:
            seen.add((tile, addend))
            sums[tile] = sums[tile] + array if tile in sums else array
    return [sums[tile] for tile in division.tile_of]
