"""Keeps the texts of stages of one compilation, for goldens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_run.pass_support.observer import Level, Observer, Step


class StageKeeper(Observer):
    """Keeps the texts of stages about modules: of each HLO row the first one. Kernels may be compiled in other processes."""

    only_times = True

    def __init__(self, stages: Sequence[str]) -> None:
        self._stages = dict.fromkeys(stages)
        self._texts: dict[str, dict[str, str]] = {}

    def wants_note(self, title: str) -> bool:
        """Return True for a stage of the flags."""
        return title in self._stages

    def after(self, step: Step) -> None:
        """Keep the text of a row. The PTX of kernels comes from the executable."""
        if step.level is Level.PTX or (self.only_times and step.level is not Level.HLO):
            return
        for stage in (step.row, f"{step.pipeline}/{step.row}"):
            if stage in self._stages:
                self._keep(stage, step.kernel, step.text)

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Keep a text about the module."""
        if title in self._stages:
            self._keep(title, kernel, text)

    def _keep(self, stage: str, kernel: str, text: Callable[[], str]) -> None:
        known = self._texts.setdefault(stage, {})
        # A name that modules and kernels have is that of the module's row; `kernel/cse` is the other one.
        if kernel not in known and not (kernel and "" in known):
            known[kernel] = text().rstrip("\n") + "\n"

    def texts(self) -> dict[str, str]:
        """Return the text of each stage. A comment with the kernel's name precedes the text of each kernel."""
        found: dict[str, str] = {}
        for stage in self._stages:
            parts = self._texts.get(stage, {}).items()
            found[stage] = "\n".join(f"// kernel: {kernel}\n{text}" if kernel else text for kernel, text in parts)
        return found


class KernelStageKeeper(StageKeeper):
    """Keeps the texts of kernels too."""

    only_times = False
