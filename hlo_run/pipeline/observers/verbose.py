"""`--v=N`: logs the rows that run, in N levels of detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hlo_run.pass_support.observer import (
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

    From level 3 on, the log begins with the module as read, and rows in a sequence that changed nothing share a line. With
    `as_diff`, only the lines that a row changed are written in place of its whole text. `finish` then writes an index.
    """

    level: int
    write: Callable[[str], None]
    as_diff: bool = False
    _shown: dict[tuple[Level, str], list[str]] = field(default_factory=dict[tuple[Level, str], list[str]])
    _index: list[str] = field(default_factory=list[str])
    _unchanged: list[Step] = field(default_factory=list[Step])

    def watches(self, level: Level) -> bool:
        """Return True for a level whose changes the log shows: HLO from level 2 on, kernels from level 5 on."""
        return self.level >= (5 if level is Level.KERNEL else 2)

    def after(self, step: Step) -> None:
        """Log the step, and its text from level 3 (HLO) or 5 (kernels, LLVM IR, PTX) on unless it changed nothing."""
        has_texts = self.level >= (3 if step.level is Level.HLO else 5)
        if step.row == PIPELINE_START:
            is_first = (step.level, step.kernel) not in self._shown
            if has_texts and (self.as_diff or is_first):
                self._shown[step.level, step.kernel] = step.text().splitlines()
            if has_texts and is_first and step.level is Level.HLO and not self.as_diff:
                self.write("// -----// the module as read //----- //\n" + step.text().rstrip("\n") + "\n")
            return
        if has_texts and step.changed is False:
            self._keep_unchanged(step)
            return
        self._write_unchanged()
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
        if self.level < 4 or title in (*BUFFER_TEXTS[1:], MEMORY_USAGE_PROTO, THUNK_METADATA, THUNK_METADATA_PROTO):
            return
        said = text().rstrip()
        if not said:
            return
        self._write_unchanged()
        subject = f" ({kernel})" if kernel else ""
        self.write(f"// -----// {title}{subject} //----- //\n{said}\n")

    def _keep_unchanged(self, step: Step) -> None:
        if self._unchanged and (self._unchanged[-1].level, self._unchanged[-1].kernel) != (step.level, step.kernel):
            self._write_unchanged()
        self._unchanged.append(step)

    def _write_unchanged(self) -> None:
        """Write one line about the last rows that changed nothing, if there are some."""
        if not self._unchanged:
            return
        first, last = self._unchanged[0], self._unchanged[-1]
        rows = f"{first.row} .. {last.row}: {len(self._unchanged)} rows" if len(self._unchanged) > 1 else first.row
        self.write(f"[{_place(first)}] {rows}, unchanged")
        self._unchanged.clear()

    def finish(self) -> None:
        """Write the index of the rows that changed something, if the log consists of differences."""
        self._write_unchanged()
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
        line = f"[{_place(step)}] {step.row}"
        if self.level >= 2 and step.level in (Level.HLO, Level.KERNEL):
            what = {True: "changed", False: "unchanged", None: ""}[step.changed]
            line += "".join(f", {part}" for part in (what, f"{step.op_count()} ops") if part)
        return line


def _place(step: Step) -> str:
    return f"{step.level.value}{' ' + step.kernel if step.kernel else ''}"
