"""Time the default command of two checkouts over programs, in turns: processor seconds, and the geometric mean of the ratios.

python3 scripts/venv.py python benchmarks/verdict.py --beside CHECKOUT [--rounds N] [--every N] [--match TEXT] [--warm] FOLDER...

The command is `hlo-run --platform=Host --cache=off FILE`. Each row has the least of the rounds, with the processes that the
command starts. The sources are compiled to byte code before. The exit codes may differ, as one checkout may see what the other
does not; they are shown then. With `--warm` the compiled modules come from a cache that an unmeasured run has filled.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ("--platform=Host",)
# The exit codes of a verdict: the results agree, or differ.
_VERDICTS = (0, 1)


@dataclass(frozen=True)
class _Tree:
    """A checkout, the cache of its commands, and the processor seconds that one of them may take."""

    path: Path
    cache: str
    limit: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--beside", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only every n-th file of a folder")
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="processor seconds for one command; files that need more are left out"
    )
    parser.add_argument("--warm", action="store_true", help="measure commands that find the compiled module in the cache")
    arguments = parser.parse_args()
    files = {
        folder: sorted(f for f in folder.glob("*.hlo") if re.search(arguments.match, f.name))[:: arguments.every]
        for folder in arguments.folders
    }
    ratios: list[float] = []
    print(f"{'file':<52}{'before':>8}{'now':>8}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/byte_code"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        caches = [f"{folder}/{name}" if arguments.warm else "off" for name in ("before", "now")]
        trees = [_Tree(arguments.beside.resolve(), caches[0], arguments.timeout), _Tree(ROOT, caches[1], arguments.timeout)]
        for tree in trees:
            _run(next(file for some in files.values() for file in some), tree)
        for folder_of_files, some in files.items():
            rows = [_row(file, trees, arguments.rounds, arguments.warm) for file in some]
            known = [ratio for ratio in rows if ratio is not None]
            if known:
                print(f"{f'{folder_of_files.name}: geometric mean of {len(known)} files':<68}{_mean(known):7.2f}", flush=True)
            ratios += known
    if ratios:
        print(f"{f'all: geometric mean of {len(ratios)} files':<68}{_mean(ratios):7.2f}, largest {max(ratios):.2f}")


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _row(file: Path, trees: Sequence[_Tree], rounds: int, warm: bool) -> float | None:
    """Print the row of a file, and return the ratio; None if a command does not end with a verdict."""
    best, codes = [math.inf, math.inf], [0, 0]
    for turn in range(-1 if warm else 0, rounds):
        for number, tree in enumerate(trees):
            seconds, codes[number] = _run(file, tree)
            if turn < 0:
                continue
            best[number] = min(best[number], seconds)
        if not all(code in _VERDICTS for code in codes):
            print(f"{file.name:<52} left out: exit codes {codes[0]} and {codes[1]}", flush=True)
            return None
    ratio = best[1] / best[0]
    note = "" if codes[0] == codes[1] else f"  exit codes {codes[0]} and {codes[1]}"
    print(f"{file.name:<52}{best[0]:8.2f}{best[1]:8.2f}{ratio:7.2f}{note}", flush=True)
    return ratio


def _run(file: Path, tree: _Tree) -> tuple[float, int]:
    """Return the processor seconds of the command, children included, and its exit code."""

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(tree.limit), math.ceil(tree.limit) + 5))

    process = subprocess.Popen(
        [sys.executable, "-m", "hlo_run", *FLAGS, f"--cache={tree.cache}", str(file.resolve())],
        cwd=tree.path,
        env={**os.environ, "PYTHONPATH": str(tree.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=restrict,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    return usage.ru_utime + usage.ru_stime, process.returncode


if __name__ == "__main__":
    main()
