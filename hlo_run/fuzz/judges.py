"""The table of judges: their names in `--against`, and the function that makes each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hlo_run.errors import UsageError
from hlo_run.fuzz import against_host, against_passes, against_reference, against_shardings
from hlo_run.fuzz.case import Case, Fault

JUDGES = ("reference", "passes", "host", "shardings", "host-shardings", "xla-cpu", "xla-gpu-compile")
# They judge modules with shardings, for several devices; the others judge modules for one.
SHARDED = frozenset(("shardings", "host-shardings"))
Judge = Callable[[Case], Iterator[Fault]]


def parse_against(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas. Raises UsageError for an unknown name, if a judge's extra is missing,
    or for judges of modules for one device and for several."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if unknown := [name for name in names if name not in JUDGES]:
        raise UsageError(f"--against={unknown[0]} is unknown", hint=f"choose from {', '.join(JUDGES)}")
    if not names:
        raise UsageError("--against names no judge", hint=f"choose from {', '.join(JUDGES)}")
    if 0 < len(SHARDED & set(names)) < len(names):
        raise UsageError("--against=shardings needs modules with shardings", hint="give its judges a run of their own")
    if "xla-cpu" in names:
        from hlo_run.formats.xla import require

        require("jaxlib", "--against=xla-cpu")
    if "xla-gpu-compile" in names:
        from hlo_run.formats.xla_gpu import find_plugin

        find_plugin("--against=xla-gpu-compile")
    return names


class Judges:
    """The judges of some names. Real XLA's run in child processes, which `stop` ends."""

    def __init__(self, names: Sequence[str], limit_seconds: float = 60.0) -> None:
        self.all: dict[str, Judge] = {}
        self._stops: list[Callable[[], None]] = []
        for name in names:
            self.all[name] = self._make(name, limit_seconds)

    def _make(self, name: str, limit_seconds: float) -> Judge:
        match name:
            case "reference":
                return against_reference.judge
            case "passes":
                return against_passes.judge
            case "host":
                return against_host.judge
            case "shardings":
                return against_shardings.judge
            case "host-shardings":
                return against_shardings.host_judge
            case "xla-cpu":
                from hlo_run.fuzz import against_xla_cpu

                made = against_xla_cpu.Judge(limit_seconds)
            case _:
                from hlo_run.fuzz import against_xla_gpu

                made = against_xla_gpu.Judge(limit_seconds)
        self._stops.append(made.stop)
        return made

    def stop(self) -> None:
        """End the child processes."""
        for stop in self._stops:
            stop()
