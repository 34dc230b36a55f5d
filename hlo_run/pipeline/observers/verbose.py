"""`--v=N`: logs the rows that run, in N levels of detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hlo_run.hlo_passes.observer import (
    BUFFER_TEXTS,
    MEMORY_USAGE_PROTO,
    PIPELINE_START,
    THUNK_METADATA,
    THUNK_METADATA_PROTO,
    Level,
    Observer,
    Step,
)
from hlo_run.pipeline.observers.line_diff import changed_blocks, changed_but_names, in_context

_CONTEXT_LINES = 2


@dataclass(frozen=True)
class VerboseObserver(Observer):
    """Writes to `write`: 1 row names, 2 changes and op counts, 3 changed HLO, 4 fusion analysis, 5 kernel IR, LLVM, PTX.

    With `as_diff`, only the lines that a row changed are written in place of its whole text. `finish` then writes an index.
    """

    level: int
    write: Callable[[str], None]
    as_diff: bool = False
    _shown: dict[tuple[Level, str], list[str]] = field(default_factory=dict[tuple[Level, str], list[str]])
    _index: list[str] = field(default_factory=list[str])

    def watches(self, level: Level) -> bool:
        """Return True for a level whose changes the log shows: HLO from level 2 on, kernels from level 5 on."""
        return self.level >= (5 if level is Level.KERNEL else 2)

    def after(self, step: Step) -> None:
        """Log the step, and its text from level 3 (HLO) or 5 (kernels, LLVM IR, PTX) on unless it changed nothing."""
        has_texts = self.level >= (3 if step.level is Level.HLO else 5)
        if step.row == PIPELINE_START:
            if self.as_diff and has_texts:
                self._shown[step.level, step.kernel] = step.text().splitlines()
            return
        if self.level >= 1:
            self.write(self._line(step))
        if has_texts and step.changed is not False:
            subject = f" ({step.kernel})" if step.kernel else ""
            if self.as_diff:
                self._write_diff(step, subject)
            else:
                self.write(f"// -----// IR Dump After {step.row}{subject} //----- //")
                self.write(step.text().rstrip("\n") + "\n")

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Log the text of a note from level 4 on, except most texts about buffers, and thunk metadata."""
        if self.level >= 4 and title not in (*BUFFER_TEXTS[1:], MEMORY_USAGE_PROTO, THUNK_METADATA, THUNK_METADATA_PROTO):
            subject = f" ({kernel})" if kernel else ""
            self.write(f"// -----// {title}{subject} //----- //\n{text().rstrip()}\n")

    def finish(self) -> None:
        """Write the index of the rows that changed something, if the log consists of differences."""
        if self._index:
            self.write("\n".join([f"// -----// {len(self._index)} rows changed something //----- //", *self._index]))
        self._index.clear()
        self._shown.clear()

    def _write_diff(self, step: Step, subject: str) -> None:
        """Write the lines that differ from the last text of this level; the whole text if there was none."""
        before, after = self._shown.get((step.level, step.kernel)), step.text().splitlines()
        self._shown[step.level, step.kernel] = after
        lines = [f"+{line}" for line in after]
        if before is not None:
            changed = (changed_but_names if step.level is Level.KERNEL else changed_blocks)(before, after)
            lines.clear()
            for old, new, gone, come, above in in_context(changed, before, _CONTEXT_LINES):
                lines.append(f"@@ line {old + 1}, then line {new + 1} @@")
                lines += [f" {line}" for line in above] + [f"-{line}" for line in gone] + [f"+{line}" for line in come]
        if not lines:
            return
        added, removed = (sum(line.startswith(mark) for line in lines) for mark in "+-")
        self._index.append(f"{step.row}{subject}: {added} lines added, {removed} removed")
        self.write(f"// -----// Changed by {step.row}{subject} //----- //")
        self.write("\n".join(lines) + "\n")

    def _line(self, step: Step) -> str:
        place = f"{step.level.value}{' ' + step.kernel if step.kernel else ''}"
        line = f"[{place}] {step.row}"
        if self.level >= 2 and step.level in (Level.HLO, Level.KERNEL):
            what = {True: "changed", False: "unchanged", None: ""}[step.changed]
            line += "".join(f", {part}" for part in (what, f"{step.op_count()} ops") if part)
        return line
