"""Closed intervals of 64-bit integers, with saturating arithmetic and three-valued comparison."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

from msgspec import Struct

# The ends of int64 mean "unbounded". Arithmetic keeps an unbounded end unbounded.
MIN = -(2**63)
MAX = 2**63 - 1

# The pair (lower, upper) of a closed interval. The hot loops of range evaluation use pairs instead of Interval.
Bounds: TypeAlias = tuple[int, int]
Comparison: TypeAlias = Literal["eq", "ne", "lt", "le", "gt", "ge"]


def _saturate(value: int) -> int:
    # MIN + 1 counts as MIN, so that negating MAX gives an unbounded end.
    return MIN if value <= MIN + 1 else MAX if value >= MAX else value


def add_bounds(a: Bounds, b: Bounds) -> Bounds:
    """Return the interval of x + y, for x in `a` and y in `b`."""
    lower = MIN if a[0] == MIN or b[0] == MIN else _saturate(a[0] + b[0])
    upper = MAX if a[1] == MAX or b[1] == MAX else _saturate(a[1] + b[1])
    return lower, upper


def scale_bounds(a: Bounds, factor: int) -> Bounds:
    """Return the interval of x * factor."""
    low, high = _saturate(a[0] * factor), _saturate(a[1] * factor)
    return (low, high) if factor >= 0 else (high, low)


def multiply_bounds(a: Bounds, b: Bounds) -> Bounds:
    """Return the interval of x * y."""
    products = [_saturate(x * y) for x in a for y in b]
    return min(products), max(products)


def floordiv_bounds(a: Bounds, b: Bounds) -> Bounds:
    """Return the interval of floor(x / y); unbounded if y may be 0."""
    if b[0] <= 0 <= b[1]:
        return MIN, MAX
    quotients = [_floordiv_end(x, y) for x in a for y in b]
    return min(quotients), max(quotients)


def _floordiv_end(x: int, y: int) -> int:
    if x in (MIN, MAX):
        return x if y > 0 else MIN if x == MAX else MAX
    return x // y


def mod_bounds(a: Bounds, b: Bounds) -> Bounds:
    """Return the interval of x mod y, which is in [0, y - 1]; unbounded if y may be 0 or less."""
    if b[0] <= 0:
        return MIN, MAX
    if a[0] >= 0 and a[1] < b[0]:
        return a
    return 0, b[1] - 1


class Interval(Struct, frozen=True):
    """The closed interval [lower, upper]; empty ("infeasible") if lower > upper."""

    lower: int
    upper: int

    @staticmethod
    def point(value: int) -> Interval:
        """Return [value, value]."""
        return Interval(value, value)

    @staticmethod
    def of_size(size: int) -> Interval:
        """Return [0, size - 1], the indices of a dimension."""
        return Interval(0, size - 1)

    @staticmethod
    def unbounded() -> Interval:
        """Return the interval of all 64-bit integers."""
        return Interval(MIN, MAX)

    @property
    def bounds(self) -> Bounds:
        """The pair (lower, upper); both are inside the interval."""
        return self.lower, self.upper

    @property
    def is_point(self) -> bool:
        """True if the interval holds exactly one integer."""
        return self.lower == self.upper

    @property
    def is_feasible(self) -> bool:
        """True if the interval is not empty."""
        return self.lower <= self.upper

    @property
    def size(self) -> int:
        """The number of integers in the interval (a loop's trip count); 0 if infeasible."""
        return max(0, self.upper - self.lower + 1)

    def contains(self, value: int) -> bool:
        """True if `value` is in the interval; the bounds are inside."""
        return self.lower <= value <= self.upper

    def encloses(self, other: Interval) -> bool:
        """True if every point of `other` is in this interval."""
        return not other.is_feasible or (self.lower <= other.lower and other.upper <= self.upper)

    def intersect(self, other: Interval) -> Interval:
        """Return the common part; if empty, upper is lower - 1."""
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        return Interval(lower, max(upper, lower - 1))

    def union(self, other: Interval) -> Interval:
        """Return the smallest interval that encloses both."""
        if not self.is_feasible or not other.is_feasible:
            return other if not self.is_feasible else self
        return Interval(min(self.lower, other.lower), max(self.upper, other.upper))

    def minimum(self, other: Interval) -> Interval:
        """Return the interval of min(x, y)."""
        return Interval(min(self.lower, other.lower), min(self.upper, other.upper))

    def maximum(self, other: Interval) -> Interval:
        """Return the interval of max(x, y)."""
        return Interval(max(self.lower, other.lower), max(self.upper, other.upper))

    def compare(self, predicate: Comparison, other: Interval) -> bool | None:
        """Return the truth of `x predicate y` for all x in this interval and y in `other`; None if it depends on x and y."""
        match predicate:
            case "lt":
                return self._always_less(other)
            case "ge":
                return _negate(self._always_less(other))
            case "gt":
                return other._always_less(self)
            case "le":
                return _negate(other._always_less(self))
            case "eq":
                return self._always_equal(other)
            case "ne":
                return _negate(self._always_equal(other))
            case _:
                assert_never(predicate)

    def _always_less(self, other: Interval) -> bool | None:
        if self.upper < other.lower:
            return True
        return False if self.lower >= other.upper else None

    def _always_equal(self, other: Interval) -> bool | None:
        if self.is_point and self == other:
            return True
        return None if self.intersect(other).is_feasible else False

    def __add__(self, other: Interval | int) -> Interval:
        return Interval(*add_bounds(self.bounds, _bounds_of(other)))

    def __sub__(self, other: Interval | int) -> Interval:
        return Interval(*add_bounds(self.bounds, scale_bounds(_bounds_of(other), -1)))

    def __mul__(self, other: Interval | int) -> Interval:
        return Interval(*multiply_bounds(self.bounds, _bounds_of(other)))

    def __floordiv__(self, other: Interval | int) -> Interval:
        return Interval(*floordiv_bounds(self.bounds, _bounds_of(other)))

    def __mod__(self, other: Interval | int) -> Interval:
        return Interval(*mod_bounds(self.bounds, _bounds_of(other)))

    def __neg__(self) -> Interval:
        return Interval(*scale_bounds(self.bounds, -1))

    def __str__(self) -> str:
        return f"[{self.lower}, {self.upper}]"


def _bounds_of(value: Interval | int) -> Bounds:
    return (value, value) if isinstance(value, int) else value.bounds


def _negate(answer: bool | None) -> bool | None:
    return None if answer is None else not answer
