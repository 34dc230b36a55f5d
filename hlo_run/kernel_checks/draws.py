"""Chooses how the operands of a kernel alone are drawn: once, or by turns where a few numbers decide what it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.records import replace
from hlo_run.reference.arguments.fake_arguments import Draw, Peaks
from hlo_run.reference.evaluate.perturbed import term_count
from hlo_run.reference.values import widen


class OwnDraw(Struct, frozen=True):
    """A distribution, and whether the kernel keeps the integers of the run. `is_enough`: one that shows something is enough."""

    draw: Draw
    keeps_integers: bool = False
    is_enough: bool = True


# The second and third are for a kernel that shows nothing: integers may be out of every range, and logarithms of negative
# numbers are NaN.
_DRAWS = (
    OwnDraw(Draw(floats=(-2.0, 3.0), integers=(-4, 8), unusual=True)),
    OwnDraw(Draw(floats=(-1.0, 2.0), integers=(-4, 8), unusual=True), keeps_integers=True),
    OwnDraw(Draw(floats=(0.5, 2.0), integers=(0, 3), unusual=True)),
)
# A maximum that keeps exponentials from overflowing cancels in the result, unless they would overflow without it.
_OVERFLOWING = OwnDraw(Draw(floats=(-300.0, 300.0), integers=(-4, 8)), is_enough=False)
# Exponentials of numbers of all sizes are near overflow now and then.
_LARGE = OwnDraw(Draw(floats=(-100.0, 100.0), integers=(-4, 8), unusual=True), is_enough=False)
# Where rows are few and short, each of their numbers is the largest or smallest one in one of at most so many draws.
_MOST_PEAKS = 8
_MANY_ROWS = 4
_MOST_PLACES = 4
_EXTREMES: dict[Opcode, int] = {"maximum": 1, "minimum": -1}
# Kernels in which so few numbers decide are judged on so many draws: one may be all on one side.
_FEW = 4
_TURNS = ((64, 4), (256, 2))
# The same for kernels that compute functions piece by piece, each for a range of numbers: few numbers meet all pieces late.
_TURNS_OF_PIECES = ((16, 12), (64, 8), (256, 3))
# The same where one index decides: out of bounds at both ends, from the end, first, last, another.
_INDEX_TURNS = 6
_CHEAP_ELEMENTS = 1 << 18
# Kernels that cost more, up to this, are judged on fewer draws; still dearer ones on one.
_MIDDLE_ELEMENTS, _MIDDLE_TURNS = 1 << 20, 4
# Numbers below this constant matter where it is added, or compared with. They are smaller by so many powers of two.
_LITTLE, _MUCH_SMALLER = 2.0**-10, 36
_ADDS: frozenset[Opcode] = frozenset(("add", "subtract", "maximum", "compare"))
_AT_AN_INDEX: frozenset[Opcode] = opcode_set("gather scatter dynamic-slice dynamic-update-slice")
_EXPONENTIALS: frozenset[Opcode] = frozenset(("exponential", "exponential-minus-one", "logistic"))
_IN_PIECES: frozenset[Opcode] = opcode_set(
    "log log-plus-one exponential-minus-one sine cosine tan tanh atan2 power cbrt erf acos acosh asin asinh atanh cosh sinh"
)
_CALLS: frozenset[Opcode] = frozenset(("fusion", "call", "while", "conditional"))
_INTEGERS = frozenset(name for name, dtype in DTYPES.items() if dtype.is_integer)
_MOVES: frozenset[Opcode] = frozenset(("broadcast", "bitcast", "reshape", "copy"))


def own_draws(module: HloModule, cost_elements: int) -> Sequence[OwnDraw]:
    """Return how the operands of an isolated kernel are drawn, in order, until one that is enough shows something.

    A kernel of some cost is judged on one draw that shows something.
    """
    usual = _DRAWS[0].draw
    draws = [_OVERFLOWING] if _subtracts_maximum(module) else []
    smaller = _MUCH_SMALLER if _adds_little(module) else usual.smaller
    if cost_elements > _MIDDLE_ELEMENTS:
        return (*draws, OwnDraw(replace(usual, smaller=smaller)), *_DRAWS[1:])
    if any(i.opcode in _EXPONENTIALS for i in module.instructions):
        draws.append(_LARGE)
    kinds = {p.shape.element_type for p in module.entry.parameters if p.shape.is_array and not p.shape.rank}
    # An index that is alone meets both values of a condition.
    pairs = "pred" in kinds and len(kinds & _INTEGERS) > 0
    fewest = _fewest_deciding(module)
    pieces = [i.shape.element_count for c in module.computations for i in _varying(c) if i.opcode in _IN_PIECES]
    fewest = min([fewest, *pieces])
    turns = next((turns for most, turns in (_TURNS_OF_PIECES if pieces else _TURNS) if fewest <= most), 1)
    turns = max(turns, 1 if smaller == usual.smaller else 2)
    if any(i.opcode in ("gather", "scatter") and i.indices_are_sorted for i in module.instructions):
        turns = max(turns, 3)  # those out of bounds are the last ones, where the last block may do nothing
    if fewest <= _FEW and kinds & _INTEGERS:
        turns = max(turns, _INDEX_TURNS * (1 + pairs) + 1)
    if cost_elements > _CHEAP_ELEMENTS:
        turns = min(turns, _MIDDLE_TURNS)
    for turn in range(1, turns):
        # Large numbers at the ends hide others now and then.
        ends = turn % 2 == 0
        own = replace(usual, turn=turn, pairs=pairs, larger_ends=ends, smaller=smaller if turn == 1 else usual.smaller)
        draws.append(OwnDraw(own, is_enough=False))
    if cost_elements <= _CHEAP_ELEMENTS:
        draws += [OwnDraw(replace(usual, turn=turn, peaks=peaks), is_enough=False) for peaks, turn in _peaks(module)]
    return (*draws, *_DRAWS)


def _subtracts_maximum(module: HloModule) -> bool:
    """True if a module finds the maxima of rows, and exponentials."""
    opcodes = {(i.opcode, i.to_apply.root.opcode if i.opcode == "reduce" else "") for i in module.instructions}
    return {("reduce", "maximum"), ("exponential", "")} <= opcodes


def _peaks(module: HloModule) -> list[tuple[Peaks, int]]:
    """Return the peaks of the draws on which a kernel is judged that finds the extremes of rows, with their turns."""
    counts: dict[Peaks, int] = {}
    has_abs = any(i.opcode == "abs" for i in module.instructions)
    for instruction in module.instructions:
        if instruction.opcode != "reduce" or len(instruction.dimensions) != 1:
            continue
        terms, rows = term_count(instruction), max(leaf.element_count for _, leaf in instruction.shape.leaves())
        signs = _signs(instruction.to_apply)
        if rows >= _MANY_ROWS * terms:
            continue
        dims = instruction.operands[0].shape.dims
        for sign in {-1, 1} if signs and has_abs else signs:
            peaks = Peaks(sign, dims, instruction.dimensions[0])
            counts[peaks] = min(_MOST_PEAKS, -(-terms // rows))
    return [(peaks, turn) for peaks in list(counts)[:_MOST_PLACES] for turn in range(1, counts[peaks] + 1)]


def _signs(reducer: HloComputation) -> set[int]:
    """Return the signs of the numbers that a reducer chooses: 1 if it finds maxima, -1 for minima."""
    found = {_EXTREMES[i.opcode] for i in reducer.instructions if i.opcode in _EXTREMES}
    # Reducers of several arrays choose by a comparison.
    directions = {
        i.comparison_direction for i in reducer.instructions if i.opcode == "compare" and i.operands[0].shape.dtype.is_float
    }
    return found | {1 for d in directions if d in ("GT", "GE")} | {-1 for d in directions if d in ("LT", "LE")}


def _fewest_deciding(module: HloModule) -> int:
    """Return how many truth values or indices an instruction has that has the fewest; many if none has any."""
    # A comparator or a reducer decides for each element.
    whole = [c for c in module.computations if c is module.entry or any(caller.opcode in _CALLS for caller in c.callers)]
    counts = [_deciding(i) for computation in whole for i in _varying(computation)]
    return min((count for count in counts if count), default=_TURNS[-1][0] + 1)


def _varying(computation: HloComputation) -> Iterator[HloInstruction]:
    """Yield the instructions that depend on a parameter."""
    found: set[HloInstruction] = set()
    for instruction in computation.post_order():
        if instruction.opcode == "parameter" or not found.isdisjoint(instruction.operands):
            found.add(instruction)
            yield instruction


def _deciding(instruction: HloInstruction) -> int:
    """Return how many truth values an instruction makes, or how many indices it reads; 0 for another instruction."""
    if instruction.opcode in _AT_AN_INDEX:
        return 1 if instruction.opcode.startswith("dynamic") else instruction.operands[1].shape.element_count
    is_truth = instruction.shape.is_array and instruction.shape.dtype.kind == "pred"
    return instruction.shape.element_count if is_truth else 0


def _adds_little(module: HloModule) -> bool:
    """True if a kernel adds a small constant, or compares with one, which matters for small numbers alone."""
    return any(i.opcode == "constant" and _is_little(i) and _is_added(i) for i in module.instructions)


def _is_little(constant: HloInstruction) -> bool:
    shape = constant.shape
    if not shape.is_array or not shape.dtype.is_float or shape.element_count != 1:
        return False
    return 0 < abs(float(widen(constant.constant_array, shape.dtype).reshape(()))) < _LITTLE


def _is_added(instruction: HloInstruction) -> bool:
    return any(user.opcode in _ADDS or (user.opcode in _MOVES and _is_added(user)) for user in instruction.users)
