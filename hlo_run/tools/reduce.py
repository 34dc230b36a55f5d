"""`hlo-tool reduce`: shrinks a module while it keeps its failure."""

from __future__ import annotations

import os

import click

from hlo_run.containment.progress import Progress, shows_progress
from hlo_run.errors import UsageError
from hlo_run.execution.console import Console
from hlo_run.execution.output_files import check_writable
from hlo_run.options.text_files import read_text
from hlo_run.parallel import available_cores
from hlo_run.tools.predicate import predicate_of
from hlo_run.tools.read import read
from hlo_run.triage.llvm_reduce import is_llvm_ir, reduce_llvm
from hlo_run.triage.predicates import INTERESTING, Predicate, RunPredicate
from hlo_run.triage.reduce import Plan, Reducer, Reduction, default_output
from hlo_run.triage.trials import trial_folder

_HELP = """Shrink the module in FILE while it keeps its failure.

--run='hlo-run FLAGS' keeps the signature of the failure that hlo-run shows with these flags. --test='COMMAND {}' keeps files
for which COMMAND ends with exit code 0. The smallest module so far is always in --output. A dump of kernel IR (.mlir) becomes a
smaller one; --run compiles it from its row on. LLVM IR (.ll) goes through llvm-reduce.
Exit codes: 0 reduced, 1 the file does not fail, 2 bad flags."""


@click.command("reduce", help=_HELP)
@click.argument("file")
@click.option("--run", "run_", default="", metavar="COMMAND", help="Keep the failure that 'hlo-run FLAGS' shows.")
@click.option("--test", default="", metavar="COMMAND", help="Keep files for which this command ends with exit code 0.")
@click.option("--output", "-o", default="", metavar="FILE", help="Write the result here [FILE.reduced.hlo].")
@click.option("--jobs", default=0, metavar="N", help="Try N candidates at once (0: one per core).")
@click.option("--seconds", default=0.0, metavar="S", help="Stop after S seconds (0: never).")
@click.option("--trial_seconds", default=0.0, metavar="S", help="Stop a candidate after S seconds [4 times the original's].")
@click.pass_obj
def command(
    console: Console, file: str, run_: str, test: str, output: str, jobs: int, seconds: float, trial_seconds: float
) -> int:
    """Reduce, and print the rest."""
    predicate = predicate_of(run_, test, file)
    if min(jobs, seconds, trial_seconds) < 0:
        raise UsageError("--jobs, --seconds and --trial_seconds must be at least 0")
    output = output or default_output(file)
    if os.path.exists(output) and os.path.exists(file) and os.path.samefile(output, file):
        raise UsageError("--output is the input file, which must stay")
    check_writable(output, "output")
    if is_llvm_ir(file):
        return reduce_llvm(console, file, predicate, output)
    if file.endswith(".mlir"):
        return _reduce_kernel(console, file, predicate, Plan(output, jobs or available_cores(), seconds, trial_seconds))
    module = read(file, verify=False)
    # A trial has no supervisor, which would see to --timeout.
    trial_seconds = trial_seconds or (predicate.timeout_seconds if isinstance(predicate, RunPredicate) else 0.0)
    plan = Plan(output, jobs or available_cores(), seconds, trial_seconds)
    with trial_folder() as folder, Progress(console.err, shows_progress()) as progress:
        reducer = Reducer(predicate, plan, folder, progress)
        found = reducer.start(module, file)
        if not found:
            progress.tell(f"{file} does not fail: {predicate.command(file)}")
            return 1
        if found != INTERESTING:
            progress.tell(f"the failure to keep: {found}")
        state = reducer.reduce()
        other = reducer.recheck()
    _report(console, state, predicate.command(output), output, isinstance(predicate, RunPredicate), other)
    return 0


def _reduce_kernel(console: Console, file: str, predicate: Predicate, plan: Plan) -> int:
    """Reduce a dump of kernel IR, and print the rest."""
    from hlo_run.triage.kernel_predicate import KernelPredicate
    from hlo_run.triage.reduce_kernel import KernelReducer

    text = read_text(file, "kernel IR")
    asked = KernelPredicate(predicate) if isinstance(predicate, RunPredicate) else predicate
    with trial_folder() as folder, Progress(console.err, shows_progress()) as progress:
        reducer = KernelReducer(asked, plan.output, folder, plan.jobs, plan.seconds, progress)
        found = reducer.start(text, file, plan.trial_seconds)
        if not found:
            progress.tell(f"{file} does not fail: {asked.command(file)}")
            return 1
        if found != INTERESTING:
            progress.tell(f"the failure to keep: {found}")
        state = reducer.reduce()
    end = "" if state.finished else ", stopped by --seconds"
    console.out(
        f"{plan.output}: {state.size[0]} of {state.first[0]} operations; {state.trials} candidates, {state.seconds:.1f} s{end}"
    )
    console.out(f"{_fails_again(isinstance(predicate, RunPredicate))}: {asked.command(plan.output)}")
    return 0


def _report(console: Console, state: Reduction, command_line: str, output: str, is_run: bool, other: str) -> None:
    before, after = state.first, state.size
    end = "" if state.finished else ", stopped by --seconds"
    console.out(
        f"{output}: {after[1]} of {before[1]} instructions, {after[3]} of {before[3]} elements;"
        f" {state.asked} of {state.trials} candidates were valid and smaller, {state.seconds:.1f} s{end}"
    )
    if other:
        console.out(f"The failure is flaky: asked again, {output} ends otherwise ({other}): {command_line}")
        return
    console.out(f"{_fails_again(is_run)}: {command_line}")


def _fails_again(is_run: bool) -> str:
    return "It fails in the same way" if is_run else "It is interesting"
