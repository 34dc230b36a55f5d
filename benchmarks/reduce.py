"""Plant faults in modules, reduce the failures with `hlo-tool reduce`, and print what is left of each as a Markdown table.

    python3 scripts/venv.py python benchmarks/reduce.py FOLDER... [--count N] [--seconds S] [--jobs N] [--seed N]

A fault is a Python file that `hlo-run --custom_calls` runs. It makes one opcode's lowering wrong, makes it raise or crash, or
makes a pass swap the operands of subtractions. Modules are drawn from the folders' .hlo files with `--seed`. A module that does
not fail with the fault drawn for it is replaced by another one.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_AS = "from hlo_run.codegen.elemental.elementwise import EMIT\nEMIT[{0!r}] = EMIT[{1!r}]\n"
_ON = """
import os, signal
from hlo_run.codegen.elemental.elementwise import EMIT
emit = EMIT[{0!r}]
def wrong(b, instruction, operands):
    {1}
    return emit(b, instruction, operands)
EMIT[{0!r}] = wrong
"""
_PASS = """
from hlo_run.hlo_passes.simplifiers.hlo_cse import HloCse as Pass
apply, done = Pass.apply, set()
def wrong(self, ctx, module):
    apply(self, ctx, module)
    for found in module.instructions_of("subtract"):
        if found.name not in done:
            done.add(found.name)
            found.operands = found.operands[::-1]
Pass.apply = wrong
"""
FAULTS = {
    "rsqrt is lowered as sqrt": _AS.format("rsqrt", "sqrt"),
    "maximum is lowered as minimum": _AS.format("maximum", "minimum"),
    "divide is lowered as multiply": _AS.format("divide", "multiply"),
    "subtract is lowered as add": _AS.format("subtract", "add"),
    "exponential is lowered as cosine": _AS.format("exponential", "cosine"),
    "the lowering of compare raises": _ON.format("compare", "raise LookupError(instruction.name)"),
    "the lowering of select crashes": _ON.format("select", "os.kill(os.getpid(), signal.SIGSEGV)"),
    "cse swaps the operands of subtract": _PASS,
}
_LINE = re.compile(
    r": (\d+) of (\d+) instructions, (\d+) of (\d+) elements; (\d+) of (\d+) candidates .*?, ([\d.]+) s(.*)$", re.M
)


def main() -> int:
    """Print one row per module, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=int, default=100, help="the least number of lines of a module")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    files = [file for folder in arguments.folders for file in sorted(folder.glob("*.hlo")) if _lines(file) >= arguments.least]
    draw.shuffle(files)
    print("| module | fault | instructions | left | elements left | candidates | seconds |\n" + "| --- " * 7 + "|", flush=True)
    left: list[int] = []
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            if len(left) == arguments.count:
                break
            fault = draw.choice(list(FAULTS))
            row = _reduce(file, fault, Path(folder), arguments)
            if row is None:
                continue
            left.append(int(row[1]))
            seconds.append(float(row[7]))
            over = " (stopped)" if row[8] else ""
            print(f"| {file.stem} | {fault} | {row[2]} | {row[1]} | {row[3]} | {row[6]} | {row[7]}{over} |", flush=True)
    if left:
        few = sum(count <= 10 for count in left)
        print(f"\n{len(left)} modules: median {statistics.median(left):g} instructions in {statistics.median(seconds):.0f} s;")
        print(f"{few} have 10 or fewer, the largest has {max(left)}.")
    return 0


def _lines(file: Path) -> int:
    return file.read_text(encoding="utf-8").count(" = ")


def _reduce(file: Path, fault: str, folder: Path, arguments: argparse.Namespace) -> re.Match[str] | None:
    """Return the numbers of the tool's last lines; None if the module does not fail with the fault."""
    plant, output = folder / "plant.py", folder / "reduced.hlo"
    plant.write_text(FAULTS[fault], encoding="utf-8")
    tool = [sys.executable, "-c", "from hlo_run.tool import main; main()", "reduce", str(file), f"--output={output}"]
    flags = [
        f"--jobs={arguments.jobs}",
        f"--seconds={arguments.seconds}",
        f"--run=hlo-run --platform=Host --custom_calls={plant}",
    ]
    begin = time.monotonic()
    done = subprocess.run([*tool, *flags], capture_output=True, text=True, check=False)
    found = _LINE.search(done.stdout)
    if found is None and done.returncode != 1:
        print(
            f"{file}: {fault}: exit code {done.returncode} after {time.monotonic() - begin:.0f} s\n{done.stderr}", file=sys.stderr
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
