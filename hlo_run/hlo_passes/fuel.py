"""`--xla_fuel=PASS=N`: how much a pass may still do, to find by halving the rewrite that breaks a module."""

from __future__ import annotations

from collections.abc import Iterable

from hlo_run.errors import UsageError

# The passes that ask before every rewrite; of all others a unit is a run that changes something.
COUNTED_REWRITES = frozenset(("algsimp", "cse", "constant-folding", "priority-fusion", "multi-output-fusion"))


class Fuel:
    """What is left for each pass of one run of the pipeline; a pass without a limit has no end.

    `limits` are texts `PASS=N`; raises UsageError for others.
    """

    def __init__(self, limits: Iterable[str] = ()) -> None:
        self._left: dict[str, int] = {}
        for limit in limits:
            name, equals, count = limit.rpartition("=")
            if not equals or not name or not count.isdecimal():
                raise UsageError(f"--xla_fuel={limit} is no pass and number", hint="--xla_fuel=PASS=N,PASS=N")
            self._left[_key(name)] = int(count)

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that have a limit."""
        return tuple(self._left)

    def take(self, name: str) -> bool:
        """Use one unit up; False if the pass has none left, and must not make the rewrite."""
        key = _key(name)
        if key not in self._left:
            return True
        if self._left[key] == 0:
            return False
        self._left[key] -= 1
        return True

    def is_out(self, name: str) -> bool:
        """True if the pass has nothing left: there is no point in running it."""
        return self._left.get(_key(name)) == 0

    def ran(self, name: str, changed: bool) -> None:
        """Use one unit up for a run of a pass that does not ask before its rewrites."""
        if changed and _key(name) not in COUNTED_REWRITES:
            self.take(name)


def _key(name: str) -> str:
    return name.replace("_", "-")
