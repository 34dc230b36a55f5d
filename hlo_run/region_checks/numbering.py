"""Numbers values of two modules: values with the same number are equal, whatever the arguments are.

    n = f32[8] negate(p)                f = f32[8] fusion(p), calls={negate}
    a = f32[8] add(n, p)        and     a = f32[8] add(p, f)                    have two numbers besides that of p

Names, metadata, layouts and the order of commutative operands do not count. Fusions and calls have the number of what they
compute; copies, and elements of tuples, that of what they forward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence

from hlo_run.hlo.attributes.table import CALLED_ATTRIBUTES, attribute_kind
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COMMUTATIVE
from hlo_run.hlo.values.literal import Array, Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.plan import callees_first
from hlo_run.region_checks.effects import is_own_kind

# They do not change the value of an instruction. The configuration of a custom call does.
_WITHOUT_MEANING = frozenset(
    """metadata origin original_value statistics sharding frontend_attributes parameter_number literal backend_config
    is_stable_layout""".split()
)
_FORWARDS: frozenset[Opcode] = frozenset(("copy", "opt-barrier", "add-dependency"))
# Layouts are a part of what they compute.
_ON_LAYOUTS: frozenset[Opcode] = frozenset(("bitcast", "bitcast-convert", "custom-call"))
_INLINED: frozenset[Opcode] = frozenset(("fusion", "call"))

Numbers = dict[HloInstruction, int]


class Table:
    """Gives equal keys equal numbers; for all modules that are compared."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._parts: dict[int, tuple[int, ...]] = {}
        # The digest of a literal, by the array's identity. Copies of modules share literals.
        self._literals: dict[int, tuple[Literal, str]] = {}
        # The texts of attributes, by the identities of their values, which copies share as well; the values are kept.
        self._attributes: dict[Hashable, tuple[tuple[object, ...], Hashable]] = {}

    def number(self, key: Hashable) -> int:
        """Return the number of a key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def tuple_of(self, parts: Sequence[int]) -> int:
        """Return the number of a tuple of values."""
        made = self.number(("tuple", *parts))
        self._parts[made] = tuple(parts)
        return made

    def element(self, whole: int, index: int) -> int:
        """Return the number of an element of a tuple."""
        parts = self._parts.get(whole)
        return self.number(("element", index, whole)) if parts is None else parts[index]

    def parts(self, whole: int) -> tuple[int, ...] | None:
        """Return the numbers of a tuple's elements, if they are known."""
        return self._parts.get(whole)

    def parameter(self, index: int, shape: Shape) -> int:
        """Return the number of a parameter of any computation."""
        return self.number(("parameter", index, shape_key(shape)))

    def literal(self, literal: Literal) -> str:
        """Return a digest of a constant."""
        known = self._literals.get(id(literal))
        if known is None:
            digest = hashlib.sha256()
            for leaf in _leaves(literal):
                digest.update(f"{leaf.dtype}{leaf.shape}".encode())
                digest.update(leaf.tobytes())
            known = self._literals[id(literal)] = (literal, digest.hexdigest())
        return known[1]

    def attributes(self, instruction: HloInstruction) -> Hashable:
        """Return a key of the attributes that have a meaning."""
        if not instruction.attrs:
            return ()
        values = tuple(instruction.attrs.values())
        key = (instruction.opcode, *zip(instruction.attrs.keys(), map(id, values), strict=True))
        known = self._attributes.get(key)
        if known is None:
            known = self._attributes[key] = (values, tuple(self._texts(instruction)))
        return known[1]

    def _texts(self, instruction: HloInstruction) -> Iterator[tuple[str, str]]:
        for name, value in sorted(instruction.attrs.items()):
            if name in CALLED_ATTRIBUTES:
                continue
            if name in _WITHOUT_MEANING and not (name == "backend_config" and instruction.opcode == "custom-call"):
                continue
            kind = attribute_kind(instruction.opcode, name)
            if not kind.is_hidden(value):
                yield name, kind.format(value)
        if instruction.opcode == "constant":
            yield "literal", self.literal(instruction.literal)


