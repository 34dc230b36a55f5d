"""Time compiling whole modules, HLO text to PTX, against real XLA:GPU: cold, by stage and row, and from the cache.

    python3 scripts/venv.py python benchmarks/compile_models.py FOLDER|FILE... [--xla "PYTHON COMPILE_GPU.py"] [--match RE]
        [--rounds N] [--with-triton] [--rows | --whole]

Every compilation is a process of its own, in turns with XLA's. The figures are the least processor time of all rounds, as other
programs do not affect it; the time of ptxas is in brackets. Start-up (imports, the plugin) does not count on either side. Our
side compiles kernels in one process, so its processor time is complete. The second run finds its executable in the cache. XLA
compiles with native emitters unless `--with-triton`. `--rows` adds a table of all rows, summed over the modules.

`--whole` measures whole processes instead, with their imports, and separates columns by tabs. Ours has no kernels in its cache,
but the part of libdevice that kernels use. ptxas does not count.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_XLA_FLAGS = "--xla_gpu_autotune_level=0"
_NO_TRITON = "--xla_gpu_enable_triton_gemm=false --xla_disable_hlo_passes=triton-softmax-rewriter,fusion-block-level-rewriter"
_STAGES = ("parse", "hlo", "kernel", "llvm", "ptx", "rest")

# Real XLA in its own process, with the tool's folder as its path. It prints a line of the same form as `_worker`.
_XLA_WORKER = """
import json, os, resource, sys, time
from pathlib import Path
folder, target, file = sys.argv[1:]
sys.path.insert(0, folder)
import jaxlib.xla_client as xc
from hlo_proto import Module, expand_fusions, is_fused, parse_to_proto
from pjrt import Plugin
plugin = Plugin()
topology = plugin.topology(Path(folder, "targets", target + ".txtpb").read_text())
text = Path(file).read_text()
def used(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime
own, child, begin = used(resource.RUSAGE_SELF), used(resource.RUSAGE_CHILDREN), time.perf_counter()
proto = parse_to_proto(text)
if is_fused(Module(proto)):
    proto = expand_fusions(proto, keep_entry_layout=True)
plugin.compile(topology, proto, xc.CompileOptions().SerializeAsString())
start, own, child = own, used(resource.RUSAGE_SELF) - own, used(resource.RUSAGE_CHILDREN) - child
print(json.dumps({"own": own, "ptxas": child, "wall": time.perf_counter() - begin, "start": start}), flush=True)
os._exit(0)
"""

# Ours in its own process, which imports nothing else; with the file and the folder of the cache.
_OUR_WORKER = """
import resource, sys
from hlo_run.garbage_collection import collect_seldom
collect_seldom()
from hlo_run.cache import choose_cache
from hlo_run.hlo.text.parser import parse_module
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
file, folder = sys.argv[1:]
choose_cache(folder)
start = used()
with open(file, encoding="utf-8") as text:
    module = wrap_bare_module(parse_module(text.read(), file))
compile_module(PassContext(preset("h100"), Options(compile_processes=1)), module)
print('{"own": %.4f, "start": %.4f}' % (used() - start, start))
"""


@dataclass(frozen=True)
class Times:
    """Processor seconds of one module, the least of all rounds: by stage, by row, and of XLA."""

    name: str
    cold: float
    ptxas: float
    stages: dict[str, float]
    rows: dict[str, float]
    second: float
    xla: float
    xla_ptxas: float


def main() -> int:
    """Print the tables. The exit code is 1 if a module does not compile."""
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(_worker(sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="FOLDER|FILE")
    parser.add_argument("--xla", default="", help='how to run real XLA:GPU: "PYTHON COMPILE_GPU.py"')
    parser.add_argument("--match", default="", help="only files whose name matches this expression")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--with-triton", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--whole", action="store_true", help="measure whole processes with their imports; needs --xla")
    options = parser.parse_args()
    flags = _XLA_FLAGS if options.with_triton else f"{_XLA_FLAGS} {_NO_TRITON}"
    if options.whole:
        return _print_whole(_files(options.paths, options.match), options.xla, flags, options.rounds)
    times: list[Times] = []
    failed = 0
    for path in _files(options.paths, options.match):
        try:
            times.append(measure(path, options.xla, flags, options.rounds))
        except subprocess.CalledProcessError as error:
            failed += 1
            print(f"{path.stem}: {error.stderr.strip().splitlines()[-1:]}", file=sys.stderr, flush=True)
            continue
        print(_row(times[-1]), file=sys.stderr, flush=True)
    _print_modules(times)
    if options.rows:
        _print_rows(times)
    return int(failed > 0)


def _files(paths: Iterable[Path], match: str) -> list[Path]:
    files = [file for path in paths for file in (sorted(path.glob("*.hlo")) if path.is_dir() else [path])]
    return [file for file in files if re.search(match, file.name)]


def measure(path: Path, xla: str, flags: str, rounds: int) -> Times:
    """Return the times of one module. Raises CalledProcessError."""
    cold: list[dict[str, Any]] = []
    second: list[float] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            cold.append(_ours("cold", path, folder))
            second.append(_ours("second", path, folder)["own"])
            if xla:
                theirs.append(_theirs(xla, path, flags))
    best = min(cold, key=lambda run: run["own"])
    xla_own, xla_ptxas = (min((run[key] for run in theirs), default=float("nan")) for key in ("own", "ptxas"))
    ptxas = min(run["ptxas"] for run in cold)
    return Times(path.stem, best["own"], ptxas, best["stages"], best["rows"], min(second), xla_own, xla_ptxas)


def _print_whole(files: list[Path], xla: str, flags: str, rounds: int) -> int:
    """Print the processor seconds of whole processes, ours beside XLA's. Return the exit code, 1 if a module does not compile."""
    print("module\tours\timports of ours\tXLA\tstart of XLA\tratio")
    sums = [0.0, 0.0]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            ours: list[dict[str, float]] = []
            theirs: list[dict[str, float]] = []
            try:
                for _ in range(rounds):
                    theirs.append(_theirs(xla, path, flags))
                    shutil.rmtree(Path(folder, "kernels"), ignore_errors=True)
                    ours.append(_child([sys.executable, "-c", _OUR_WORKER, str(path), folder], dict(os.environ)))
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"{path.stem}: {error.stderr.strip().splitlines()[-1:]}", file=sys.stderr, flush=True)
                continue
            own, other = (min(runs, key=_whole) for runs in (ours, theirs))
            sums = [sums[0] + _whole(own), sums[1] + _whole(other)]
            ratio = _whole(own) / _whole(other)
            row = f"{_whole(own):.2f}\t{own['start']:.2f}\t{_whole(other):.2f}\t{other['start']:.2f}\t{ratio:.2f}"
            print(f"{path.stem}\t{row}", flush=True)
    print(f"sum\t{sums[0]:.2f}\t\t{sums[1]:.2f}\t\t{sums[0] / max(sums[1], 1e-9):.2f}")
    return int(failed > 0)


