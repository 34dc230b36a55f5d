"""Time whole modules on Host against real XLA:CPU: compiling, JIT, and warm runs.

    python3 scripts/venv.py python benchmarks/models.py FOLDER|FILE... [--xla "PYTHON RUN_CPU.py"] [--match RE]
        [--iterations N] [--engine jit|auto|emulator] [--processor_time]

Every module is compiled once and run once (the first run also makes native code), then N times in turns with XLA:CPU on the same
arguments. The table has medians and least times; the latter estimate an idle machine. Our times include handing over arguments
and results; XLA's do not, as they are already in its memory. The modules are sorted by XLA's time. The geometric mean of the
ratios is over modules for which XLA needs 5 ms or more.

With `--processor_time` both sides have one core, and the times are processor time: an estimate of an idle machine on which other
programs run as well.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hlo_run
from hlo_run.backends.host.backend import HostBackend
from hlo_run.cache import choose_cache
from hlo_run.errors import HloRunError
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.values import Array, Value
from hlo_run.target import DEFAULT_TARGET, preset

_LARGE_SECONDS = 5e-3


@dataclass(frozen=True)
class Times:
    """Seconds of one module: our compiling, the first run beyond the others, our runs, XLA's runs (NaN if not measured)."""

    name: str
    compiling: float
    jit: float
    our_runs: tuple[float, ...]
    their_runs: tuple[float, ...]

    @property
    def ours(self) -> float:
        return statistics.median(self.our_runs)

    @property
    def theirs(self) -> float:
        return statistics.median(self.their_runs)

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def least_ratio(self) -> float:
        return min(self.our_runs) / min(self.their_runs)


def main() -> int:
    """Print the table. The exit code is 1 if a module does not run."""
    choose_cache("off")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="FOLDER|FILE")
    parser.add_argument("--xla", default="", help='how to run real XLA:CPU: "PYTHON RUN_CPU.py"')
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--engine", default="jit")
    parser.add_argument("--processor_time", action="store_true")
    options = parser.parse_args()
    if options.processor_time:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    clock = time.process_time if options.processor_time else time.perf_counter
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
    tool: Any = importlib.import_module("xla_cpu")
    xla = tool.XlaCpu(options.xla, processor_time=options.processor_time) if options.xla else None
    rows: list[Times] = []
    failed = 0
    for path in _files(options.paths, options.match):
        try:
            rows.append(measure(path, xla, options.iterations, options.engine, clock))
        except (HloRunError, tool.XlaError) as error:
            failed += 1
            print(f"{path.stem}: {error}", file=sys.stderr, flush=True)
            continue
        print(_row(rows[-1]), file=sys.stderr, flush=True)
    if xla is not None:
        xla.stop()
    _print_table(rows)
    return int(failed > 0)


def _files(paths: Iterable[Path], match: str) -> list[Path]:
    files = [file for path in paths for file in (sorted(path.glob("*.hlo")) if path.is_dir() else [path])]
    return [file for file in files if re.search(match, file.name)]


def measure(path: Path, xla: Any, iterations: int, engine: str, clock: Callable[[], float]) -> Times:
    """Return the times of one module by `clock`. Raises HloRunError, or the XLA tool's error."""
    text = path.read_text(encoding="utf-8")
    module = hlo_run.parse(text, path.name)
    values = make_fake_arguments(module, 1)
    begin = time.perf_counter()
    executable = compile_module(PassContext(preset(DEFAULT_TARGET), Options(), ()), wrap_bare_module(module.clone()))
    compiling = time.perf_counter() - begin
    backend = HostBackend(engine=engine)
    first = _seconds(backend, executable, values, clock)
    ours: list[float] = []
    theirs: list[float] = []
    flat = [leaf for value in values for leaf in _flat(value)]
    for _ in range(2):
        if xla is not None:
            theirs += xla.run(text, flat, repeat=iterations // 2, round_each_op=False).seconds
        ours += [_seconds(backend, executable, values, clock) for _ in range(iterations // 2)]
    return Times(path.stem, compiling, first - statistics.median(ours), tuple(ours), tuple(theirs or [math.nan]))


def _seconds(backend: HostBackend, executable: Any, values: list[Value], clock: Callable[[], float]) -> float:
    begin = clock()
    backend.run(executable, values)
    return clock() - begin


def _flat(value: Value) -> list[Array]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]


def _row(times: Times) -> str:
    run = f"{1e3 * times.theirs:.2f} | {1e3 * times.ours:.2f} | {times.ratio:.1f}"
    least = f"{1e3 * min(times.their_runs):.2f} | {1e3 * min(times.our_runs):.2f} | {times.least_ratio:.1f}"
    return f"| {times.name} | {run} | {least} | {times.compiling:.2f} | {times.jit:.2f} |"


def _print_table(rows: list[Times]) -> None:
    print("| module | XLA:CPU ms | Host ms | ratio | least XLA:CPU | least Host | ratio | compile s | JIT s |")
    print("| --- " * 9 + "|")
    for times in sorted(rows, key=lambda times: -times.theirs):
        print(_row(times))
    for what, least in (("all modules", 0.0), (f"XLA:CPU {1e3 * _LARGE_SECONDS:g} ms or more", _LARGE_SECONDS)):
        chosen = [times for times in rows if times.theirs >= least]
        if chosen:
            mean, least_mean = (_mean(ratios) for ratios in zip(*((t.ratio, t.least_ratio) for t in chosen), strict=True))
            worst = max(times.ratio for times in chosen)
            print(
                f"\n{what}: {len(chosen)} modules, geometric mean {mean:.2f}, worst {worst:.1f}; of least times {least_mean:.2f}"
            )


def _mean(ratios: Iterable[float]) -> float:
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


if __name__ == "__main__":
    raise SystemExit(main())
