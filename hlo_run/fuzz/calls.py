"""The functions of the custom calls in random modules, and a record of the calls with an effect."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
from msgspec import Struct, field

from hlo_run.arrays import Array
from hlo_run.custom_calls import custom_call, unregister
from hlo_run.fuzz.families.effects import COUNT, FLIP, RECORD


class Record(Struct):
    """The arguments of custom calls with effects since the last `take`."""

    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def note(self, target: str, value: Array) -> None:
        # -0 becomes +0, since the two are not distinguished in results.
        plain = np.asarray(value).astype(np.complex128 if np.iscomplexobj(value) else np.float64) + 0.0
        self.calls.append((target, f"{list(plain.shape)} {hashlib.sha1(plain.tobytes()).hexdigest()}"))

    def take(self) -> Counter[tuple[str, str]]:
        taken = Counter(self.calls)
        self.calls.clear()
        return taken


CALLS = Record()


def register_calls() -> None:
    """Register the functions of the custom calls in random modules."""

    @custom_call(FLIP)
    def flip(*values: Array) -> object:  # pyright: ignore[reportUnusedFunction]
        flipped = [np.flip(value) for value in values]
        return tuple(flipped) if len(flipped) > 1 else flipped[0]

    @custom_call(RECORD)
    def record(value: Array) -> Array:  # pyright: ignore[reportUnusedFunction]
        CALLS.note(RECORD, value)
        return np.flip(value)

    @custom_call(COUNT)
    def count(value: Array) -> Array:  # pyright: ignore[reportUnusedFunction]
        CALLS.note(COUNT, value)
        return np.asarray(np.float32(1))


def unregister_calls() -> None:
    """Unregister the functions of `register_calls`."""
    for target in (FLIP, RECORD, COUNT):
        unregister(target)