def _whole(run: dict[str, float]) -> float:
    return run["own"] + run["start"]


def _ours(what: str, path: Path, cache: str) -> dict[str, Any]:
    return _child([sys.executable, __file__, "--worker", what, str(path), cache], dict(os.environ))


def _theirs(xla: str, path: Path, flags: str) -> dict[str, float]:
    python, tool = xla.split()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, "-c", _XLA_WORKER, str(Path(tool).resolve().parent), "h100", str(path)]
    return _child(command, environment | {"XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "2"})


def _child(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _worker(what: str, path: Path, folder: str) -> dict[str, Any]:
    """Compile one module and return the times. A cold run leaves the executable in the cache for a second one."""
    import hlo_run
    from hlo_run.artifact.file import save
    from hlo_run.cache import choose_cache
    from hlo_run.hlo.wrap import wrap_bare_module
    from hlo_run.options import Options
    from hlo_run.pass_support.hlo_pass import PassContext
    from hlo_run.pipeline.executable_cache import compile_or_load, key_of, open_for
    from hlo_run.pipeline.observers.timing import TimingObserver
    from hlo_run.target import preset

    for name in ("hlo_run.hlo.text.parser", "hlo_run.ops.verify"):
        importlib.import_module(name)
    choose_cache(folder)
    watch = TimingObserver()
    plain = PassContext(preset("h100"), Options(compile_processes=1), ())
    ctx = PassContext(plain.target, plain.options, (watch,)) if what == "cold" else plain
    if what == "cold":
        importlib.import_module("hlo_run.pipeline.compile")  # start-up that a second run does not need
    text = path.read_text(encoding="utf-8")
    own, children, begin = _used(resource.RUSAGE_SELF), _used(resource.RUSAGE_CHILDREN), time.process_time()
    module = wrap_bare_module(hlo_run.parse(text, path.name))
    parsing = time.process_time() - begin
    key = key_of(plain, module) if what == "cold" else ""
    begin = time.process_time()
    executable = compile_or_load(ctx, module)
    own = parsing + time.process_time() - begin
    stages = {"parse": parsing, **dict.fromkeys(_STAGES[1:], 0.0)}
    for (level, _), seconds in watch.seconds.items():
        stages[level] += seconds
    stages["rest"] = own - sum(stages.values())
    cache = open_for(plain)
    if what == "cold" and cache is not None:
        cache.put(key, save(executable))
    rows: dict[str, float] = {}
    for (level, row), seconds in watch.seconds.items():
        name = f"{level} {_pass_name(row)}"
        rows[name] = rows.get(name, 0.0) + seconds
    return {"own": own, "ptxas": _used(resource.RUSAGE_CHILDREN) - children, "stages": stages, "rows": rows}


def _pass_name(row: str) -> str:
    head, dash, tail = row.rpartition("-")
    return head if dash and tail.isdigit() else row


def _row(times: Times) -> str:
    stages = " | ".join(f"{times.stages[stage]:.2f}" for stage in _STAGES if stage != "ptx")
    ours = f"{times.cold:.2f} (+{times.ptxas:.2f})"
    ratios = f"{times.cold / times.xla:.1f} | {times.second:.3f} | {times.second / times.xla:.2f}"
    return f"| {times.name} | {stages} | {ours} | {times.xla:.2f} (+{times.xla_ptxas:.2f}) | {ratios} |"


def _print_modules(modules: list[Times]) -> None:
    head = ["module", *(stage for stage in _STAGES if stage != "ptx"), "ours (ptxas)", "XLA (ptxas)"]
    print(f"| {' | '.join([*head, 'ratio', 'second run', 'ratio'])} |")
    print("| --- " * (len(head) + 3) + "|")
    for times in sorted(modules, key=lambda times: -times.cold):
        print(_row(times))
    cold, second, ptxas, xla, xla_ptxas = (
        sum(getattr(times, name) for times in modules) for name in ("cold", "second", "ptxas", "xla", "xla_ptxas")
    )
    print(
        f"\n{len(modules)} modules, in sum: ours {cold:.1f} s (ptxas {ptxas:.1f}), XLA {xla:.1f} s (ptxas {xla_ptxas:.1f}): ",
        end="",
    )
    print(f"ratio {cold / xla:.2f}; second run {second:.1f} s: {second / xla:.2f}, ", end="")
    print(f"under XLA's time in {sum(times.second < times.xla for times in modules)}")


def _print_rows(modules: list[Times]) -> None:
    total = sum(times.cold for times in modules)
    names = dict.fromkeys(name for times in modules for name in times.rows)
    rows = {name: sum(times.rows.get(name, 0.0) for times in modules) for name in names}
    print("\n| level and pass | s | share |\n| --- | --- | --- |")
    for name, seconds in sorted(rows.items(), key=lambda row: -row[1]):
        print(f"| {name} | {seconds:.2f} | {seconds / total:.1%} |")


if __name__ == "__main__":
    raise SystemExit(main())
