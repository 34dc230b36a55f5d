"""`hlo-fuzz`, also `hlo-tool fuzz`: random valid modules against the reference, Host's engines and real XLA.

`hlo_run.fuzz` generates one module per seed, or mutates given modules. A module fails if compiling or running raises, crashes
or takes too long, if a result is not the one that the generator predicts, if a call with an effect happens too often or not
at all, or if a judge of `--against` disagrees.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from hlo_run.containment.progress import Progress, shows_progress
from hlo_run.errors import HloRunError, Mismatch, UsageError
from hlo_run.execution.console import Console
from hlo_run.execution.output_files import check_writable
from hlo_run.fuzz.check import Outcome
from hlo_run.fuzz.hunt import Hunt, Plan
from hlo_run.fuzz.judges import JUDGES, SHARDED, parse_against
from hlo_run.fuzz.subjects import Sources
from hlo_run.records import replace
from hlo_run.whole_files import write_whole

_REPORT_EVERY = 500
_LIMIT_SECONDS = 120.0
_SUFFIXES = frozenset((".hlo", ".txt", ".pb", ".mlir", ".hlox"))
_MOST_INSTRUCTIONS = 250
_HELP = f"""Check random modules, and group and reduce what fails.

\b
Examples:
  hlo-fuzz                        1000 modules
  hlo-fuzz --time=600 --keep=DIR  ten minutes; failures go
                                  to DIR, reduced
  hlo-fuzz --seed=7 --count=1     one module again
  hlo-fuzz --against=xla-cpu DIR  mutate the modules in DIR,
                                  compare with XLA:CPU
  hlo-fuzz --against=shardings    divide modules between 4
                                  or 8 devices

Without MODULES a generator makes one module per seed. MODULES (files or directories) are mutated to other valid modules; one
seed in four is still the generator's. --against takes a list with commas of
{", ".join(JUDGES)}.
They compare Host with the numpy reference; what every HLO row rewrites, alone, before and after the row; Host's two engines
bit for bit, and the optimised pipeline with the required rows alone; the module divided between the partitions of a random
mesh, by random shardings of GSPMD or Shardy, with the whole one, in the reference or on Host; the values of real XLA:CPU; a
compilation with real XLA:GPU, whose optimised module must mean what the module means. The judges of shardings go without the
others. With --keep, failures are reduced at once. Exit codes: 0 nothing found, 1 found, 2 bad flags or a missing extra, 130
Ctrl-C (with the summary)."""


@click.command("fuzz", help=_HELP)
@click.argument("modules", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="The seed of the first module; the next ones follow.")
@click.option("--count", type=click.IntRange(1), help="The number of modules [1000; with --time: no limit].")
@click.option("--time", "seconds", type=click.FloatRange(0), default=0.0, help="End after this many seconds (0: no limit).")
@click.option("--against", default="reference", show_default=True, help=f"The judges, with commas: {', '.join(JUDGES)}.")
@click.option("--as_is", is_flag=True, help="Check MODULES as they are, with arguments of three kinds.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="The number of processes.")
@click.option(
    "--limit", type=click.FloatRange(0), default=_LIMIT_SECONDS, show_default=True, help="The seconds that a module may take."
)
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), help="Reduce failures, and write them to this directory."
)
@click.option(
    "--reduce_seconds", type=click.FloatRange(0), default=60.0, show_default=True, help="The seconds for each reduction."
)
@click.option("--report_json", default="", metavar="FILE", help="Write the findings to a JSON file.")
@click.option("--verify", type=click.Choice(["every", "ends", "off"]), default="every", show_default=True, help="As in hlo-run.")
@click.option("--host_engine", type=click.Choice(["auto", "jit", "emulator"]), default="auto", help="As in hlo-run.")
@click.pass_obj
def command(
    console: Console,
    modules: tuple[Path, ...],
    seed: int,
    count: int | None,
    seconds: float,
    against: str,
    as_is: bool,
    jobs: int,
    limit: float,
    keep: Path | None,
    reduce_seconds: float,
    report_json: str,
    verify: str,
    host_engine: str,
) -> int:
    """Print each failure and a table of the buckets. Return 1 if a module failed, else 0."""
    begin = time.monotonic()
    judges = parse_against(against)
    if report_json:
        check_writable(report_json, "report_json")
    sources = replace(_sources(console, modules, as_is, seed), sharded=bool(SHARDED & set(judges)))
    if as_is:
        count = len(sources.given)
    elif count is None and not seconds:
        count = 1000
    seconds_left = max(0.01, seconds - (time.monotonic() - begin)) if seconds else 0.0
    plan = Plan(seed, count, jobs, limit, verify, host_engine, seconds_left, judges, sources)
    done = failed = 0

    def tell(outcome: Outcome) -> None:
        nonlocal done, failed
        done += 1
        failed += bool(outcome.faults)
        progress.doing = f"{done} modules, {failed} failures"
        if done % _REPORT_EVERY == 0:
            progress.tell(f"{done} modules done")
        for fault in outcome.faults:
            source = f" ({outcome.subject.source})" if outcome.subject.source else ""
            progress.clear()
            console.out(f"seed {outcome.subject.seed}{source}: {fault.kind}: {fault.signature.bucket}")

    reduce = None
    if keep is not None:
        from hlo_run.triage.fuzzed import Keeper

        flags = [f"--verify={verify}", *([f"--host_engine={host_engine}"] if host_engine != "auto" else [])]
        flags += [f"--limit={limit:g}"] if limit != _LIMIT_SECONDS else []
        given = [] if as_is else list(map(str, modules))
        reduce = Keeper(keep, verify, host_engine, judges, reduce_seconds, flags, given).reduce
    progress = Progress(console.err, shows_progress())
    hunt = Hunt(plan, tell, reduce, progress)
    is_stopped = False
    try:
        with progress:
            hunt.run()
    except KeyboardInterrupt:
        is_stopped = True
    findings = hunt.findings
    console.out("\n".join(findings.lines()))
    share = findings.processor_seconds / max(1, sum(findings.kinds.values()))
    console.out(f"{time.monotonic() - begin:.0f} s, {share:.3f} s of one processor per module")
    if report_json:
        record = {"against": list(judges), "seed": seed, **findings.record()}
        write_whole(report_json, (json.dumps(record, indent=1) + "\n").encode())
    if is_stopped:
        raise KeyboardInterrupt
    return Mismatch.exit_code if findings.kinds["failed"] else 0


def _sources(console: Console, modules: tuple[Path, ...], as_is: bool, seed: int) -> Sources:
    """Read the given modules. Modules that hlo-run does not read or that are too large to mutate are left out, with a message."""
    if not modules:
        if as_is:
            raise UsageError("--as_is needs modules", hint="hlo-fuzz --as_is FILE")
        return Sources()
    from hlo_run.fuzz.mutations.mutate import prepared
    from hlo_run.hlo.printer import FULL, module_to_string
    from hlo_run.tools.read import read

    files = [file for path in modules for file in (_files(path) if path.is_dir() else [path])]
    given: list[tuple[str, str]] = []
    for file in files:
        try:
            module = read(str(file))
        except HloRunError as error:
            console.err(f"{file} is left out: {error}")
            continue
        count = sum(1 for _ in module.instructions)
        if not as_is and count > _MOST_INSTRUCTIONS:
            console.err(f"{file} is left out: it has {count} instructions, and at most {_MOST_INSTRUCTIONS} are mutated")
            continue
        given.append((str(file), module_to_string(module, FULL) if as_is else prepared(module)))
    if not given:
        raise UsageError("none of the modules can be used")
    return Sources(tuple(given), as_is, seed)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
