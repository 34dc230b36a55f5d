"""`--time_passes`: measures the time of every row, summed over kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hlo_run.columns import aligned
from hlo_run.pass_support.observer import PIPELINE_START, Observer, Step


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
        rows = [("level", "row", "runs", "ms", "share")]
        for key, seconds in self.seconds.items():
            share = seconds / total if total else 0.0
            rows.append((*key, str(self.runs[key]), f"{seconds * 1e3:.2f}", f"{share:.1%}"))
        rows.append(("total", "", "", f"{total * 1e3:.2f}", ""))
        return "\n".join(aligned(rows, right=range(2, 5)))
