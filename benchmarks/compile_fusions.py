"""Time the compilation of fusions to PTX on one core: CPU milliseconds per kernel, and the share of every row.

python3 scripts/venv.py python benchmarks/compile_fusions.py FOLDER [--match RE] [--target h100] [--repeat N]

Unsupported modules are left out. ptxas is a separate process and does not count. Each kernel's time is the least of its
repetitions. One kernel is compiled before the measurement, because the first kernel of the process loads libdevice.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from pathlib import Path

import hlo_run
from hlo_run.cache import choose_cache
from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.observers.timing import TimingObserver
from hlo_run.target import preset

_WARM_UP = "ENTRY e { p = f32[64] parameter(0)\n ROOT t = f32[64] tanh(p) }"
_SHOWN_ROWS = 12


def main() -> None:
    """Print the table."""
    choose_cache("off")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="")
    parser.add_argument("--target", default="h100")
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    timing = TimingObserver()
    ctx = PassContext(preset(arguments.target), Options(compile_processes=1), (timing,))
    compile_module(PassContext(ctx.target, ctx.options), hlo_run.parse(_WARM_UP))
    times: dict[str, float] = {}
    for file in sorted(f for f in arguments.folder.glob("*.hlo") if re.search(arguments.match, f.name)):
        try:
            module = wrap_bare_module(hlo_run.parse(file.read_text(encoding="utf-8"), file.name))
            times[file.name] = min(_milliseconds_per_kernel(ctx, module) for _ in range(arguments.repeat))
        except HloRunError:
            continue
    print(f"{len(times)} modules; CPU milliseconds per kernel: mean {statistics.mean(times.values()):.0f}, ", end="")
    print(f"median {statistics.median(times.values()):.0f}, {sum(t > 150 for t in times.values())} modules over 150; slowest:")
    for name in sorted(times, key=lambda name: -times[name])[:8]:
        print(f"{times[name]:8.0f}  {name}")
    total = sum(timing.seconds.values())
    rows = sorted(timing.seconds, key=lambda row: -timing.seconds[row])[:_SHOWN_ROWS]
    for row in rows:
        print(f"{timing.seconds[row] / total:7.1%}  {' '.join(row)}")


def _milliseconds_per_kernel(ctx: PassContext, module: HloModule) -> float:
    begin = time.process_time()
    executable = compile_module(ctx, module.clone())
    return (time.process_time() - begin) * 1e3 / max(len(executable.kernels), 1)


if __name__ == "__main__":
    main()
