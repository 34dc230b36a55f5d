"""`--stage=NAME`: print one stage to stdout and stop there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_run.hlo_passes.observer import Observer, Step, StopAtStage


@dataclass(frozen=True)
class StageObserver(Observer):
    """Writes the text of the row called `stage` (each kernel's, for a kernel row), then raises StopAtStage.

    A row of a pass that both tables have is called by its pipeline too: `kernel/cse`.
    """

    stage: str
    write: Callable[[str], None]

    def after(self, step: Step) -> None:
        if self.stage in (step.row, f"{step.pipeline}/{step.row}"):
            self.write(step.text().rstrip("\n"))
            raise StopAtStage

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        if title == self.stage:
            self.write(text().rstrip("\n"))
            raise StopAtStage
