"""Expand the logistic function to its formula, since kernels do not have it.

    logistic(x)   =>   divide(1, add(1, exponential(negate(x))))

XLA's `logistic_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class LogisticExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "logistic-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("logistic",), _formula)


def _formula(b: HloBuilder, logistic: HloInstruction, x: HloValue) -> HloValue:
    one = b.constant(1, x.shape.element_type)
    made = [one, b.broadcast(one, logistic.shape.dims)] if logistic.shape.dims else [one]
    source = logistic.operands[0]
    if source.metadata is not None:  # XLA makes the ones from the operand
        for value in made:
            value.instruction.attrs["metadata"] = source.metadata
    one = made[-1]
    return one / (one + b.exponential(-x))
