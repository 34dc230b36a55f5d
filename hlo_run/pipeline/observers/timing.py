"""`--time_passes`: measures the time of every row, summed over kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hlo_run.hlo_passes.observer import PIPELINE_START, Observer, Step


@dataclass
class TimingObserver(Observer):
    """Sums seconds and runs by (level, row), in the order in which rows first ran."""

    only_times: ClassVar[bool] = True

    seconds: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    runs: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def after(self, step: Step) -> None:
        """Add a run and its seconds to the row of the step. The start of a pipeline does not count."""
        if step.row == PIPELINE_START:
            return
        key = (step.level.value, step.row)
        self.seconds[key] = self.seconds.get(key, 0.0) + step.seconds
        self.runs[key] = self.runs.get(key, 0) + 1

    def table(self) -> str:
        """Return a table: level, row, runs, milliseconds, share of the total."""
        total = sum(self.seconds.values())
        lines = [f"{'level':<8}{'row':<36}{'runs':>6}{'ms':>10}{'share':>8}"]
        for key, seconds in self.seconds.items():
            share = seconds / total if total else 0.0
            lines.append(f"{key[0]:<8}{key[1]:<36}{self.runs[key]:>6}{seconds * 1e3:>10.2f}{share:>8.1%}")
        return "\n".join([*lines, f"{'total':<50}{total * 1e3:>10.2f}"])
