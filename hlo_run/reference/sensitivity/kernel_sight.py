"""The kernels that a comparison sees: plain records and their text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

# Of each reason, and of reasons.
_MOST_NAMED, _MOST_REASONS = 4, 3


class KernelSight(Struct, frozen=True):
    """Tells whether a changed result of the kernel of instruction `name` shows in the comparison; None: not measured.

    `reason` says why it does not show, or why that was not measured.
    """

    name: str
    seen: bool | None
    reason: str = ""


class KernelSights(Struct, frozen=True):
    """The kernels of a module that a comparison sees, in the order of the schedule."""

    kernels: tuple[KernelSight, ...]

    @property
    def seen(self) -> int:
        """The number of kernels that are seen."""
        return sum(kernel.seen is True for kernel in self.kernels)

    @property
    def measured(self) -> int:
        """The number of kernels that are seen or known to be unseen."""
        return sum(kernel.seen is not None for kernel in self.kernels)

    @property
    def is_blind(self) -> bool:
        """True if there are kernels, all were measured, and none is seen."""
        return bool(self.kernels) and self.measured == len(self.kernels) and not self.seen

    @property
    def is_whole(self) -> bool:
        """True if every kernel is seen, or was not measured."""
        return all(kernel.seen is not False for kernel in self.kernels)

    def or_seen_in(self, other: KernelSights) -> KernelSights:
        """Return these sights with the kernels seen that `other`, of the same module with other arguments, sees."""
        better = {kernel.name: kernel for kernel in other.kernels if kernel.seen}
        return KernelSights(tuple(better.get(kernel.name, kernel) for kernel in self.kernels))

    def __str__(self) -> str:
        count = len(self.kernels)
        if self.seen == count:
            return "the comparison sees " + (f"all {count} kernels" if count > 1 else "the kernel")
        unknown = Counter(kernel.reason for kernel in self.kernels if kernel.seen is None)
        why = ", ".join(unknown)
        if not self.measured:
            return f"how many of {count} kernels the comparison sees is not known: {why}"
        least = "at least " if unknown else ""
        parts = [f"the comparison sees {least}{self.seen} of {count} kernels"]
        if not self.is_whole:
            parts.append(f"not: {self._unseen()}")
        if unknown:
            parts.append(f"not measured: {unknown.total()} ({why})")
        return "; ".join(parts)

    def _unseen(self) -> str:
        groups: dict[str, list[str]] = {}
        for kernel in self.kernels:
            if kernel.seen is False:
                groups.setdefault(kernel.reason, []).append(kernel.name)
        shown = sorted(groups.items(), key=lambda group: -len(group[1]))[:_MOST_REASONS]
        text = ", ".join(f"{named(names)}{f' ({reason})' if reason else ''}" for reason, names in shown)
        more = sum(map(len, groups.values())) - sum(len(names) for _, names in shown)
        return text + (f", and {more} more for other reasons" if more else "")


def named(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def kernels_record(sights: KernelSights) -> dict[str, object]:
    """Return the record for JSON; docs/report.md is the schema."""
    kernels = [{"name": kernel.name, "seen": kernel.seen, "reason": kernel.reason} for kernel in sights.kernels]
    return {"seen": sights.seen, "measured": sights.measured, "kernels": kernels}


def in_order(sights: Iterable[KernelSight], names: Sequence[str]) -> KernelSights:
    """Return the records in the order of `names`."""
    known = {sight.name: sight for sight in sights}
    return KernelSights(tuple(known[name] for name in names))
