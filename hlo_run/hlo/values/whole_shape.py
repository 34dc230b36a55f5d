"""Shapes of whole values in a module that is divided between partitions."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.artifact.division import Division
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace


def whole_shape(shape: Shape, divisions: Sequence[Division | None]) -> Shape:
    """Return the shape of a whole value of which a partition has tiles of `shape`; one division per leaf, without tokens."""
    following = iter(divisions)

    def widened(leaf: Shape) -> Shape:
        division = None if leaf.element_type == "token" else next(following)
        return leaf if division is None else replace(leaf, dims=division.dims)

    return shape.map_leaves(widened)
