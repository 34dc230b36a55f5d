"""`--xla_fuel=PASS=N` and `--kernel_fuel=PASS=N`: limit the rewrites of a pass, to find the one that breaks a module."""

from __future__ import annotations

from collections.abc import Iterable

from hlo_run.errors import UsageError

# These passes take fuel before every rewrite; another pass uses one unit for each run that changes the module.
COUNTED_REWRITES = frozenset(("algsimp", "cse", "constant-folding", "priority-fusion", "multi-output-fusion"))
COUNTED_KERNEL_REWRITES = frozenset(
    """canonicalize cse inliner loop-invariant-code-motion optimize-loops peel-loops simplify-arith unswitch-loops
    vectorize-loads-stores""".split()
)


class Fuel:
    """The remaining fuel of each pass in one run of the pipeline; a pass without a limit has unlimited fuel.

    Each of `limits` is a text `PASS=N`; raises UsageError for another form. `counted` are the passes that take fuel themselves.
    """

    def __init__(self, limits: Iterable[str] = (), counted: frozenset[str] = COUNTED_REWRITES, flag: str = "xla_fuel") -> None:
        self._left: dict[str, int] = {}
        self._counted = counted
        for limit in limits:
            name, equals, count = limit.rpartition("=")
            if not equals or not name or not count.strip().removeprefix("-").isdecimal():
                raise UsageError(f"--{flag}={limit} is not of the form PASS=N", hint=f"--{flag}=PASS=N,PASS=N")
            self._left[_key(name)] = max(int(count), 0)

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

    def has_limit(self, name: str) -> bool:
        """Return True if the pass has a limit, reached or not."""
        return _key(name) in self._left

    def is_out(self, name: str) -> bool:
        """Return True if the pass has no fuel left; the runner then skips it."""
        return self._left.get(_key(name)) == 0

    def ran(self, name: str, changed: bool) -> None:
        """Use one unit for a run that changed the module, if the pass does not take fuel itself."""
        if changed and _key(name) not in self._counted:
            self.take(name)


def kernel_fuel(limits: Iterable[str]) -> Fuel:
    """Return the fuel of the kernel rows, which all kernels of a compilation share; raises UsageError as `Fuel` does."""
    return Fuel(limits, COUNTED_KERNEL_REWRITES, "kernel_fuel")


def _key(name: str) -> str:
    return name.replace("_", "-")
