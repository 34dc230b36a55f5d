"""Count the NaNs and infinities on the two sides of a comparison by class."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from hlo_run.reference.values import Array


class SpecialValues(Struct):
    """The number of elements of each class; a complex number is NaN or infinite if one of its parts is."""

    nan_on_both_sides: int = 0
    nan_expected_only: int = 0
    nan_actual_only: int = 0
    same_infinity: int = 0
    opposite_infinity: int = 0
    infinity_expected_only: int = 0
    infinity_actual_only: int = 0

    def add(self, expected: Array, actual: Array) -> None:
        """Count more elements, which are in their computing type."""
        finite = np.isfinite(expected) & np.isfinite(actual)
        if finite.all():
            return
        want, got = expected[~finite], actual[~finite]
        want_nan, got_nan = np.isnan(want), np.isnan(got)
        want_inf, got_inf = np.isinf(want) & ~want_nan, np.isinf(got) & ~got_nan
        numbers = ~want_nan & ~got_nan
        same = want == got
        for name, found in (
            ("nan_on_both_sides", want_nan & got_nan),
            ("nan_expected_only", want_nan & ~got_nan),
            ("nan_actual_only", ~want_nan & got_nan),
            ("same_infinity", want_inf & got_inf & same),
            ("opposite_infinity", want_inf & got_inf & ~same),
            ("infinity_expected_only", numbers & want_inf & ~got_inf),
            ("infinity_actual_only", numbers & ~want_inf & got_inf),
        ):
            setattr(self, name, getattr(self, name) + int(np.count_nonzero(found)))

    def counts(self) -> dict[str, int]:
        """Return the dict name → count of all classes."""
        return asdict(self)

    def texts(self) -> list[str]:
        """Return `name: count` of every class that occurs."""
        return [f"{name.replace('_', ' ').replace('nan', 'NaN')}: {count}" for name, count in self.counts().items() if count]
