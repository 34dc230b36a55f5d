"""Facts about a module that many passes and runs ask for, each found once for every version of the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hlo_run.hlo.graph import HloModule

_T = TypeVar("_T")


def fact(module: HloModule, find: Callable[[HloModule], _T]) -> _T:
    """Return `find(module)`. `find` must not read the header: an edit of the header does not change the version."""
    known = module.facts.get(find)
    if known is None or known[0] != module.version:
        known = module.facts[find] = module.version, find(module)
    value: _T = known[1]
    return value


def element_types(module: HloModule) -> frozenset[str]:
    """Return the element types of all arrays in the module, also of those in tuples."""
    return fact(module, _element_types)


def _element_types(module: HloModule) -> frozenset[str]:
    shapes = {instruction.shape for instruction in module.instructions}
    return frozenset(leaf.element_type for shape in shapes for _, leaf in shape.leaves())
