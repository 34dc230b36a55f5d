"""`--stage=NAME`: writes the text of one stage and stops the compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_run.pass_support.observer import (
    AFTER_PARTITIONER,
    FIRST_AFTER_PARTITIONER,
    PIPELINE_START,
    Observer,
    Step,
    StopAtStage,
)


@dataclass(frozen=True)
class StageObserver(Observer):
    """Writes the text after the row called `stage` (for a kernel row: of each kernel), then raises StopAtStage.

    If both tables have a row of that name, its pipeline chooses one: `kernel/cse`.
    """

    stage: str
    write: Callable[[str], None]

    def after(self, step: Step) -> None:
        """Write the text and raise StopAtStage if the step is the stage."""
        is_after_partitioner = step.row == PIPELINE_START and step.pipeline == FIRST_AFTER_PARTITIONER
        if self.stage in (step.row, f"{step.pipeline}/{step.row}") or (is_after_partitioner and self.stage == AFTER_PARTITIONER):
            self.write(step.text().rstrip("\n"))
            raise StopAtStage

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Write the text and raise StopAtStage if the note's title is the stage."""
        if title == self.stage:
            self.write(text().rstrip("\n"))
            raise StopAtStage
