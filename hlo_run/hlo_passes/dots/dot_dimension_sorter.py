"""Sort contracting dimensions where they then are consecutive, which saves a transpose.

    lhs_contracting_dims={2,1}, rhs_contracting_dims={0,2}   =>   lhs_contracting_dims={1,2}, rhs_contracting_dims={2,0}

Only if the other side is not sorted and consecutive already. XLA's `DotDimensionSorter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext


class DotDimensionSorter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot_dimension_sorter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for dot in module.instructions_of("dot"):
            lhs, rhs = dot.lhs_contracting_dims, dot.rhs_contracting_dims
            if (_would_help(lhs) and not _is_good(rhs)) or (_would_help(rhs) and not _is_good(lhs)):
                keys = lhs if _is_run(lhs) else rhs
                order = sorted(range(len(keys)), key=lambda number: keys[number])
                dot.attrs["lhs_contracting_dims"] = tuple(lhs[number] for number in order)
                dot.attrs["rhs_contracting_dims"] = tuple(rhs[number] for number in order)


def _is_run(dims: Sequence[int]) -> bool:
    """Return True if the dimensions are consecutive numbers in any order."""
    return not dims or max(dims) - min(dims) == len(dims) - 1


def _is_good(dims: Sequence[int]) -> bool:
    return _is_run(dims) and list(dims) == sorted(dims)


def _would_help(dims: Sequence[int]) -> bool:
    return _is_run(dims) and list(dims) != sorted(dims)
