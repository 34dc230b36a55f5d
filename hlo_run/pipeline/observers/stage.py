"""`--stage=NAME`: print one stage to stdout and stop there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_run.pipeline.observer import Observer, Step, StopAtStage


@dataclass(frozen=True)
class StageObserver(Observer):
    """Writes the text of the row called `stage` (each kernel's, for a kernel row), then raises StopAtStage."""

    stage: str
    write: Callable[[str], None]

    def after(self, step: Step) -> None:
        if step.row == self.stage:
            self.write(step.text().rstrip("\n"))
            raise StopAtStage

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        if title == self.stage:
            self.write(text().rstrip("\n"))
            raise StopAtStage
