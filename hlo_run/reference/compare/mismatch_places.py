"""Describe in words where mismatches are: one index of a dimension, its tail, every k-th, a block, a run."""

from __future__ import annotations

import numpy as np

from hlo_run.reference.values import Array

# Periods of kernels in row-major order: vector widths, warps, tiles, blocks.
_FLAT_PERIODS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def place_patterns(mask: Array) -> list[str]:
    """Return sentences on where the true elements of a mask are; `mask` has the array's dimensions. Empty for a scalar."""
    count = int(np.count_nonzero(mask))
    if mask.size <= 1 or not count:
        return []
    if count == mask.size:
        return ["every element differs"]
    if count == 1:
        return []
    found = [text for dim in range(mask.ndim) if (text := _dimension_pattern(mask, dim))]
    if found:
        return [f"all mismatches are {' and '.join(found)}" + _density(mask, count)]
    return [text] if (text := _flat_pattern(mask.reshape(-1), count)) else []


def _dimension_pattern(mask: Array, dim: int) -> str:
    """Return a phrase on the indices of one dimension that have mismatches, if they are few or regular; else ""."""
    size = mask.shape[dim]
    others = tuple(d for d in range(mask.ndim) if d != dim)
    bad = np.flatnonzero(mask.any(axis=others))
    if size == 1 or bad.size == size:
        return ""
    name = f"of dimension {dim} (size {size})"
    first, last = int(bad[0]), int(bad[-1])
    if bad.size == 1:
        return f"at index {first} {name}"
    if bad.size == last - first + 1:
        if last == size - 1:
            return f"at the last {bad.size} indices {name}, from {first} on"
        return f"at the first {bad.size} indices {name}" if not first else f"at indices {first} to {last} {name}"
    return _periodic(bad, size, name)


def _periodic(bad: Array, size: int, name: str) -> str:
    """Return a phrase with `every k-th index`, or with the residues of all bad indices if enough periods have them."""
    gaps = np.diff(bad)
    step = int(gaps[0])
    if bad.size >= 3 and (gaps == step).all():
        return f"at every {_ordinal(step)} index {name}, from {bad[0]} on"
    sparsest = ""
    share = 1.0
    for period in _FLAT_PERIODS:
        residues = np.unique(bad % period)
        # The residues must occur in most of the periods: else few bad indices show a pattern by accident.
        if bad.size * 4 >= 3 * residues.size * (size // period) >= 9 and _is_sparse(residues, period, share):
            sparsest, share = f"where the index {name} modulo {period} is {_span(residues)}", residues.size / period
    return sparsest


def _is_sparse(residues: Array, period: int, share: float) -> bool:
    """True if the residues are contiguous, at most half the period, and a smaller share than the best one so far."""
    contiguous = residues[-1] - residues[0] + 1 == residues.size
    return bool(residues.size * 2 <= period and contiguous and residues.size / period < share)


def _flat_pattern(flat: Array, count: int) -> str:
    """Return a sentence on mismatches in row-major order, if they are one run or some residues of a period; else ""."""
    first = int(np.argmax(flat))
    last = flat.size - 1 - int(np.argmax(flat[::-1]))
    if count == last - first + 1:
        if last == flat.size - 1:
            return f"all {count} elements from number {first} (row-major) on differ, none before"
        return f"the mismatches are one run of {count} elements in row-major order, from number {first}"
    sparsest = ""
    share = 1.0
    for period in _FLAT_PERIODS:
        rows = flat.size // period
        if rows < 4 or count < 8:
            break
        columns = np.any(flat[: rows * period].reshape(rows, period), axis=0, keepdims=True)[0]
        tail = flat[rows * period :]
        columns[: tail.size] |= tail
        residues = np.flatnonzero(columns)
        if _is_sparse(residues, period, share):
            sparsest = f"all mismatches are where the element's number (row-major) modulo {period} is {_span(residues)}"
            share = residues.size / period
    return sparsest


def _density(mask: Array, count: int) -> str:
    """Return whether every element in the product of the dimensions' bad indices differs, as the end of a sentence."""
    box = 1
    for dim in range(mask.ndim):
        box *= int(np.count_nonzero(mask.any(axis=tuple(d for d in range(mask.ndim) if d != dim))))
    return ", and every element there differs" if box == count else f" ({count} of the {box} elements there)"


def _span(residues: Array) -> str:
    return str(residues[0]) if residues.size == 1 else f"{residues[0]} to {residues[-1]}"


def _ordinal(number: int) -> str:
    if number % 100 not in (11, 12, 13):
        return {1: f"{number}st", 2: f"{number}nd", 3: f"{number}rd"}.get(number % 10, f"{number}th")
    return f"{number}th"
