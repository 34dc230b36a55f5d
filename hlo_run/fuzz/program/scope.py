"""A computation under construction, and the module around it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from hlo_run.fuzz.program.values import TYPES, Dims, Range, Value, array_text, rounded
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.braces import braces
from hlo_run.records import replace

# Inexact values with a larger relative error are not used by later steps.
_MOST_ERROR = 1 / 32
_ROOM = 16.0
_NARROW_ROOM = 4.0


class Program(Struct):
    """A module under construction.

    `sizes` are its preferred dimension sizes, `families` the weights of its step families by name. `feed_owner` is the only
    computation that may use infeed and outfeed, since these are not ordered between computations.
    """

    rng: random.Random
    sizes: tuple[int, ...]
    families: dict[str, float]
    types: dict[str, float]
    most_elements: int = 4096
    recency: float = 0.6
    layout_chance: float = 0.0
    computations: list[str] = field(default_factory=list[str])
    scalars: dict[str, str] = field(default_factory=dict[str, str])
    feed_owner: Scope | None = None
    counter: int = 0
    take_step: Callable[[Scope], None] = lambda scope: None

    def fill(self, scope: Scope, least: int, most: int) -> None:
        """Take between `least` and `most` random steps in a computation."""
        for _ in range(self.rng.randint(least, most)):
            self.take_step(scope)

    def name(self, word: str = "v") -> str:
        """Return a new name, `word` and a number."""
        self.counter += 1
        return f"{word}{self.counter}"

    def scalar_computation(self, opcode: Opcode, element_type: str) -> str:
        """Return the name of a computation of two scalars, added at its first use."""
        name = f"{opcode}_{element_type}"
        if name not in self.scalars:
            k = element_type
            self.scalars[name] = name
            self.computations.append(
                f"{name} {{\n  a = {k}[] parameter(0)\n  b = {k}[] parameter(1)\n  ROOT r = {k}[] {opcode}(a, b)\n}}\n"
            )
        return name

    def computation(self, name: str, *lines: str) -> str:
        """Add a computation with these lines, unless the name exists, and return its name."""
        if name not in self.scalars:
            self.scalars[name] = name
            self.computations.append("".join([f"{name} {{\n", *(f"  {line}\n" for line in lines), "}\n"]))
        return name


class Scope(Struct, eq=False):
    """A computation: its lines, and the values for later steps. With `inside_fusion`, steps only add ops that may be fused."""

    program: Program
    depth: int = 0
    inside_fusion: bool = False
    may_have_effects: bool = True
    lines: list[str] = field(default_factory=list[str])
    values: list[Value] = field(default_factory=list[Value])
    token: Value | None = None

    @property
    def rng(self) -> random.Random:
        """The module's random generator."""
        return self.program.rng

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return self.rng.random() < share

    # Lines.

    def line(self, value: Value, text: str) -> Value:
        """Add the instruction that computes `value`; `text` is its opcode, operands and attributes. Later steps do not use it."""
        self.lines.append(f"{value.name} = {value.shape} {text}")
        return value

    def add(self, element_type: str, dims: Dims, text: str, range_: Range, keep: bool = True) -> Value:
        """Add an instruction with an array result; `range_` is its range before rounding to the element type."""
        known = rounded(range_, element_type)
        value = Value(self.program.name(), element_type, dims, known, layout=self.some_layout(dims, self.program.layout_chance))
        self.line(value, text)
        return self.keep(value) if keep else value

    def some_layout(self, dims: Dims, chance: float) -> str:
        """Return a random layout for an array of the entry, or an empty string for the default layout."""
        if len(dims) < 2 or self.depth or not chance or not self.chance(chance):
            return ""
        order = list(range(len(dims)))
        self.rng.shuffle(order)
        return braces(order)

    def add_tuple(self, parts: Sequence[Value], text: str = "", word: str = "t") -> Value:
        """Add an instruction with a tuple result; without `text`, a tuple of `parts`."""
        value = Value(self.program.name(word), "tuple", parts=tuple(without_layouts(part) for part in parts))
        return self.line(value, text or f"tuple({', '.join(p.name for p in parts)})")

    def part(self, value: Value, index: int, keep: bool = True) -> Value:
        """Add a get-tuple-element."""
        part = replace(value.parts[index], name=self.program.name("g"))
        self.line(part, f"get-tuple-element({value.name}), index={index}")
        return self.keep(part) if keep else part

    def take_apart(self, value: Value, keep: bool = True) -> list[Value]:
        """Return the arrays of a tuple, nested tuples included, by get-tuple-elements."""
        if not value.is_tuple:
            return [self.keep(value)] if keep and value.type != "token" else [value]
        found: list[Value] = []
        for index in range(len(value.parts)):
            found += self.take_apart(self.part(value, index, keep=False), keep)
        return found

    # Computations inside this one.

    def inner(self, inside_fusion: bool = False, may_have_effects: bool = True) -> Scope:
        """Return an empty computation one level deeper, for an instruction of this one to call."""
        effects = may_have_effects and self.may_have_effects and not inside_fusion
        return Scope(self.program, self.depth + 1, inside_fusion or self.inside_fusion, effects)

    def parameter(self, number: int, like: Value) -> Value:
        """Add a parameter with the shape and range of a value; later steps may use its arrays."""
        value = replace(without_layouts(like), name=self.program.name("p"))
        self.line(value, f"parameter({number})")
        self.take_apart(value)
        return value

    def renumber_parameters(self, root: Value) -> list[int]:
        """Remove lines that a fusion's root does not need, renumber the parameters, and return the kept ones' old numbers."""
        place = next(n for n, line in enumerate(self.lines) if line.startswith(f"{root.name} = "))
        marked = [*self.lines[:place], f"ROOT {self.lines[place]}", *self.lines[place + 1 :]]
        kept = [line.removeprefix("ROOT ") for line in _alive(marked)]
        used: list[int] = []
        for n, line in enumerate(kept):
            if found := _PARAMETER.search(line):
                kept[n] = line.replace(found[0], f" parameter({len(used)})")
                used.append(int(found[1]))
        self.lines = kept
        return used

    def close(self, root: Value, word: str) -> str:
        """End the computation with `root`, the value of one of its lines, and return its name."""
        place = next(n for n, line in enumerate(self.lines) if line.startswith(f"{root.name} = "))
        lines = [*self.lines[:place], f"ROOT {self.lines[place]}", *self.lines[place + 1 :]]
        name = self.program.name(word)
        self.program.computations.append("".join([f"{name} {{\n", *(f"  {line}\n" for line in lines), "}\n"]))
        return name

    # What later steps may use.

    def keep(self, value: Value) -> Value:
        """Record an array for later steps, after limiting its magnitude; return the recorded value."""
        if value.type == "token" or value.is_tuple:
            return value
        t = value.element
        if t.is_float or t.kind == "complex":
            if value.exact:
                value = self._calm_exact(value)
            elif (t.is_wide_float or t.kind == "complex") and value.range.error <= _MOST_ERROR * max(1.0, value.range.bound):
                value = self._calm_inexact(value)
            else:
                return value
            if not value.exact and value.range.error > _MOST_ERROR:
                return value
        self.values.append(value)
        return value

    def _calm_exact(self, value: Value) -> Value:
        room = _ROOM if value.element.bits >= 16 else _NARROW_ROOM
        if value.range.bound <= room:
            return value
        if value.element.is_float and self.chance(0.7):
            return self.clamp(value, 4.0)
        return self.scaled(value, -math.ceil(math.log2(value.range.bound / 4)))

    def _calm_inexact(self, value: Value) -> Value:
        if value.range.bound <= 4:
            return value
        if value.element.is_float and self.chance(0.5):
            error = value.range.error
            return self.add(value.type, value.dims, f"tanh({value.name})", Range(1, 0, error), keep=False)
        return self.scaled(value, -math.ceil(math.log2(value.range.bound)))

    def clamp(self, value: Value, bound: float) -> Value:
        """Limit a value to [-bound, bound]; later steps do not use the result."""
        low, high = self.number(value.type, -bound), self.number(value.type, bound)
        known = replace(value.range, bound=min(bound, value.range.bound))
        return self.add(value.type, value.dims, f"clamp({low.name}, {value.name}, {high.name})", known, keep=False)

    def scaled(self, value: Value, power: int) -> Value:
        """Multiply by 2**power."""
        factor = self.filled(value.type, value.dims, 2.0**power)
        known = Range(value.range.bound * 2.0**power, max(value.range.grain - power, 0), value.range.error * 2.0**power)
        return self.add(value.type, value.dims, f"multiply({value.name}, {factor.name})", known, keep=False)

    # Constants.

    def number(self, element_type: str, number: float) -> Value:
        """Add a scalar constant."""
        return self.line(
            Value(self.program.name("num"), element_type, (), number_range(number)),
            f"constant({number_text(element_type, number)})",
        )

    def filled(self, element_type: str, dims: Dims, number: float) -> Value:
        """Return an array with all elements equal to a constant."""
        scalar = self.number(element_type, number)
        if not dims:
            return scalar
        return self.add(element_type, dims, f"broadcast({scalar.name}), dimensions={{}}", scalar.range, keep=False)

    def filled_exactly(self, element_type: str, dims: Dims, number: int) -> Value:
        """Return an integer array with all elements equal to a number of up to 64 bits, wrapped into the type's range."""
        t = TYPES[element_type]
        number %= 1 << t.bits
        number -= (number >> (t.bits - 1) << t.bits) if t.kind == "signed" else 0
        scalar = self.line(Value(self.program.name("num"), element_type, (), Range(t.highest)), f"constant({number})")
        if not dims:
            return scalar
        return self.add(element_type, dims, f"broadcast({scalar.name}), dimensions={{}}", Range(t.highest), keep=False)

    # Choices.

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """Return a random value that fits, with a preference for recent ones; None if no value fits."""
        found = [v for v in self.values if fits(v)]
        if not found:
            return None
        return self.rng.choice(found[-5:] if self.chance(self.program.recency) else found)

    def some_type(self, fits: Callable[[str], bool] = lambda name: True) -> str:
        """Return an element type that fits, drawn by the module's weights, or by the default weights if none of them fits."""
        found = {name: weight for name, weight in self.program.types.items() if fits(name)}
        found = found or {name: t.weight for name, t in TYPES.items() if fits(name)}
        return self.rng.choices(list(found), list(found.values()))[0]

    def size(self, least: int = 0) -> int:
        """Return a random dimension size of at least `least`."""
        return self.rng.choice([s for s in self.program.sizes if s >= least] or [max(least, 1)])

    def some_dims(self, least_rank: int = 0, most_rank: int = 4) -> Dims:
        """Return random dimension sizes; the rank is in [least_rank, most_rank]."""
        rank = self.rng.choice([r for r in (0, 1, 1, 2, 2, 2, 3, 3, 4, 5) if least_rank <= r <= most_rank])
        return self.cut([self.size() for _ in range(rank)])

    def cut(self, dims: Sequence[int]) -> Dims:
        """Halve the largest dimensions until the array has at most the module's maximum number of elements."""
        cut = list(dims)
        while math.prod(cut) > self.program.most_elements:
            place = max(range(len(cut)), key=lambda d: cut[d])
            cut[place] = (cut[place] + 1) // 2
        return tuple(cut)

    def fits_in(self, dims: Sequence[int]) -> bool:
        """True if no size is negative and the array has at most the module's maximum number of elements."""
        return math.prod(dims) <= self.program.most_elements and all(size >= 0 for size in dims)


