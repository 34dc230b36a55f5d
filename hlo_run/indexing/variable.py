"""A variable of an indexing map: its closed interval and its name."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.indexing.interval import Interval

# The six dimensions of a map that starts from GPU thread and block ids, always in this order.
GRID_NAMES = ("th_x", "th_y", "th_z", "bl_x", "bl_y", "bl_z")


class Variable(Struct, frozen=True, eq=False):
    """A closed interval and a name. An empty name means the default (d0, s0, rt0 by kind and position).

    Names do not count in comparisons.
    """

    bounds: Interval
    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variable) and self.bounds == other.bounds

    def __hash__(self) -> int:
        return hash(self.bounds)
