"""The result of a check: allowed, or refused with a reason that `--explain` prints."""

from __future__ import annotations

from msgspec import Struct


class Decision(Struct, frozen=True):
    """A verdict, whose truth is `allowed`. A refusal has a `reason`; an allowed verdict may have one."""

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        answer = "yes" if self.allowed else "no"
        return f"{answer}: {self.reason}" if self.reason else answer


YES = Decision(True)


def yes(reason: str) -> Decision:
    """Return an allowed verdict with a reason."""
    return Decision(True, reason)


def no(reason: str) -> Decision:
    """Return a refused verdict with its reason."""
    return Decision(False, reason)
