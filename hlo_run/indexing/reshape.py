"""Indexing maps of reshapes, transposes and bitcasts, and conversion between linear and per-dimension indices.

Shapes are tuples of sizes. A layout is its minor-to-major order: dimension `minor_to_major[0]` varies fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from hlo_run.indexing.compose import compose
from hlo_run.indexing.expr import ZERO, Expr, add_all, dim
from hlo_run.indexing.indexing_map import IndexingMap


def strides_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major stride of each dimension, in elements."""
    strides: list[int] = []
    stride = 1
    for size in reversed(sizes):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))


def linearize(indices: Sequence[Expr], sizes: Sequence[int]) -> Expr:
    """Return the row-major linear index of `indices` into an array of `sizes`."""
    return add_all(index * stride for index, stride in zip(indices, strides_of(sizes), strict=True))


def delinearize(linear: Expr, sizes: Sequence[int]) -> tuple[Expr, ...]:
    """Return the row-major indices of element number `linear` in an array of `sizes`. `linear` must be in bounds.

    The first dimension of size above 1 gets no `mod`. All indices are 0 if the array has no elements.
    """
    if 0 in sizes:
        return (ZERO,) * len(sizes)
    indices: list[Expr] = []
    is_first = True
    for size, stride in zip(sizes, strides_of(sizes), strict=True):
        quotient = linear // stride
        indices.append(quotient if is_first and size > 1 else quotient % size)
        is_first = is_first and size <= 1
    return tuple(indices)


def _delinearize_by_remainders(linear: Expr, sizes: Sequence[int]) -> list[Expr]:
    indices: list[Expr] = []
    for stride in strides_of(sizes):
        indices.append(linear // stride)
        linear = linear % stride
    return indices


@lru_cache(maxsize=4096)
def reshape_map(from_dims: tuple[int, ...], to_dims: tuple[int, ...]) -> IndexingMap:
    """Return the map from an index into `from_dims` to the index of the same element in `to_dims`, simplified.

    The reshape is split into minimal reshapes first. For the output-to-input map of a reshape, `from_dims` is the
    output. Both arrays are row-major and must have the same number of elements.
    """
    assert prod(from_dims) == prod(to_dims), f"reshape between {from_dims} and {to_dims}"
    if 0 in from_dims:
        return IndexingMap.from_sizes((ZERO,) * len(to_dims), from_dims)
    results: list[Expr] = []
    for to_part, from_part in _minimal_reshapes(to_dims, from_dims):
        results += _reshape_part(to_part, [dim(i) for i in from_part], [from_dims[i] for i in from_part])
    return IndexingMap.from_sizes(results, from_dims).simplify(preserve_points=True)


def _minimal_reshapes(to_dims: Sequence[int], from_dims: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split a reshape into pairs with equal element counts: (sizes of `to` dims, numbers of `from` dims)."""
    cuts: list[tuple[list[int], list[int]]] = []
    to_part: list[int] = []
    from_part: list[int] = []
    to_next = from_next = 0
    to_count = from_count = 1
    while to_next < len(to_dims) or from_next < len(from_dims) or to_part:
        if to_next < len(to_dims) and (not to_part or to_count < from_count):
            to_part.append(to_dims[to_next])
            to_count *= to_dims[to_next]
            to_next += 1
        elif from_next < len(from_dims) and (not from_part or from_count < to_count):
            from_part.append(from_next)
            from_count *= from_dims[from_next]
            from_next += 1
        else:
            cuts.append((to_part, from_part))
            to_part, from_part, to_count, from_count = [], [], 1, 1
    return cuts


def _reshape_part(to_sizes: Sequence[int], indices: Sequence[Expr], from_sizes: Sequence[int]) -> list[Expr]:
    if len(to_sizes) == len(indices) == 1:
        return [indices[0]]
    linear = linearize(indices, from_sizes)
    return [linear] if len(to_sizes) == 1 else _delinearize_by_remainders(linear, to_sizes)


def transpose_map(from_dims: Sequence[int], permutation: Sequence[int]) -> IndexingMap:
    """Return the map whose result i is dimension permutation[i] of an index into `from_dims`.

    For an HLO transpose with `dimensions=P` this is its input-to-output map; the inverse of P gives output-to-input.
    """
    return IndexingMap.from_sizes((dim(p) for p in permutation), from_dims)


def inverse_permutation(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return Q with Q[P[i]] = i."""
    inverse = [0] * len(permutation)
    for position, target in enumerate(permutation):
        inverse[target] = position
    return tuple(inverse)


def to_physical_map(dims: Sequence[int], minor_to_major: Sequence[int]) -> IndexingMap:
    """Return the map from a logical index to the physical index, whose dimensions are major to minor."""
    return transpose_map(dims, tuple(reversed(minor_to_major)))


def physical_dims(dims: Sequence[int], minor_to_major: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the dimensions, major to minor."""
    return tuple(dims[d] for d in reversed(minor_to_major))


def linear_physical_index(indices: Sequence[Expr], dims: Sequence[int], minor_to_major: Sequence[int]) -> Expr:
    """Return the offset in elements of a logical index into an array with this layout."""
    order = tuple(reversed(minor_to_major))
    return linearize([indices[d] for d in order], [dims[d] for d in order])


@lru_cache(maxsize=4096)
def bitcast_map(
    from_dims: tuple[int, ...],
    from_minor_to_major: tuple[int, ...],
    to_dims: tuple[int, ...],
    to_minor_to_major: tuple[int, ...],
) -> IndexingMap | None:
    """Return the map from an index into one array to the index of the same memory offset in the other, simplified.

    None if the element counts differ. Layouts matter, element types do not. The result is the first that fits: a
    transpose, a reshape that keeps the layout, or transpose + reshape + transpose.
    """
    if prod(from_dims) != prod(to_dims):
        return None
    if 0 in from_dims:
        return IndexingMap.from_sizes((ZERO,) * len(to_dims), from_dims)
    permutation = _permutation_of_bitcast(from_dims, from_minor_to_major, to_dims, to_minor_to_major)
    if permutation is not None:
        return transpose_map(from_dims, permutation)
    reshape = reshape_map(from_dims, to_dims)
    before = IndexingMap.identity(from_dims)
    if _offset(reshape, to_dims, to_minor_to_major) is _offset(before, from_dims, from_minor_to_major):
        return reshape
    from_physical, to_physical = physical_dims(from_dims, from_minor_to_major), physical_dims(to_dims, to_minor_to_major)
    physical = compose(to_physical_map(from_dims, from_minor_to_major), reshape_map(from_physical, to_physical))
    back = transpose_map(to_physical, inverse_permutation(tuple(reversed(to_minor_to_major))))
    return compose(physical, back).simplify(preserve_points=True)


def _permutation_of_bitcast(
    from_dims: Sequence[int], from_order: Sequence[int], to_dims: Sequence[int], to_order: Sequence[int]
) -> tuple[int, ...] | None:
    """Return P with `to` dim i = `from` dim P[i], or None unless both arrays have the same physical dimensions."""
    if len(from_dims) != len(to_dims):
        return None
    pairs = sorted(zip(to_order, from_order, strict=True))
    permutation = tuple(source for _, source in pairs)
    return permutation if all(to_dims[i] == from_dims[p] for i, p in enumerate(permutation)) else None


def _offset(indices: IndexingMap, dims: Sequence[int], minor_to_major: Sequence[int]) -> Expr:
    linear = linear_physical_index(indices.results, dims, minor_to_major)
    return indices.with_results((linear,)).simplify().results[0]
