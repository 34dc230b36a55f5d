"""The text of a list of numbers in HLO: `{0,2,1}`."""

from __future__ import annotations

from collections.abc import Iterable


def braces(values: Iterable[object]) -> str:
    """Return the values between braces, with commas and no blanks: `{1,2}`, or `{}` for none."""
    return "{" + ",".join(map(str, values)) + "}"
