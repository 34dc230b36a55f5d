"""Generate random modules and compare the whole pipeline, on Host, with the reference. Failures are printed and kept.

    python3 scripts/venv.py python scripts/fuzz_pipeline.py [--count N] [--seed N] [--jobs N] [--limit SECONDS] [--keep FOLDER]
                                                            [--verify every|ends|off] [--engine jit|emulator|auto]

`hlo_run.fuzz` generates one module per seed. A module fails if compiling or running raises, crashes or takes too long, if a
result is not the one that the generator predicts, or if a call with an effect happens too often or not at all. Failures are
grouped by their signature. The exit code is 1 if any module failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from hlo_run.fuzz.check import Outcome
from hlo_run.fuzz.generate import random_module
from hlo_run.fuzz.hunt import Plan, hunt

_REPORT_EVERY = 500


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--verify", default="every")
    parser.add_argument("--engine", default="auto")
    arguments = parser.parse_args()

    done = 0

    def tell(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if done % _REPORT_EVERY == 0:
            print(f"{done} modules done", flush=True)
        if outcome.kind == "ok":
            return
        print(f"seed {outcome.seed}: {outcome.kind}: {outcome.signature}", flush=True)
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            stem = arguments.keep / f"seed_{outcome.seed}"
            stem.with_suffix(".hlo").write_text(random_module(outcome.seed).text)
            stem.with_suffix(".txt").write_text(f"{outcome.signature}\n{outcome.details}\n")

    plan = Plan(arguments.seed, arguments.count, arguments.jobs, arguments.limit, arguments.verify, arguments.engine)
    begin = time.monotonic()
    findings = hunt(plan, tell)
    print("\n".join(findings.lines()))
    share = findings.processor_seconds / max(1, sum(findings.kinds.values()))
    print(f"{time.monotonic() - begin:.0f} s, {share:.3f} s of one processor per module")
    return 1 if findings.kinds["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
