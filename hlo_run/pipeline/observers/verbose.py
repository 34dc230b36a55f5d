"""`--v=N`: logs the rows that run, in N levels of detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_run.hlo_passes.observer import BUFFER_TEXTS, PIPELINE_START, THUNK_METADATA, Level, Observer, Step


@dataclass(frozen=True)
class VerboseObserver(Observer):
    """Writes to `write`: 1 row names, 2 changes and op counts, 3 changed HLO, 4 fusion analysis, 5 kernel IR, LLVM, PTX."""

    level: int
    write: Callable[[str], None]

    def watches(self, level: Level) -> bool:
        """Return True for a level whose changes the log shows: HLO from level 2 on, kernels from level 5 on."""
        return self.level >= (5 if level is Level.KERNEL else 2)

    def after(self, step: Step) -> None:
        """Log the step, and its text from level 3 (HLO) or 5 (kernels, LLVM IR, PTX) on unless it changed nothing."""
        if step.row == PIPELINE_START:
            return
        if self.level >= 1:
            self.write(self._line(step))
        if self.level >= (3 if step.level is Level.HLO else 5) and step.changed is not False:
            subject = f" ({step.kernel})" if step.kernel else ""
            self.write(f"// -----// IR Dump After {step.row}{subject} //----- //")
            self.write(step.text().rstrip("\n") + "\n")

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Log the text of a note from level 4 on, except most texts about buffers, and thunk metadata."""
        if self.level >= 4 and title not in (*BUFFER_TEXTS[1:], THUNK_METADATA):
            subject = f" ({kernel})" if kernel else ""
            self.write(f"// -----// {title}{subject} //----- //\n{text().rstrip()}\n")

    def _line(self, step: Step) -> str:
        place = f"{step.level.value}{' ' + step.kernel if step.kernel else ''}"
        line = f"[{place}] {step.row}"
        if self.level >= 2 and step.level in (Level.HLO, Level.KERNEL):
            what = {True: "changed", False: "unchanged", None: ""}[step.changed]
            line += "".join(f", {part}" for part in (what, f"{step.op_count()} ops") if part)
        return line
