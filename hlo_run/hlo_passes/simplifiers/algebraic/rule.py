"""The base of algebraic rules: the type of a rule, the editor that rules use, and predicates on constants.

A rule examines one instruction and returns its replacement, or None. A rule that instead gives other instructions new operands
returns the instruction itself; it takes fuel for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.fuel import Fuel
from hlo_run.records import replace

Rule: TypeAlias = "Callable[[Rewriter, HloInstruction], HloInstruction | None]"
# The rules of some opcodes, in the order in which they are tried.
Rules: TypeAlias = "dict[Opcode, tuple[Rule, ...]]"


class Rewriter(Editor):
    """An editor for rules. With `sees_layouts`, layouts are assigned, and a replacement must have the layout of the old value.

    A walk has one, and sets `origin` to the instruction that it visits.
    """

    def __init__(self, origin: HloInstruction, sees_layouts: bool, fuel: Fuel, derives: bool = True) -> None:
        super().__init__(origin, derives)
        self.sees_layouts = sees_layouts
        self.fuel = fuel

    def at(self, origin: HloInstruction) -> Rewriter:
        """Return a rewriter whose instructions get the metadata of `origin`, of the same computation."""
        return Rewriter(origin, self.sees_layouts, self.fuel, self.derives)

    @property
    def bare(self) -> Rewriter:
        """A rewriter whose instructions have no metadata."""
        return Rewriter(self.origin, self.sees_layouts, self.fuel, derives=False)

    def replace_uses(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace `old`, which stays, by `new` in all its users and as the root."""
        module = self.computation.module
        assert module is not None, "the computation is in a module"
        module.replace_uses(old, new)

    def with_operands(self, i: HloInstruction, operands: Sequence[HloInstruction]) -> HloInstruction | None:
        """Give an instruction other operands and return it; None if the pass has no fuel."""
        if not self.fuel.take("algsimp"):
            return None
        i.operands = tuple(operands)
        return i

    def zeros(self, shape: Shape) -> HloInstruction:
        """Return a broadcast zero, as XLA's `BroadcastZeros` also for a shape without dimensions, without metadata."""
        bare = self.bare
        return bare.add("broadcast", without_dynamic_dims(shape), [bare.constant(0, shape.element_type)], dimensions=())

    def splat(self, value: object, shape: Shape) -> HloInstruction:
        """Return an array of equal elements: a constant, broadcast if the shape has dimensions."""
        scalar = self.constant(value, shape.element_type)
        return scalar if not shape.dims else self.add("broadcast", without_dynamic_dims(shape), [scalar], dimensions=())

    def spread(self, scalar: HloInstruction, shape: Shape) -> HloInstruction:
        """Return a scalar broadcast to the dimensions and the layout of `shape`."""
        wanted = without_dynamic_dims(shape).with_element_type(scalar.shape.element_type)
        return scalar if not shape.dims else self.add("broadcast", wanted, [scalar], dimensions=())

    def like(self, old: HloInstruction, operands: Sequence[HloInstruction], shape: Shape | None = None) -> HloInstruction:
        """Return an instruction like `old`, with other operands (and optionally another shape)."""
        attributes = {name: value for name, value in old.attrs.items() if name not in ("metadata", "sharding")}
        called = {name: list(group) for name, group in old.called.items()}
        return self.add_with(old.opcode, shape or old.shape, operands, attributes, called)

    def clone(self, old: HloInstruction, operands: Sequence[HloInstruction], shape: Shape) -> HloInstruction:
        """Return a copy of `old`, with its name and metadata, other operands and another shape. A sharding stays if it fits."""
        made = copy_instruction(old, operands, shape)
        if shape.rank != old.shape.rank:
            made.attrs.pop("sharding", None)
        return self.computation.add(made)

    def mul(self, one: HloInstruction, two: HloInstruction) -> HloInstruction:
        """Return the elementwise product of two values of the same shape."""
        return self.binary("multiply", one, two)

    def negate(self, value: HloInstruction) -> HloInstruction:
        """Return the value with every element negated."""
        return self.unary("negate", value)


def is_plain(shape: Shape) -> bool:
    """Return True for an array of static size whose elements are whole bytes, or a tuple of such arrays."""
    if shape.is_tuple:
        return all(is_plain(part) for part in shape.tuple_shapes)
    return shape.is_array and not shape.dynamic_dims and (shape.dtype.bits >= 8)


def without_dynamic_dims(shape: Shape) -> Shape:
    """Return the shape with static dimensions of the same sizes."""
    return replace(shape, dynamic_dims=()) if shape.dynamic_dims else shape


def scalar_of(value: HloInstruction) -> HloInstruction | None:
    """Return the scalar that `value` is, or is a broadcast of; None for other values."""
    if value.opcode == "broadcast" and not value.operands[0].shape.dims:
        return value.operands[0]
    return value if value.shape.is_array and not value.shape.dims else None


def constant_of(value: HloInstruction) -> HloInstruction | None:
    """Return the scalar constant that `value` is, or is a broadcast of; None for other values."""
    scalar = scalar_of(value)
    return scalar if scalar is not None and scalar.opcode == "constant" else None


def splat_value(value: HloInstruction) -> Any:
    """Return the number that all elements of a constant or broadcast constant have; None if they differ or are not known."""
    if value.opcode == "broadcast":
        value = value.operands[0]
    if value.opcode != "constant" or not value.shape.is_array:
        return None
    literal = value.constant_array
    if literal.ndim == 0:
        return literal[()]
    first = literal.reshape(-1)[0] if literal.size else None
    return first if first is not None and bool((literal == first).all()) else None


# The number that `is_all` compares with, and an element type → the number in that type. Rules ask for few numbers.
_CONVERTED: dict[tuple[complex, object], Any] = {}


def is_all(value: HloInstruction, number: complex) -> bool:
    """Return True if every element is known to be `number`; both float zeros are equal to 0."""
    found = splat_value(value)
    if found is None:
        return False
    key = number, found.dtype
    wanted = _CONVERTED.get(key)
    if wanted is None:
        wanted = _CONVERTED[key] = np.asarray(number).astype(found.dtype)
    return bool(found == wanted)


def is_constant(value: HloInstruction) -> bool:
    """Return True for a constant or a broadcast of a constant."""
    return value.opcode == "constant" or (value.opcode == "broadcast" and value.operands[0].opcode == "constant")


def power_of_two(value: HloInstruction) -> int | None:
    """Return k if every element is known to be the integer 2^k, else None."""
    found = splat_value(value)
    if found is None or not value.shape.dtype.is_integer or int(found) <= 0 or int(found) & (int(found) - 1):
        return None
    return int(found).bit_length() - 1


def either(instruction: HloInstruction, opcode: Opcode) -> tuple[HloInstruction, HloInstruction] | None:
    """Return (the operand with that opcode, the other operand) of a commutative instruction; None if neither has it."""
    one, two = instruction.operands
    if one.opcode == opcode:
        return one, two
    return (two, one) if two.opcode == opcode else None


def is_float(value: HloInstruction) -> bool:
    """True if the elements are real floats."""
    return value.shape.dtype.is_float


def is_integer(value: HloInstruction) -> bool:
    """True if the elements are integers."""
    return value.shape.dtype.is_integer


def lowest_and_highest(element_type: str) -> tuple[int, int]:
    """Return the closed range (lowest, highest) of an integer type; pred has (0, 1)."""
    dtype = DTYPES[element_type]
    if not dtype.is_integer:
        return 0, 1
    return (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)
