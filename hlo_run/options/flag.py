"""The field of a flag in a record of options."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def flag(
    default: Any, help_text: str, metavar: str = "", choices: tuple[str, ...] = (), bare: str = "", no_effect: str = ""
) -> Any:
    """Return the field of a flag; `bare` is its value when it is written without one (booleans: true).

    `no_effect` is, for a flag of compilation, the reason why what is compiled does not depend on it. Without a reason the value
    is part of the key of both caches.
    """
    meta = {"help": help_text, "metavar": metavar, "choices": choices, "bare": bare, "no_effect": no_effect}
    return field(default=default, metadata=meta)


def names(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