class Numbering:
    """The numbers of the values of one module.

    `origins` maps instructions to objects that are equal if an instruction is the same before and after a row: what an
    instruction with an effect or with random numbers returns has a number of its own. `aliases` maps computations to those
    of another numbering that compute the same.
    """

    def __init__(self, table: Table, module: HloModule, origins: Mapping[HloInstruction, object]) -> None:
        self.table, self.module = table, module
        self._origins = origins
        self.aliases: dict[HloComputation, tuple[Numbering, HloComputation]] = {}
        self._local: dict[HloInstruction, Hashable] = {}
        self._computations: dict[HloComputation, int] = {}
        self._own: dict[HloComputation, Numbers] = {}
        self._applied: dict[tuple[HloComputation, tuple[int, ...]], int] = {}
        # The body of an inlined computation may call others.
        self.order = callees_first(module.computations)

    def values(self, computation: HloComputation) -> Numbers:
        """Return the number of each value of a computation, on separate parameters."""
        known = self._own.get(computation)
        if known is None:
            known = self._own[computation] = self.numbers(computation, self._parameters(computation))
        return known

    def numbers(
        self, computation: HloComputation, parameters: Sequence[int], assumed: Mapping[HloInstruction, int] | None = None
    ) -> Numbers:
        """Return the number of each value of a computation on parameters of these numbers; `assumed` are given."""
        found: Numbers = {}
        for instruction in computation.post_order():
            if assumed and instruction in assumed:
                found[instruction] = assumed[instruction]
            elif instruction.opcode == "parameter":
                found[instruction] = parameters[instruction.parameter_number]
            else:
                found[instruction] = self.value(instruction, [found[operand] for operand in instruction.operands])
        return found

    def computation(self, computation: HloComputation) -> int:
        """Return the number of a computation: equal numbers mean equal results and effects."""
        alias = self.aliases.get(computation)
        if alias is not None:
            return alias[0].computation(alias[1])
        known = self._computations.get(computation)
        if known is None:
            values = self.values(computation)
            kept = sorted(values[i] for i in computation.instructions if not i.users and is_own_kind(i))
            parameters = self._parameters(computation)
            known = self.table.number(("computation", *parameters, values[computation.root], *kept))
            self._computations[computation] = known
        return known

    def forget(self, computation: HloComputation) -> None:
        """Drop all knowledge about the callers of a computation, which has an alias from now on."""
        waiting = [computation]
        while waiting:
            changed = waiting.pop()
            self._computations.pop(changed, None)
            for key in [key for key in self._applied if key[0] is changed]:
                del self._applied[key]
            for caller in changed.callers:
                self._local.pop(caller, None)
                if caller.parent is not None and self._own.pop(caller.parent, None) is not None:
                    waiting.append(caller.parent)

    def local(self, instruction: HloInstruction) -> Hashable:
        """Return the key of an instruction without its operands. It covers the computations that it calls."""
        known = self._local.get(instruction)
        if known is None:
            called = tuple((name, *map(self.computation, group)) for name, group in sorted(instruction.called.items()))
            with_layouts = instruction.opcode in _ON_LAYOUTS
            shapes = tuple(str(operand.shape) for operand in instruction.operands) if with_layouts else ()
            shape = str(instruction.shape) if with_layouts else shape_key(instruction.shape)
            own = self._origins.get(instruction, instruction) if is_own_kind(instruction) else None
            known = (instruction.opcode, shape, shapes, self.table.attributes(instruction), called, own)
            known = self._local[instruction] = self.table.number(known)
        return known

    def value(self, instruction: HloInstruction, operands: list[int]) -> int:
        """Return the number of an instruction, no parameter, on operands of these numbers."""
        opcode = instruction.opcode
        if opcode in _FORWARDS:
            return operands[0]
        if opcode == "tuple":
            return self.table.tuple_of(operands)
        if opcode == "get-tuple-element":
            return self.table.element(operands[0], instruction.tuple_index)
        if opcode in _INLINED:
            return self._apply(instruction.called_computations[0], tuple(operands))
        if opcode in ("reshape", "convert", "bitcast") and _keeps(instruction):
            return operands[0]
        if opcode == "while":
            return self._loop(instruction, operands[0])
        if opcode in COMMUTATIVE:
            operands.sort()
        return self.table.number((self.local(instruction), *operands))

    def _loop(self, loop: HloInstruction, init: int) -> int:
        """Return the number of a loop's result. Elements that no iteration changes keep the numbers of the initial state."""
        whole, parts, root = self.table.number((self.local(loop), init)), self.table.parts(init), loop.while_body.root
        if parts is None or root.opcode != "tuple":
            return whole
        own = self.values(loop.while_body)
        kept: list[int] = []
        for index, (part, value) in enumerate(zip(parts, root.operands, strict=True)):
            passes_on = (
                value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter" and value.tuple_index == index
            )
            is_same = own[value] == part and _is_constant(value)
            kept.append(part if passes_on or is_same else self.table.element(whole, index))
        return self.table.tuple_of(kept)

    def _apply(self, computation: HloComputation, operands: tuple[int, ...]) -> int:
        alias = self.aliases.get(computation)
        if alias is not None:
            return alias[0]._apply(alias[1], operands)
        key = (computation, operands)
        known = self._applied.get(key)
        if known is None:
            known = self._applied[key] = self.numbers(computation, operands)[computation.root]
        return known

    def _parameters(self, computation: HloComputation) -> list[int]:
        return [self.table.parameter(number, p.shape) for number, p in enumerate(computation.parameters)]


def shape_key(shape: Shape) -> Hashable:
    """Return a key of a shape without its layout."""
    if shape.is_tuple:
        return tuple(shape_key(element) for element in shape.tuple_shapes)
    return shape.element_type, shape.dims, shape.dynamic_dims if any(shape.dynamic_dims) else ()


def _keeps(instruction: HloInstruction) -> bool:
    """True for a conversion to the shape that the operand has."""
    one, two = instruction.operands[0].shape, instruction.shape
    if shape_key(one) != shape_key(two):
        return False
    return instruction.opcode != "bitcast" or one.minor_to_major == two.minor_to_major


def _is_constant(instruction: HloInstruction) -> bool:
    """True for a constant, and for one that is broadcast."""
    return instruction.opcode == "constant" or (
        instruction.opcode == "broadcast" and instruction.operands[0].opcode == "constant"
    )


def _leaves(literal: Literal) -> list[Array]:
    if isinstance(literal, tuple):
        return [leaf for part in literal for leaf in _leaves(part)]
    return [literal]
