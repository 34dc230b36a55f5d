"""Does a comparator order by keys, so that no pair needs to be compared by it? Which keys?

    lt(a0, b0)                                                  the elements of operand 0
    lt(f(a0, a1), f(b0, b1))                                    f of the elements of operands 0 and 1
    select(eq(f(a), f(b)), lt(g(a), g(b)), lt(f(a), f(b)))      f, then g

The last also as or(lt, and(eq, ..)), and with eq(lt(f(a), f(b)), lt(f(b), f(a))) for the equality.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hlo_run.analysis.fingerprint import computation_fingerprint
from hlo_run.hlo.graph import HloComputation, HloInstruction

_NO_MEANING = frozenset(("metadata", "origin", "statistics", "frontend_attributes", "sharding"))
_FLIPPED = {"LT": "GT", "GT": "LT"}


@dataclass(frozen=True, slots=True)
class KeyExpression:
    """A key of the first element of a pair: an instruction of the comparator that reads parameters 0, 2, 4, .. alone."""

    value: HloInstruction
    descending: bool
    total_order: bool

    @property
    def operands(self) -> tuple[int, ...]:
        """The operands of the sort whose elements the key is made of."""
        return tuple(sorted(number // 2 for number in _parameters(self.value)))


def sort_order(comparator: HloComputation) -> tuple[KeyExpression, ...] | None:
    """Return the keys, the first decides first; None for a comparator of another form."""
    return _order(comparator.root)


def _order(root: HloInstruction) -> tuple[KeyExpression, ...] | None:
    if root.opcode == "compare":
        key = _key(root)
        return None if key is None else (key,)
    parts = _lexicographic(root)
    if parts is None:
        return None
    less, equal, rest = parts
    key = _key(less)
    others = _order(rest)
    if key is None or others is None or not _asks_the_same(less, equal, key):
        return None
    return (key, *others)


def _lexicographic(root: HloInstruction) -> tuple[HloInstruction, HloInstruction, HloInstruction] | None:
    """Return (less, equal, rest) of `less or (equal and rest)` in one of its two spellings."""
    if root.opcode == "select":
        equal, rest, less = root.operands
        return (less, equal, rest) if less.opcode == "compare" else None
    if root.opcode != "or":
        return None
    for less, both in (root.operands, root.operands[::-1]):
        if less.opcode == "compare" and both.opcode == "and":
            for equal, rest in (both.operands, both.operands[::-1]):
                if equal.opcode == "compare" and equal.attrs["direction"] == "EQ":
                    return less, equal, rest
    return None


def _asks_the_same(less: HloInstruction, equal: HloInstruction, key: KeyExpression) -> bool:
    """True if `equal` says that neither element is less; a float that is no number is not equal to itself."""
    if equal.opcode != "compare" or equal.attrs["direction"] != "EQ":
        return False
    ours, theirs = less.operands, equal.operands
    if any(one is less and _is_turned(less, other) for one, other in (theirs, theirs[::-1])):
        return True
    if key.value.shape.dtype.is_float and not (key.total_order and _is_total(equal)):
        return False
    return any(all(_same(a, b, turned=False) for a, b in zip(ours, pair, strict=True)) for pair in (theirs, theirs[::-1]))


def _is_turned(less: HloInstruction, other: HloInstruction) -> bool:
    """True for the same comparison of the two elements of a pair the other way round."""
    return other.opcode == "compare" and _same(less, other, turned=True)


def _is_total(compare: HloInstruction) -> bool:
    return compare.attrs.get("type") == "TOTALORDER"


def _key(compare: HloInstruction) -> KeyExpression | None:
    left, right = compare.operands
    direction: str = compare.attrs["direction"]
    if direction not in _FLIPPED or left.shape.dtype.is_complex:
        return None
    sides = [{number % 2 for number in _parameters(operand)} for operand in (left, right)]
    if sides == [{1}, {0}]:
        left, right, direction = right, left, _FLIPPED[direction]
    elif sides != [{0}, {1}]:
        return None
    if not _same(left, right, turned=True):
        return None
    return KeyExpression(left, direction == "GT", _is_total(compare) and left.shape.dtype.is_float)


def _parameters(value: HloInstruction) -> set[int]:
    """Return the numbers of the parameters that a value depends on."""
    found: set[int] = set()
    seen: set[HloInstruction] = set()
    waiting = [value]
    while waiting:
        instruction = waiting.pop()
        if instruction in seen:
            continue
        seen.add(instruction)
        if instruction.opcode == "parameter":
            found.add(int(instruction.attrs["parameter_number"]))
        waiting += instruction.operands
    return found


def _same(one: HloInstruction, two: HloInstruction, turned: bool) -> bool:
    """True if two values are the same expression; `turned`: of the two elements of a pair."""
    done: set[tuple[HloInstruction, HloInstruction]] = set()
    waiting = [(one, two)]
    while waiting:
        first, second = waiting.pop()
        if (first, second) in done or (first is second and not turned):
            continue
        done.add((first, second))
        if not _alike(first, second, turned):
            return False
        waiting += zip(first.operands, second.operands, strict=True)
    return True


def _alike(first: HloInstruction, second: HloInstruction, turned: bool) -> bool:
    if (first.opcode, first.shape, len(first.operands)) != (second.opcode, second.shape, len(second.operands)):
        return False
    if first.opcode == "parameter":
        numbers = first.attrs["parameter_number"], second.attrs["parameter_number"]
        return numbers[0] ^ int(turned) == numbers[1]
    if _callees(first) != _callees(second):
        return False
    names = set(first.attrs) - _NO_MEANING
    return names == set(second.attrs) - _NO_MEANING and all(_equal(first.attrs[n], second.attrs[n]) for n in names)


def _callees(instruction: HloInstruction) -> list[str]:
    return [computation_fingerprint(computation) for computation in instruction.called_computations]


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return _bytes(one) == _bytes(two)
    return bool(one == two)


def _bytes(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Return what tells arrays apart, NaNs included."""
    array: np.ndarray[Any, np.dtype[Any]] = np.asarray(value)
    return str(array.dtype), array.shape, array.tobytes()
