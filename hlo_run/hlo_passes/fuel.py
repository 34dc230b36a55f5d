"""`--xla_fuel=PASS=N`: limit the rewrites of a pass, to find by bisection the rewrite that breaks a module."""

from __future__ import annotations

from collections.abc import Iterable

from hlo_run.errors import UsageError

# These passes take fuel before every rewrite; another pass uses one unit for each run that changes the module.
COUNTED_REWRITES = frozenset(("algsimp", "cse", "constant-folding", "priority-fusion", "multi-output-fusion"))


class Fuel:
    """The remaining fuel of each pass in one run of the pipeline; a pass without a limit has unlimited fuel.

    Each of `limits` is a text `PASS=N`; raises UsageError for another form.
    """

    def __init__(self, limits: Iterable[str] = ()) -> None:
        self._left: dict[str, int] = {}
        for limit in limits:
            name, equals, count = limit.rpartition("=")
            if not equals or not name or not count.isdecimal():
                raise UsageError(f"--xla_fuel={limit} is not of the form PASS=N", hint="--xla_fuel=PASS=N,PASS=N")
            self._left[_key(name)] = int(count)

    @property
    def passes(self) -> tuple[str, ...]:
        """The names of the passes that have a limit, with `-` for `_`."""
        return tuple(self._left)

    def take(self, name: str) -> bool:
        """Use one unit; return False if the pass has none left and must not make the rewrite."""
        key = _key(name)
        if key not in self._left:
            return True
        if self._left[key] == 0:
            return False
        self._left[key] -= 1
        return True

    def is_out(self, name: str) -> bool:
        """Return True if the pass has no fuel left; the runner then skips it."""
        return self._left.get(_key(name)) == 0

    def ran(self, name: str, changed: bool) -> None:
        """Use one unit for a run that changed the module, if the pass is not in `COUNTED_REWRITES`."""
        if changed and _key(name) not in COUNTED_REWRITES:
            self.take(name)


def _key(name: str) -> str:
    return name.replace("_", "-")
