"""Helpers for records of options: the dataclass field of a flag, and the values of a comma-separated list."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def flag(
    default: Any,
    help_text: str,
    metavar: str = "",
    choices: tuple[str, ...] = (),
    bare: str = "",
    no_effect: str = "",
    acts: str | None = None,
    least: float | None = None,
    hidden: bool = False,
) -> Any:
    """Return the dataclass field of a flag.

    `bare` is the value of a flag that is written without one, `--profile` (booleans: true). For a flag of compilation,
    `no_effect` is the reason why the result of a compilation does not depend on it. Without a reason the value is part of the
    keys of the caches. `acts` are the uses of a command line (blanks between them) that the flag needs to have an effect;
    None: those of its record (`effects.py`). `least` is the smallest number that is valid. A `hidden` field is not a flag: the
    command line sets it from others.
    """
    meta = {
        "help": help_text,
        "metavar": metavar,
        "choices": choices,
        "bare": bare,
        "no_effect": no_effect,
        "acts": acts,
        "least": least,
        "hidden": hidden,
    }
    return field(default=default, metadata=meta)


def names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, without blanks and empty names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
