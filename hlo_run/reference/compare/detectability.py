"""Measures what a comparison can detect: the elements where it would notice a zero in the place of the result.

A kernel that computes nothing leaves zeros. The comparison is blind to that where zero is expected, or a float within
the absolute bound of zero, or where both sides are NaN or infinite, which hide whatever went into them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.reference.compare.element_errors import ErrorSpec
from hlo_run.reference.compare.leaf_comparison import LeafComparison, steps
from hlo_run.reference.compare.rounding import cancellation_floor
from hlo_run.reference.values import as_array, quiet, widen


class Detectability(Struct, frozen=True):
    """Counts of the expected elements of an array or of several: `seen` and the three reasons not to be.

    `all_true` is set for an array of pred that says only true, which memory that no kernel wrote may say too.
    """

    elements: int = 0
    zero: int = 0
    small: int = 0
    not_finite: int = 0
    all_true: bool = False

    @property
    def seen(self) -> int:
        """The number of elements where a zero would be noticed."""
        return self.elements - self.zero - self.small - self.not_finite

    @property
    def is_blind(self) -> bool:
        """True if there are elements and none is seen."""
        return self.elements > 0 and self.seen == 0

    def __add__(self, other: Detectability) -> Detectability:
        return Detectability(
            self.elements + other.elements,
            self.zero + other.zero,
            self.small + other.small,
            self.not_finite + other.not_finite,
        )

    def __str__(self) -> str:
        if self.seen == self.elements:
            return "the comparison sees " + (f"all {self.elements} elements" if self.elements != 1 else "the element")
        parts = ((self.zero, "zero"), (self.small, "too small"), (self.not_finite, "NaN or infinite"))
        why = ", ".join(f"{count} {what}" for count, what in parts if count)
        share = 100 * self.seen / self.elements
        return f"the comparison sees {self.seen} of {self.elements} elements ({share:.3g} %): {why}"


def detectability(leaf: LeafComparison, spec: ErrorSpec, fixed_bounds: bool) -> Detectability:
    """Return what the comparison of one array sees. With `fixed_bounds`, floats within the absolute bound are not seen.

    Otherwise small floats are judged by their rounding, and only those are not seen that are smaller than the rounding of
    the array's largest number, or are explained by rounding although they are off by more than that they are large.
    """
    if leaf.problem:
        return Detectability()
    expected, dtype = as_array(leaf.expected), leaf.shape.dtype
    if not leaf.is_near:
        zero = expected.size - int(np.count_nonzero(expected))
        return Detectability(expected.size, zero, all_true=dtype.kind == "pred" and expected.size > 0 and not zero)
    with quiet():
        floor = spec.abs if fixed_bounds else min(spec.abs, cancellation_floor(leaf))
        zero = seen = infinite = 0
        for _, want, _ in steps(expected, expected):
            magnitude = np.abs(widen(want, dtype))
            zero += int(np.count_nonzero(magnitude == 0))
            seen += int(np.count_nonzero(magnitude > floor))
            infinite += int(np.count_nonzero(~np.isfinite(magnitude)))
            seen -= int(np.count_nonzero(np.isinf(magnitude)))
        # What rounding alone may have made tells nothing, whatever its size.
        seen = max(0, seen - leaf.rounding.lost) if leaf.rounding is not None else seen
    return Detectability(expected.size, zero, expected.size - zero - seen - infinite, infinite)


def total(counts: Sequence[Detectability]) -> Detectability:
    """Return the counts of several arrays together."""
    return sum(counts, Detectability())


def is_poor(counts: Detectability) -> bool:
    """True if other arguments may show much more: no element is seen, all say true, or an eighth is NaN or infinite."""
    return counts.is_blind or counts.all_true or 8 * counts.not_finite > counts.elements
