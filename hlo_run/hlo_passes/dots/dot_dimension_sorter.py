"""Sort contracting dimensions where they then are consecutive, which saves a transpose.

    lhs_contracting_dims={2,1}, rhs_contracting_dims={0,2}   =>   lhs_contracting_dims={1,2}, rhs_contracting_dims={2,0}

Only if the other side is not sorted and consecutive already, and both operands have the default layout. Three or more dimensions
may end in another order than the sorted one, as in XLA's `DotDimensionSorter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import copy_instruction, replace_each
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class DotDimensionSorter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot_dimension_sorter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replace_each(module, [dot for dot in module.instructions_of("dot") if _fits(dot)], _sorted)


def _fits(dot: HloInstruction) -> bool:
    lhs, rhs = dot.lhs_contracting_dims, dot.rhs_contracting_dims
    if not lhs or not all(operand.shape.has_default_layout for operand in dot.operands):
        return False
    return (_would_help(lhs) and not _is_good(rhs)) or (_would_help(rhs) and not _is_good(lhs))


def _sorted(dot: HloInstruction) -> HloInstruction:
    """Return a dot with its pairs of dimensions in another order: a new one, as in XLA, so the last user of its operands."""
    lhs, rhs = dot.lhs_contracting_dims, dot.rhs_contracting_dims
    keys = lhs if _is_run(lhs) else rhs
    order = [key - min(keys) for key in keys]
    assert dot.parent is not None, "the instruction is in a computation"
    new = dot.parent.add(copy_instruction(dot, dot.operands))
    new.attrs["lhs_contracting_dims"] = tuple(lhs[number] for number in order)
    new.attrs["rhs_contracting_dims"] = tuple(rhs[number] for number in order)
    return new


def _is_run(dims: Sequence[int]) -> bool:
    """Return True if the dimensions are consecutive numbers in any order."""
    return not dims or max(dims) - min(dims) == len(dims) - 1


def _is_good(dims: Sequence[int]) -> bool:
    return _is_run(dims) and list(dims) == sorted(dims)


def _would_help(dims: Sequence[int]) -> bool:
    return _is_run(dims) and list(dims) != sorted(dims)
