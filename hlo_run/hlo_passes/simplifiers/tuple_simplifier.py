"""Simplify tuples: replace an element of a tuple by the operand, and a tuple of all elements of a value by the value.

    get-tuple-element(tuple(a, b)), index=1                                     =>   b
    tuple(get-tuple-element(t), index=0, get-tuple-element(t), index=1)         =>   t      (if t has no more elements)

XLA's `TupleSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.tuple_simplification import simplify_tuples
from hlo_run.pass_support.hlo_pass import PassContext


class TupleSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "tuple-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place, operands before their users."""
        del ctx
        simplify_tuples(module)
