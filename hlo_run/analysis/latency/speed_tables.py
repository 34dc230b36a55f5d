"""Measured speeds of collectives and matrix products on Hopper and Blackwell, and the times that follow from them.

XLA's `CollectiveInterpolator` and `MatmulInterpolator`. There are tables for NVIDIA H100 and NVIDIA B200, eight in a host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.target import TargetSpec

_FOLDER = Path(__file__).parent
_FEWEST_BYTES, _MOST_BYTES = 1 << 10, 1 << 30
_FEWEST_DEVICES, _MOST_DEVICES = 2, 8
_FEWEST, _MOST = (1, 256, 256, 256), (4, 4096, 4096, 4096)
# The types whose speeds serve for types without a column.
_FALLBACK = "bf16xbf16->bf16"
_FALLBACK_BYTES = 2

_GPUS_WITH_TABLES = frozenset(("sm_90", "sm_100_B200"))
_BLACKWELL = (10, 0)

_Point = tuple[int, int, int, int]


def name_in_tables(target: TargetSpec) -> str:
    """Return the name of a GPU in tables of speeds: its capability, and for 10.0 also the last word of its name."""
    major, minor = target.compute_capability
    name = f"sm_{major}{minor}"
    return f"{name}_{target.description.split(' ')[-1]}" if target.compute_capability == _BLACKWELL else name


def table_of(target: TargetSpec) -> str | None:
    """Return the name of XLA's tables of a GPU; None if XLA has none."""
    name = name_in_tables(target)
    return name if name in _GPUS_WITH_TABLES else None


def collective_seconds(table: str, opcode: Opcode, devices: int, size_bytes: int) -> float | None:
    """Return the time of a collective within a host; None for an opcode without a speed.

    The speed is that of the nearest measured size and number of devices. `table` is a name that `table_of` returned.
    """
    kind = str(_clamped(_nearest_power(devices), _FEWEST_DEVICES, _MOST_DEVICES))
    return _collective_seconds(table, opcode, kind, size_bytes)


def permute_seconds(table: str, pairs: Sequence[Sequence[int]], size_bytes: int) -> float | None:
    """Return the time of a permutation within a host; None if it has no pairs.

    A device may send or receive alone, or both; and two devices may exchange their arrays.
    """
    if not pairs:
        return None
    known = {tuple(pair) for pair in pairs}
    kind = "one-way"
    if {source for source, _ in known} & {target for _, target in known}:
        kind = "mutual" if all((target, source) in known for source, target in known) else "two-way"
    return _collective_seconds(table, "collective-permute", kind, size_bytes)


def _collective_seconds(table: str, opcode: Opcode, kind: str, size_bytes: int) -> float | None:
    speeds = _collective_speeds(table).get((opcode, kind))
    if speeds is None:
        return None
    size = _clamped(_nearest_power(size_bytes), _FEWEST_BYTES, _MOST_BYTES)
    return size_bytes / speeds[size.bit_length() - _FEWEST_BYTES.bit_length()]


def product_seconds(table: str, types: str, element_bytes: int, point: _Point) -> float:
    """Return the time of `b` products of m by k and k by n elements, `point` being (b, m, k, n).

    `types` are those of the operands and the result, such as `bf16xbf16->bf16`. Types that were not measured have the speed of
    bf16 for as many bytes; `element_bytes` is the size of an element of the result.
    """
    batch, rows, inner, columns = point
    speeds = _product_speeds(table)
    if types in speeds:
        operations = 2 * batch * rows * inner * columns
        return operations / _weighted(speeds[types], point, _FEWEST, _MOST, 1)
    sized = (batch, rows * element_bytes, inner * element_bytes, columns * element_bytes)
    operations = 2 * batch * sized[1] * sized[2] * sized[3]
    few, most = (
        (first, rows * _FALLBACK_BYTES, inner * _FALLBACK_BYTES, columns * _FALLBACK_BYTES)
        for first, rows, inner, columns in (_FEWEST, _MOST)
    )
    return operations / _weighted(speeds[_FALLBACK], sized, few, most, _FALLBACK_BYTES)


def _weighted(speeds: dict[_Point, int], point: _Point, fewest: _Point, most: _Point, unit: int) -> float:
    """Return the mean speed of the corners around a point, weighted by their squared distance from it."""
    ends = [
        tuple(_clamped(power, low, high) for power in (_power_up((size >> 1) + 1), _power_up(size)))
        for size, low, high in zip(point, fewest, most, strict=True)
    ]
    total = weights = 0.0
    for corner in _corners(ends):
        distance = sum((a - b) ** 2 for a, b in zip(corner, point, strict=True))
        weight = float(np.float32(1) / np.float32(distance + 1))
        batch, rows, inner, columns = corner
        total += speeds[batch, rows // unit, inner // unit, columns // unit] * weight
        weights += weight
    return total / weights


def _corners(ends: Sequence[tuple[int, ...]]) -> Iterator[_Point]:
    """Yield the corners; the first dimension varies fastest, since the sum of floats depends on its order."""
    for last, inner, rows, batch in product(*reversed(ends)):
        yield batch, rows, inner, last


def _clamped(value: int, low: int, high: int) -> int:
    return max(min(value, high), low)


def _power_up(value: int) -> int:
    """Return the least power of two that is not less."""
    return 1 if value <= 1 else 1 << (value - 1).bit_length()


def _nearest_power(value: int) -> int:
    """Return the power of two next to a number; the larger of equals."""
    low, high = _power_up((value >> 1) + 1), _power_up(value)
    return low if value - low < high - value else high


@cache
def _collective_speeds(table: str) -> dict[tuple[str, str], list[int]]:
    """Return by opcode and number of devices (or kind of permutation) the speeds at 2^10, 2^11, .. bytes."""
    rows = _rows(f"collective_speeds_{table}.tsv")
    return {(opcode, kind): [int(speed) for speed in speeds] for opcode, kind, *speeds in rows}


@cache
def _product_speeds(table: str) -> dict[str, dict[_Point, int]]:
    (_, _, _, _, *types), *rows = _rows(f"product_speeds_{table}.tsv")
    found: dict[str, dict[_Point, int]] = {name: {} for name in types}
    for batch, m, k, n, *speeds in rows:
        for name, speed in zip(types, speeds, strict=True):
            found[name][int(batch), int(m), int(k), int(n)] = int(speed)
    return found


def _rows(name: str) -> list[list[str]]:
    lines = (_FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]
