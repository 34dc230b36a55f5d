"""Compare the planned memory of compiled modules with that of real XLA:GPU.

    python benchmarks/planned_memory.py FOLDER "PYTHON COMPILE_GPU.py"

For every `.hlo` file of FOLDER it prints the bytes of all allocations that the file's schedule needs (parameters, constants,
results, temporaries), ours and XLA's, and their ratio. Optimised modules with their schedule (`is_scheduled=true`) are compared
on exactly this schedule: the command is called with `FILE .. --as-is --json OUT`, and `memory.total` of each module in OUT is
XLA's figure. The output is Markdown.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import tempfile
from pathlib import Path

import hlo_run
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import optimize
from hlo_run.runtime.buffers import assign_buffers
from hlo_run.target import preset


def _ours(file: Path) -> int:
    module = hlo_run.parse(file.read_text())
    optimize(PassContext(preset("h100"), Options()), module)
    return sum(allocation.size_bytes for allocation in assign_buffers(module).allocations)


def _xlas(command: str, files: list[Path]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.json"
        arguments = [*shlex.split(command), *map(str, files), "--as-is", "--json", str(out)]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
        modules = json.loads(out.read_text())["modules"]
    return {name.removesuffix(".hlo"): record["memory"]["total"] for name, record in modules.items() if record["ok"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("command", help="compiles with real XLA:GPU, for example 'python compile_gpu.py'")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.hlo"))
    expected = _xlas(options.command, files)
    print("| module | ours, bytes | XLA, bytes | ratio |\n| --- | ---: | ---: | ---: |")
    ratios: list[float] = []
    for file in files:
        name = file.name.removesuffix(".hlo")
        if name in expected:
            ours = _ours(file)
            ratios.append(ours / expected[name])
            print(f"| {name} | {ours} | {expected[name]} | {ratios[-1]:.4f} |")
    within = sum(ratio <= 1.05 for ratio in ratios)
    print(f"\n{len(ratios)} modules, {within} at most 1.05, worst {max(ratios):.4f}")


if __name__ == "__main__":
    main()
