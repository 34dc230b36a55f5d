"""`hlo-tool bisect`: finds the pass, the rewrite, the LLVM pass or the level of ptxas that breaks a module."""

from __future__ import annotations

import os

import click

from hlo_run.containment.progress import Progress, shows_progress
from hlo_run.errors import UsageError
from hlo_run.execution.console import Console
from hlo_run.parallel import available_cores
from hlo_run.tools.predicate import predicate_of
from hlo_run.triage.asking import Bisection, Limits
from hlo_run.triage.bisect import Bisector
from hlo_run.triage.predicates import INTERESTING, RunPredicate
from hlo_run.triage.questions import MATCHES, SLOW, Question, SlowQuestion, TextQuestion
from hlo_run.triage.trials import trial_folder

_HELP = """Find the row, its rewrite, the LLVM pass and the level of ptxas without which FILE does not fail.

By default the failure is the one that hlo-run shows; --run='hlo-run FLAGS' adds flags. --slower_than and --matches ask about
such a run. --test='COMMAND {}' asks a command, which fails if its exit code is 0; it gets the flags of the search in XLA_FLAGS.
Exit codes: 0 found, 1 the file does not fail, 2 bad flags."""


@click.command("bisect", help=_HELP)
@click.argument("file")
@click.option("--run", "run_", default="", metavar="COMMAND", help="Run FILE as 'hlo-run FLAGS' does [hlo-run].")
@click.option("--test", default="", metavar="COMMAND", help="It fails if this command ends with exit code 0.")
@click.option("--slower_than", default=0.0, metavar="S", help="It fails if a run takes more than S seconds of processor time.")
@click.option("--matches", default="", metavar="STAGE:REGEX", help="It fails if the text of this stage matches.")
@click.option("--repeat", default=1, metavar="N", help="Ask each question N times; it fails if one of them does.")
@click.option("--jobs", default=0, metavar="N", help="Run N questions at once (0: one per core).")
@click.option("--trial_seconds", default=0.0, metavar="S", help="Stop a run after S seconds [5 times one without optional rows].")
@click.pass_obj
def command(
    console: Console,
    file: str,
    run_: str,
    test: str,
    slower_than: float,
    matches: str,
    repeat: int,
    jobs: int,
    trial_seconds: float,
) -> int:
    """Bisect, and print a sentence and a command for each culprit."""
    if file == "-":
        raise UsageError("bisect runs the file many times, so it cannot be stdin")
    if repeat < 1 or jobs < 0 or trial_seconds < 0:
        raise UsageError("--repeat must be above 0, --jobs and --trial_seconds at least 0")
    if sum(map(bool, (test, slower_than, matches))) > 1:
        raise UsageError("--test, --slower_than and --matches cannot be used together")
    if not os.path.isfile(file):
        raise UsageError(f"cannot read '{file}'")
    predicate = predicate_of("" if test else run_ or "hlo-run", test, file)
    run = predicate if isinstance(predicate, RunPredicate) else RunPredicate.of(run_ or "hlo-run", file)
    question: Question = predicate
    if slower_than:
        question = SlowQuestion(run, slower_than)
    elif matches:
        question = TextQuestion.of(run, matches)
    # Runs beside each other slow each other down.
    limits = Limits(1 if slower_than else jobs or available_cores(), trial_seconds, repeat)
    with trial_folder(), Progress(console.err, shows_progress()) as progress:
        found = Bisector(question, run, file, limits, progress).bisect()
    return _report(console, found, question, file)


def _report(console: Console, found: Bisection, question: Question, file: str) -> int:
    if not found.wanted:
        console.err(f"{file} does not fail: {question.command(file)}")
        return 1
    if found.wanted not in (INTERESTING, MATCHES, SLOW):
        console.out(f"failure: {found.wanted}")
    for finding in found.findings:
        console.out(finding.sentence)
        console.out(f"  fails:         {finding.with_it}")
        if finding.without_it:
            console.out(f"  does not fail: {finding.without_it}")
        for line in finding.lines:
            console.out(f"  {line}")
    for note in found.notes:
        console.out(note)
    if found.flaky:
        console.out("The failure is flaky: the same question had different answers. Raise --repeat.")
    console.err(f"{found.runs} runs")
    return 0
