"""Time whole commands: processor seconds and wall seconds (least and median), and peak memory.

python3 scripts/venv.py python benchmarks/commands.py [--repeat N] [--beside CHECKOUT]

Rows marked `warm` run after a run that filled the cache, the others without a cache. With `--beside` every command runs in turns
with the package of another checkout; the ratio is our processor time to that of the other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OFF, WARM = "off", "warm"
COMMANDS = (
    (OFF, "--help"),
    (OFF, "--stage=hlo-input", "examples/gelu.hlo"),
    (OFF, "--stage=hlo", "examples/gelu.hlo"),
    (OFF, "--stage=ptx", "examples/gelu.hlo"),
    (WARM, "--stage=ptx", "examples/gelu.hlo"),
    (OFF, "--stage=ptx", "examples/transpose.hlo"),
    (OFF, "examples/gelu.hlo"),
    (WARM, "examples/gelu.hlo"),
    (OFF, "examples/transpose.hlo"),
    (WARM, "examples/transpose.hlo"),
    (OFF, "--platform=Interpreter", "--reference_platform=", "examples/gelu.hlo"),
)


@dataclass(frozen=True)
class _Process:
    """The cost of one process. Processor time includes its children."""

    processor_seconds: float
    wall_seconds: float
    peak_mib: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--beside", type=Path, default=None)
    arguments = parser.parse_args()
    trees = [ROOT] if arguments.beside is None else [ROOT, arguments.beside.resolve()]
    print(
        f"{'command':<66}{'cpu s':>7}{'median':>8}{'wall s':>8}{'median':>8}{'MiB':>6}" + ("   ratio" if len(trees) > 1 else "")
    )
    with tempfile.TemporaryDirectory() as folder:
        for cache, *command in COMMANDS:
            _row(cache, command, trees, Path(folder), arguments.repeat)


def _row(cache: str, command: list[str], trees: list[Path], folder: Path, repeat: int) -> None:
    def run(number: int) -> _Process:
        place = OFF if cache == OFF else str(folder / str(number))
        return _run([f"--cache={place}", *command], trees[number])

    for number in range(len(trees)):
        run(number)  # fills the cache, and compiles the sources to byte code
    runs = [[run(number) for number in range(len(trees))] for _ in range(repeat)]
    ours = [each[0] for each in runs]
    processor = [process.processor_seconds for process in ours]
    wall = [process.wall_seconds for process in ours]
    columns = f"{min(processor):7.2f}{statistics.median(processor):8.2f}{min(wall):8.2f}{statistics.median(wall):8.2f}"
    columns += f"{max(process.peak_mib for process in ours):6.0f}"
    if len(trees) > 1:
        columns += f"{min(processor) / min(each[1].processor_seconds for each in runs):8.2f}"
    name = " ".join(["hlo-run", *command, *(["(warm)"] if cache == WARM else [])])
    print(f"{name:<66}{columns}", flush=True)


def _run(command: list[str], tree: Path) -> _Process:
    """Run one process with the package of `tree`. Exits if the process fails."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "hlo_run", *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"hlo-run {' '.join(command)} failed:\n{errors}")
    return _Process(usage.ru_utime + usage.ru_stime, seconds, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
