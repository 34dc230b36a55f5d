"""The arrays of an instruction's result that thunks write: without workspaces and parts that only pass through."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.artifact import ArraySpec, ArrayTree, BufferSlice
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.values import Value


def written_leaves(shape: Shape, tree: ArrayTree, written: Sequence[BufferSlice]) -> list[tuple[tuple[int, ...], Shape]]:
    """Return the (shape index, shape) of the arrays that are written, without workspaces."""
    found: list[tuple[tuple[int, ...], Shape]] = []
    for path, leaf in shape.leaves():
        spec = spec_at(tree, path)
        if isinstance(spec, ArraySpec) and any(overlap(spec.slice, piece) for piece in written):
            found.append((path, leaf))
    return found


def spec_at(tree: ArrayTree, path: Sequence[int]) -> ArrayTree:
    """Return the part of a tree at a shape index."""
    for number in path:
        assert isinstance(tree, tuple), "the tree has the structure of the shape"
        tree = tree[number]
    return tree


def part_at(value: Value, path: Sequence[int]) -> Value:
    """Return the part of a value at a shape index."""
    for number in path:
        assert isinstance(value, tuple), "the value has the structure of the shape"
        value = value[number]
    return value


def overlap(one: BufferSlice, two: BufferSlice) -> bool:
    """True if two slices share bytes."""
    return (
        one.allocation == two.allocation
        and one.offset_bytes < two.offset_bytes + two.size_bytes
        and two.offset_bytes < one.offset_bytes + one.size_bytes
    )