def _alive(lines: list[str]) -> list[str]:
    """Return the lines that the root depends on: a fusion must not have dead instructions."""
    needed: set[str] = set()
    kept: list[str] = []
    for line in reversed(lines):
        name, text = line.removeprefix("ROOT ").split(" = ", 1)
        if line.startswith("ROOT ") or name in needed:
            needed.update(_NAME.findall(text))
            kept.append(line)
    return kept[::-1]


_NAME = re.compile(r"[a-z]+\d+")
_PARAMETER = re.compile(r" parameter\((\d+)\)")


def without_layouts(value: Value) -> Value:
    """Return the value and its parts with default layouts."""
    return replace(value, layout="", parts=tuple(without_layouts(part) for part in value.parts))


def number_range(number: float) -> Range:
    """Return the range of one number, which must be dyadic (a multiple of a power of 1/2)."""
    grain = 0
    while grain < 64 and (number * 2.0**grain) % 1:
        grain += 1
    return Range(abs(number), grain)


def number_text(element_type: str, number: float) -> str:
    """Return a number as the text of an HLO literal of the type."""
    t = TYPES[element_type]
    if t.kind == "pred":
        return "true" if number else "false"
    if t.is_integer:
        return str(int(number))
    text = repr(float(number))
    return f"({text}, 0)" if t.kind == "complex" else text


def shape(element_type: str, dims: Dims) -> str:
    """Return an array's shape as text, without layout."""
    return array_text(element_type, dims)
