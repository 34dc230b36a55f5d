"""The answer to a question that can be refused: yes, or no with a reason that `triage/explain.py` lists."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """`allowed` with an empty or informative `reason`, or refused with the reason why. Truthiness is `allowed`."""

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        answer = "yes" if self.allowed else "no"
        return f"{answer}: {self.reason}" if self.reason else answer


YES = Decision(True)


def yes(reason: str) -> Decision:
    """Return a yes that says why."""
    return Decision(True, reason)


def no(reason: str) -> Decision:
    """Return a refusal."""
    return Decision(False, reason)
