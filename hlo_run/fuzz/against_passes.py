"""The judge `passes`: checks the rewrites of every HLO row alone, on separate operands."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.execution.signatures import Signature
from hlo_run.fuzz.case import FAILED, Case, Fault
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Level, Observer, Step
from hlo_run.pipeline.compile import optimize
from hlo_run.pipeline.table_rows import base_name
from hlo_run.region_checks.row import RowJudge, Snapshot
from hlo_run.target import preset

NAME = "passes"


def judge(case: Case) -> Iterator[Fault]:
    """Yield the rows with a wrong rewrite. Raises the errors of the passes."""
    working = case.module.clone()
    watch = _Watch(working)
    optimize(PassContext(preset(case.options.target), case.options, observers=(watch,)), working)
    yield from watch.faults


class _Watch(Observer):
    """Collects the wrong rewrites of the rows."""

    def __init__(self, working: HloModule) -> None:
        self._working, self._judge = working, RowJudge()
        self._last, self._version = Snapshot.of(working), working.version
        self.faults: list[Fault] = []

    def after(self, step: Step) -> None:
        if step.level is not Level.HLO or self._working.version == self._version:
            return
        last, self._last, self._version = self._last, Snapshot.of(self._working), self._working.version
        for wrong in self._judge.report(last, self._last).wrong:
            modules = wrong.region.modules("region")
            signature = Signature(NAME, "mismatch", "wrong rewrite", base_name(step.row))
            details = f"row '{step.row}': {wrong.verdict.first}\n{modules[0]}\n=>\n{modules[1]}"
            self.faults.append(Fault(FAILED, signature, details))
