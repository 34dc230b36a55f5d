"""Turns wants about the values of an evaluation into the ranges of the arguments that cause them."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.records import replace
from hlo_run.reference.arguments.observations import CENTRED, POSITIVE, SMALLER, Observation
from hlo_run.reference.arguments.value_flow import Position, came_from
from hlo_run.reference.values import as_array
from hlo_run.walks import walk

# The number of an entry parameter and the path to one of its leaves.
Leaf = tuple[int, tuple[int, ...]]
# Values that are followed back to the arguments.
_MOST_PLACES = 4000
# The first operand has the elements of the result, or elements whose sign and size are like the result's.
_LIKE_FIRST = MOVES_ELEMENTS | opcode_set("""abs broadcast bitcast convert copy slice dynamic-slice gather reverse
    reduce-precision reduce reduce-window select-and-scatter all-reduce all-gather reduce-scatter all-to-all
    collective-permute tanh cbrt sqrt log-plus-one real sort sine exponential-minus-one opt-barrier""")
# As many first operands as there are elements in the result.
_LIKE_ALL = opcode_set("add concatenate maximum minimum")
_PRODUCTS: frozenset[Opcode] = frozenset(("dot", "convolution", "ragged-dot"))
# A larger magnitude does not come through these.
_BOUNDED = opcode_set("logistic sine cosine sign compare erf iota rng-bit-generator")
# Ops behind which an infinity or a NaN is not used.
_GUARDS = opcode_set("select clamp maximum minimum compare is-finite")
_MOST_USERS = 40
# What is subtracted gets this part of its size, where differences should have both signs.
_SMALLER_FACTOR = 2.0**-3
_MOST_FACTORS = 16


class Recipe(Struct, frozen=True):
    """The way to draw the floats of one array, other than by default.

    `positive`: without negative numbers and zeros. `fan_in`: of both signs, such that sums of that many products are about as
    large as a factor; 0 for no such range. `scale`: times this. `rows`: positive, and they sum to one along this dimension; -1
    for no such dimension.
    """

    positive: bool = False
    fan_in: int = 0
    scale: float = 1.0
    rows: int = -1

    def floats(self, low: float, high: float) -> tuple[float, float]:
        """Return the range in the place of [low, high)."""
        if self.fan_in:
            high = min(max(abs(low), high), max(1.0, high) * math.sqrt(3.0 / self.fan_in))
            low = -high
        if self.positive or self.rows >= 0:
            high = max(high, abs(low))
            low = high / 16
        return low * self.scale, high * self.scale


class _Want(Struct, frozen=True):
    """A want about a value. `sign` is that which a positive one should have, `is_direct`: no product lies between."""

    position: Position
    kind: str
    factor: float = 1.0
    sign: int = 1
    is_direct: bool = True
    fan_in: int = 0

    @property
    def is_float(self) -> bool:
        """True if the value is an array of floats."""
        shape = self.position[0].shape
        for number in self.position[1]:
            shape = shape.tuple_shapes[number]
        return shape.is_array and shape.dtype.is_float


def improved(recipes: Mapping[Leaf, Recipe], observations: Iterable[Observation]) -> dict[Leaf, Recipe]:
    """Return the recipes with the wants of the observations added."""
    found = dict(recipes)
    for observation in observations:
        start = observation.instruction.operands[observation.operand], ()
        wants = list(_arguments(_Want(start, observation.want, observation.factor)))
        # Integers stay as they are where smaller floats do.
        if observation.want != POSITIVE and any(want.is_float for _, want in wants):
            wants = [(leaf, want) for leaf, want in wants if want.is_float]
        for leaf, want in wants:
            found[leaf] = _with(found.get(leaf, Recipe()), recipes.get(leaf, Recipe()), want)
    return {leaf: recipe for leaf, recipe in found.items() if recipe != Recipe()}


def is_relevant(observation: Observation) -> bool:
    """True if the program uses the values: they are not NaN or infinite behind a choice against them."""
    return not (observation.is_bad and _is_guarded(observation.instruction))


def _is_guarded(instruction: HloInstruction) -> bool:
    """True if every use of a value is behind a choice that the program may make against it."""
    for count, value in enumerate(walk([instruction], lambda value: [u for u in value.users if u.opcode not in _GUARDS])):
        if value.is_root or not value.users or count >= _MOST_USERS:
            return False
        if value is not instruction and (value.shape.is_tuple or value.called_computations):
            return False
    return True


def _with(recipe: Recipe, before: Recipe, want: _Want) -> Recipe:
    """Return a recipe that meets a want too; `before` is the recipe of the observed evaluation."""
    if recipe.rows >= 0:
        return recipe
    if want.kind == POSITIVE:
        if want.sign < 0:
            return recipe
        return replace(recipe, positive=True)
    if want.kind == CENTRED:
        return replace(recipe, fan_in=max(recipe.fan_in, want.fan_in, 1))
    if want.fan_in and not before.fan_in:
        return replace(recipe, fan_in=max(recipe.fan_in, want.fan_in))
    if want.is_direct or before.fan_in:
        return replace(recipe, scale=min(recipe.scale, before.scale * max(want.factor, 2.0**-10)))
    return recipe


def _arguments(start: _Want) -> Iterator[tuple[Leaf, _Want]]:
    """Yield the leaves of entry parameters that a want leads to, each with the want about it."""
    waiting, seen = deque([start]), {(start.position, start.sign)}
    while waiting and len(seen) < _MOST_PLACES:
        want = waiting.popleft()
        instruction, path = want.position
        if instruction.opcode == "parameter" and instruction.parent is not None and instruction.parent.is_entry:
            yield (instruction.parameter_number, path), want
            continue
        for found in _before(want):
            if (found.position, found.sign) not in seen:
                seen.add((found.position, found.sign))
                waiting.append(found)


def _before(want: _Want) -> Iterator[_Want]:
    """Yield the wants about the values that a value is made of."""
    instruction, path = want.position
    forwarded = list(came_from(instruction, path))
    if forwarded:
        yield from (replace(want, position=position) for position in forwarded)
        return
    if not instruction.operands or path:
        return
    operands = instruction.operands
    rest = replace(want, fan_in=0)
    match instruction.opcode:
        case "negate":
            yield replace(want, position=(operands[0], ()), sign=-want.sign)
        case "abs" | "exponential" if want.kind == POSITIVE:
            return
        case "power" if want.kind == POSITIVE and _is_even(instruction):
            return
        case "power":
            yield replace(rest, position=(operands[0], ()))
        case "subtract" if want.kind == POSITIVE:
            yield replace(want, position=(operands[0], ()))
            yield replace(want, position=(operands[1], ()), sign=-want.sign)
        case "subtract" if want.kind == CENTRED:
            # Of both signs: the first is larger now and then.
            yield replace(want, position=(operands[0], ()), kind=POSITIVE)
            yield replace(want, position=(operands[1], ()), kind=SMALLER, factor=_SMALLER_FACTOR)
        case "subtract":
            yield from (replace(want, position=(operand, ())) for operand in operands)
        case "multiply" | "divide" if want.kind == POSITIVE:
            factors = [factor for factor, count in Counter(_factors_of(instruction)).items() if count % 2]
            constants = [constant for factor in factors if (constant := _constant(factor)) is not None]
            sign = want.sign * (-1 if sum(constant < 0 for constant in constants) % 2 else 1)
            yield from (replace(rest, position=(factor, ()), sign=sign) for factor in factors)
        case "multiply" | "divide":
            factors = operands[:1] if instruction.opcode == "divide" else operands
            yield from (replace(rest, position=(operand, ())) for operand in factors)
        case "select" | "scatter" | "dynamic-update-slice" | "clamp":
            numbers = {"select": (1, 2), "clamp": (1,), "scatter": (0, len(operands) - 1)}.get(instruction.opcode, (0, 1))
            yield from (replace(want, position=(operands[number], ())) for number in numbers)
        case opcode if opcode in _PRODUCTS:
            yield from _factors(want, instruction)
        case opcode if opcode in _LIKE_ALL:
            yield from (replace(want, position=(operand, ())) for operand in operands)
        case opcode if opcode in _BOUNDED and want.kind != POSITIVE:
            return
        case "tanh" if want.kind != POSITIVE:
            return
        case opcode if opcode in _LIKE_FIRST:
            yield replace(want, position=(operands[0], ()))
        case _:
            return


def _factors(want: _Want, product: HloInstruction) -> Iterator[_Want]:
    """Yield the wants about the factors of a sum of products."""
    left, right = product.operands[:2]
    if want.kind == POSITIVE:
        yield from (replace(want, position=(factor, ()), fan_in=0) for factor in (left, right))
        return
    terms = max(1, fan_in(product))
    # Weights are the second factor.
    yield replace(want, position=(left, ()), is_direct=False, fan_in=0)
    yield replace(want, position=(right, ()), is_direct=False, fan_in=terms)


def fan_in(product: HloInstruction) -> int:
    """Return how many products a dot or convolution adds for one element."""
    if product.opcode == "convolution":
        kernel = product.operands[1].shape
        return kernel.element_count // max(1, kernel.dims[product.dim_labels.kernel.second_dim])
    left = product.operands[0].shape.dims
    return math.prod(left[dim] for dim in product.lhs_contracting_dims)


def _factors_of(product: HloInstruction) -> Iterator[HloInstruction]:
    """Yield the factors of a product or quotient of products, each as often as it occurs: a divisor has its reciprocal's sign."""
    waiting = list(product.operands)
    count = 0
    while waiting:
        factor = waiting.pop()
        count += 1
        if factor.opcode in ("multiply", "divide") and count <= _MOST_FACTORS:
            waiting += factor.operands
        else:
            yield factor


def _is_even(power: HloInstruction) -> bool:
    """True if a power is never negative, whatever the base."""
    exponent = _constant(power.operands[1])
    return exponent is not None and exponent % 2 == 0


def _constant(instruction: HloInstruction) -> float | None:
    """Return the number that an array has everywhere, if a constant says so."""
    while instruction.opcode in ("broadcast", "convert", "reshape"):
        instruction = instruction.operands[0]
    if instruction.opcode != "constant" or instruction.shape.rank or not instruction.shape.is_array:
        return None
    return float(as_array(instruction.literal))
