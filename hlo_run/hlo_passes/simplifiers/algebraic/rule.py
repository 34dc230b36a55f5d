"""What rules stand on: the face of a rule, an editor that knows the mode, and questions about constants.

A rule looks at one instruction and returns what stands for it from now on, or None. It edits nothing that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape

Rule: TypeAlias = "Callable[[Rewriter, HloInstruction], HloInstruction | None]"
# The rules of some opcodes, in the order in which they are tried.
Rules: TypeAlias = "dict[str, tuple[Rule, ...]]"


@dataclass(frozen=True)
class Rewriter(Editor):
    """An editor for a rule. `sees_layouts`: layouts are settled, results must have those of what they replace."""

    sees_layouts: bool = False

    def splat(self, value: Any, shape: Shape) -> HloInstruction:
        """Return an array of one value: a constant, broadcast where the shape has dimensions."""
        scalar = self.constant(value, shape.element_type)
        return scalar if not shape.dims else self.add("broadcast", _static(shape), [scalar], dimensions=())

    def spread(self, scalar: HloInstruction, shape: Shape) -> HloInstruction:
        """Return a scalar broadcast to the dimensions and the layout of `shape`."""
        wanted = _static(shape).with_element_type(scalar.shape.element_type)
        return scalar if not shape.dims else self.add("broadcast", wanted, [scalar], dimensions=())

    def like(self, old: HloInstruction, operands: Sequence[HloInstruction], shape: Shape | None = None) -> HloInstruction:
        """Return an instruction as `old` is, of other operands (and shape)."""
        attributes = {name: value for name, value in old.attrs.items() if name not in ("metadata", "sharding")}
        called = {name: list(group) for name, group in old.called.items()}
        return self.add(old.opcode, shape or old.shape, operands, called, **attributes)

    def mul(self, one: HloInstruction, two: HloInstruction) -> HloInstruction:
        return self.binary("multiply", one, two)

    def negate(self, value: HloInstruction) -> HloInstruction:
        return self.unary("negate", value)


def _static(shape: Shape) -> Shape:
    return replace(shape, dynamic_dims=()) if shape.dynamic_dims else shape


def scalar_of(value: HloInstruction) -> HloInstruction | None:
    """Return the scalar that a broadcast is made of; a scalar itself."""
    if value.opcode == "broadcast" and not value.operands[0].shape.dims:
        return value.operands[0]
    return value if value.shape.is_array and not value.shape.dims else None


def constant_of(value: HloInstruction) -> HloInstruction | None:
    """Return the scalar constant that `value` is, or is a broadcast of."""
    scalar = scalar_of(value)
    return scalar if scalar is not None and scalar.opcode == "constant" else None


def splat_value(value: HloInstruction) -> Any:
    """Return the number that every element of a constant or of a broadcast constant is, None if there is no such."""
    if value.opcode == "broadcast":
        value = value.operands[0]
    if value.opcode != "constant" or not value.shape.is_array:
        return None
    literal = value.attrs["literal"]
    if literal.ndim == 0:
        return literal[()]
    first = literal.reshape(-1)[0] if literal.size else None
    return first if first is not None and bool((literal == first).all()) else None


def is_all(value: HloInstruction, number: complex) -> bool:
    """True if every element is that number; both zeros of floats are 0."""
    found = splat_value(value)
    return found is not None and bool(found == np.asarray(number).astype(found.dtype))


def is_constant(value: HloInstruction) -> bool:
    """True for a constant and for a broadcast of one."""
    return value.opcode == "constant" or (value.opcode == "broadcast" and value.operands[0].opcode == "constant")


def power_of_two(value: HloInstruction) -> int | None:
    """Return k if every element is the integer 2^k."""
    found = splat_value(value)
    if found is None or not value.shape.dtype.is_integer or int(found) <= 0 or int(found) & (int(found) - 1):
        return None
    return int(found).bit_length() - 1


def either(instruction: HloInstruction, opcode: str) -> tuple[HloInstruction, HloInstruction] | None:
    """Return (the operand with that opcode, the other one) of an instruction that takes its two in any order."""
    one, two = instruction.operands
    if one.opcode == opcode:
        return one, two
    return (two, one) if two.opcode == opcode else None


def is_float(value: HloInstruction) -> bool:
    return value.shape.dtype.is_float


def is_integer(value: HloInstruction) -> bool:
    return value.shape.dtype.is_integer


def lowest_and_highest(element_type: str) -> tuple[int, int]:
    """Return the range of an integer type; pred counts as 0 and 1."""
    dtype = DTYPES[element_type]
    if not dtype.is_integer:
        return 0, 1
    return (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)
