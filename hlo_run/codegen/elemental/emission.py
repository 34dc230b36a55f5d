"""What the emitters of single opcodes share: how they ask for operands' elements.

An emission is a generator. It yields (operand, index) to ask for an operand's element and is sent its value; whoever
drives it (`function.py`) decides whether that is emitted here, called or taken from a cache. So no chain of
instructions is too long for Python's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias

from xdsl.ir import SSAValue

from hlo_run.codegen.elemental.builder import IrBuilder
from hlo_run.hlo.graph import HloComputation, HloInstruction

# One value per result: several for a variadic reduce or a tuple.
Values: TypeAlias = "tuple[SSAValue, ...]"
Request: TypeAlias = "tuple[HloInstruction, Values]"
Emission: TypeAlias = "Generator[Request, Values, Values]"


class EmissionContext(Protocol):
    """The function that an emission adds to."""

    @property
    def builder(self) -> IrBuilder: ...

    def call_scalar(self, computation: HloComputation, values: Values, is_reduction: bool) -> Values:
        """Call a computation on scalars (a reducer or a mapper)."""
        ...


EmitStructured: TypeAlias = "Callable[[EmissionContext, HloInstruction, Values], Emission]"


def element(operand: HloInstruction, index: Values) -> Generator[Request, Values, SSAValue]:
    """Ask for the element of an operand that is an array."""
    (value,) = yield operand, index
    return value
