"""`hlo-fuzz`, also `hlo-tool fuzz`: random valid modules through the whole pipeline, on Host, against the reference.

`hlo_run.fuzz` generates one module per seed. A module fails if compiling or running raises, crashes or takes too long, if a
result is not the one that the generator predicts, or if a call with an effect happens too often or not at all.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from hlo_run.errors import Mismatch
from hlo_run.execution.console import Console
from hlo_run.fuzz.check import Outcome
from hlo_run.fuzz.generate import random_module
from hlo_run.fuzz.hunt import Plan, hunt
from hlo_run.whole_files import write_whole

_REPORT_EVERY = 500
_HELP = """Generate random modules, run them on Host, compare with the reference, and group the failures.

\b
Examples:
  hlo-fuzz                             1000 modules
  hlo-fuzz --time=600 --count=1000000  ten minutes
  hlo-fuzz --seed=7 --count=1          one module again
  hlo-fuzz --keep=DIR                  write the modules that fail to DIR
  hlo-tool reduce DIR/seed_7.hlo --run='hlo-run --platform=Host'

Exit codes: 0 every module agrees, 1 a module fails, 2 bad flags."""


@click.command("fuzz", help=_HELP)
@click.option("--seed", default=0, show_default=True, help="The seed of the first module; the next ones follow.")
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True, help="The number of modules.")
@click.option(
    "--time", "seconds", type=click.FloatRange(0), default=0.0, help="Begin no module after this many seconds (0: no limit)."
)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="The number of processes.")
@click.option("--limit", type=click.FloatRange(0), default=120.0, show_default=True, help="The seconds that a module may take.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Write the modules that fail to this directory.")
@click.option("--verify", type=click.Choice(["every", "ends", "off"]), default="every", show_default=True, help="As in hlo-run.")
@click.option("--host_engine", type=click.Choice(["auto", "jit", "emulator"]), default="auto", help="As in hlo-run.")
@click.pass_obj
def command(
    console: Console,
    seed: int,
    count: int,
    seconds: float,
    jobs: int,
    limit: float,
    keep: Path | None,
    verify: str,
    host_engine: str,
) -> int:
    """Print each failure and a table of their signatures. Return 1 if a module failed, else 0."""
    done = 0

    def tell(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if done % _REPORT_EVERY == 0:
            console.err(f"{done} modules done")
        if outcome.kind == "ok":
            return
        console.out(f"seed {outcome.seed}: {outcome.kind}: {outcome.signature}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            write_whole(str(keep / f"seed_{outcome.seed}.hlo"), random_module(outcome.seed).text.encode())
            write_whole(str(keep / f"seed_{outcome.seed}.txt"), f"{outcome.signature}\n{outcome.details}\n".encode())

    begin = time.monotonic()
    findings = hunt(Plan(seed, count, jobs, limit, verify, host_engine, seconds), tell)
    console.out("\n".join(findings.lines()))
    share = findings.processor_seconds / max(1, sum(findings.kinds.values()))
    console.out(f"{time.monotonic() - begin:.0f} s, {share:.3f} s of one processor per module")
    return Mismatch.exit_code if findings.kinds["failed"] else 0
