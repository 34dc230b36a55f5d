"""Describes instructions for comparison: opcode, shape, attributes and constants as texts, without names."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator

from hlo_run.hlo.attributes.table import CALLED_ATTRIBUTES, attribute_kind
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import COMMUTATIVE
from hlo_run.hlo.printer import computation_order
from hlo_run.hlo.values.literal import Array, Literal, format_literal
from hlo_run.hlo.values.shape import Shape

# Where an instruction comes from. It may change without a change of the program.
_ORIGIN = frozenset(("metadata", "origin", "statistics", "parameter_number", "literal"))
_SHOWN_ELEMENTS = 10


class Keys:
    """Makes keys of instructions and computations of both modules. Equal keys mean equal descriptions."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._shapes: dict[Shape, str] = {}
        self._attributes: dict[HloInstruction, tuple[tuple[str, str], ...]] = {}
        self._local: dict[HloInstruction, int] = {}
        self._computations: dict[HloComputation, int] = {}

    def number(self, key: Hashable) -> int:
        """Return a number for `key`: two keys have the same number if they are equal."""
        return self._numbers.setdefault(key, len(self._numbers))

    def read(self, module: HloModule) -> None:
        """Make the keys of all computations of a module."""
        for computation in computation_order(module):  # callees first
            numbers = self.structure(computation, {p: self.number(("parameter", self.local(p))) for p in computation.parameters})
            ends = sorted(numbers[i] for i in computation.instructions if not i.users)
            self._computations[computation] = self.number(("computation", numbers[computation.root], tuple(ends)))

    def shape(self, instruction: HloInstruction) -> str:
        """Return the text of an instruction's shape, with layouts."""
        shape = instruction.shape
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = shape.to_string()
        return known

    def attributes(self, instruction: HloInstruction) -> tuple[tuple[str, str], ...]:
        """Return (name, text) of the attributes that count, in alphabetical order, and `literal` for a constant."""
        known = self._attributes.get(instruction)
        if known is None:
            known = self._attributes[instruction] = tuple(sorted(_attributes(instruction))) if instruction.attrs else ()
        return known

    def local(self, instruction: HloInstruction) -> int:
        """Return the key of an instruction without its operands. It covers the bodies that the instruction calls."""
        known = self._local.get(instruction)
        if known is None:
            # A body in a cycle of calls has no key yet. Such a module is invalid.
            called = sorted(instruction.called.items())
            bodies = tuple((name, *(self._computations.get(c, -1) for c in group)) for name, group in called)
            place = instruction.parameter_number if instruction.opcode == "parameter" else -1
            key = (instruction.opcode, self.shape(instruction), self.attributes(instruction), bodies, place)
            known = self._local[instruction] = self.number(key)
        return known

    def structure(self, computation: HloComputation, known: dict[HloInstruction, int]) -> dict[HloInstruction, int]:
        """Return a number per instruction that covers all its inputs. `known` has the numbers of parameters.

        The operands of a commutative instruction count in any order.
        """
        numbers = dict(known)
        for instruction in computation.post_order():
            if instruction not in numbers:
                operands = [numbers[operand] for operand in instruction.operands]
                if instruction.opcode in COMMUTATIVE:
                    operands.sort()
                numbers[instruction] = self.number((self.local(instruction), *operands))
        return numbers


def _attributes(instruction: HloInstruction) -> Iterator[tuple[str, str]]:
    for name, value in instruction.attrs.items():
        if name in _ORIGIN or name in CALLED_ATTRIBUTES:
            continue
        kind = attribute_kind(instruction.opcode, name)
        if not kind.is_hidden(value):
            yield name, kind.format(value)
    if instruction.opcode == "constant":
        yield "literal", literal_words(instruction.literal, instruction.shape)


def literal_words(literal: Literal, shape: Shape) -> str:
    """Return a short constant as text, a long one as a digest of its bytes."""
    if shape.is_array and shape.element_count <= _SHOWN_ELEMENTS:
        return format_literal(literal, shape, reads_back=True)
    digest = hashlib.sha256()
    for leaf in _leaves(literal):
        digest.update(leaf.tobytes())
    return f"{{sha256 {digest.hexdigest()[:12]}}}"


def _leaves(literal: Literal) -> Iterator[Array]:
    if isinstance(literal, tuple):
        for part in literal:
            yield from _leaves(part)
    else:
        yield literal
