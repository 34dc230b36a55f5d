"""Time whole commands: seconds (minimum, median, maximum) and peak memory of each.

python3 scripts/venv.py python benchmarks/commands.py [--repeat N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    ("--help",),
    ("--stage=hlo-input", "examples/gelu.hlo"),
    ("--stage=ptx", "examples/gelu.hlo"),
    ("--stage=ptx", "examples/transpose.hlo"),
    ("examples/gelu.hlo",),
    ("examples/transpose.hlo",),
    ("--platform=Interpreter", "--reference_platform=", "examples/gelu.hlo"),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    print(f"{'command':<60}{'min s':>8}{'median':>8}{'max':>8}{'peak MiB':>10}")
    for command in COMMANDS:
        runs = [_run(command) for _ in range(repeat)]
        seconds = [run[0] for run in runs]
        peak = max(run[1] for run in runs)
        columns = f"{min(seconds):8.2f}{statistics.median(seconds):8.2f}{max(seconds):8.2f}{peak:10.0f}"
        print(f"{'hlo-run ' + ' '.join(command):<60}{columns}", flush=True)


def _run(command: tuple[str, ...]) -> tuple[float, float]:
    """Return seconds and peak memory in MiB of one process; stops if it fails."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "hlo_run", *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"hlo-run {' '.join(command)} failed:\n{errors}")
    return seconds, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
