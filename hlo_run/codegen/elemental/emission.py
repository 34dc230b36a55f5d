"""The protocol by which emitters of single opcodes request the elements of operands.

An emission is a generator. It yields (operand, index) to request an operand's element and is sent the element's value.
The driver in `function.py` emits the element in place, calls its function, or takes it from a cache. Long chains of
instructions therefore need no deep Python stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias

from xdsl.ir import SSAValue

from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.hlo.graph import HloComputation, HloInstruction

# One value per result; a variadic reduce or a tuple has several.
Values: TypeAlias = "tuple[SSAValue, ...]"
Request: TypeAlias = "tuple[HloInstruction, Values]"
Emission: TypeAlias = "Generator[Request, Values, Values]"


class EmissionContext(Protocol):
    """The function that an emission adds ops to."""

    @property
    def builder(self) -> IrBuilder:
        """The builder that appends the emission's ops."""
        ...

    def call_scalar(self, computation: HloComputation, values: Values, is_reduction: bool) -> Values:
        """Call a computation on scalars, a reducer or a mapper. Returns its results."""
        ...


EmitStructured: TypeAlias = "Callable[[EmissionContext, HloInstruction, Values], Emission]"


def element(operand: HloInstruction, index: Values) -> Generator[Request, Values, SSAValue]:
    """Request the element of an array operand at `index`."""
    (value,) = yield operand, index
    return value
