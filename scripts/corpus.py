"""Run folders of HLO modules and print which pass, which are unsupported (and why), which differ, and counts per folder.

    python3 scripts/venv.py python scripts/corpus.py FOLDER... [--match RE] [--jobs N] [--timeout S] [--report FILE.tsv]
                                                     [--xla "PYTHON RUN_CPU.py"] [--host_engine both] [--host_check all]
                                                     [--targets v100,h100] [--isolate_fusions] [--verify every]

Every module is compiled for each target. Every kernel is assembled with ptxas (if installed) and run on Host, and the results are
compared with the numpy reference, within the bounds of `hlo_run.reference.compare.agreement`. With `--isolate_fusions` every
kLoop and kInput fusion is a module of its own; equal ones run once. With `--xla` results are also compared with real XLA:CPU: the
command is called with `FILE --inputs A.npz --outputs B.npz --round-each-op`.

Each module has its own process, so that a crash or a timeout costs one row. The table at the end, in Markdown, has a line per
folder. If the folder's `index.tsv` lists the modules that real XLA:CPU runs, these also count separately. If more than one module
fails, a table of the failures' buckets follows. The exit code is 1 if any row differs, fails or times out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import shlex
import subprocess
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from gpu.programs import isolated_fusions

import hlo_run
from hlo_run.backends import load_backend
from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.memory import check_memory
from hlo_run.containment.crash import signal_name
from hlo_run.errors import HloRunError, Mismatch, Unsupported
from hlo_run.execution.signatures import bucket_table, crash_signature, signature_of, timeout_signature
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import Observer
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments, random_feeds
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.random import RandomEngine
from hlo_run.target import preset

PASSES, UNSUPPORTED = "passes", "unsupported"
# The order of these additions is undefined, and so is the rounding of their sum.
_ADDS_FLOATS_ATOMICALLY = re.compile(r"^\s*(?:@\S+\s+)?(?:atom|red)\.(?=\S*\badd\b)\S*\bb?f\d+", re.MULTILINE)
_TARGET_LINES = re.compile(r"^(\.version|\.target) .*$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """The outcome of one module. `status` is passes, unsupported, differs, differs from xla, error, crash or timeout."""

    file: str
    status: str
    detail: str
    seconds: float
    bucket: str = ""


class _Spills(Observer):
    """Adds up the bytes that kernels spill, as ptxas reports. Compilation assembles every kernel if ptxas is installed."""

    def __init__(self) -> None:
        self.bytes = 0

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        if title == "ptxas":
            self.bytes += sum(int(count) for count in re.findall(r"(\d+) bytes spill stores", text()))


def main() -> int:
    """Run the folders of the command line. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one module")
    parser.add_argument("--targets", default="h100", help="GPUs to compile for; the kernels of each run on Host")
    parser.add_argument("--isolate_fusions", action="store_true", help="run every kLoop and kInput fusion alone, equal ones once")
    parser.add_argument("--keep", type=Path, help="folder for the modules of --isolate_fusions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--host_engine",
        default="auto",
        help="auto, emulator, jit, or both, which compares their bits (not those of sums by atomics)",
    )
    parser.add_argument("--host_check", default="", help="checks of the emulator, as for hlo-run; all")
    parser.add_argument("--verify", default="ends", help="verify the module at the ends of its pipeline, or after every row")
    parser.add_argument("--report", type=Path, help="write the rows as tab-separated values")
    parser.add_argument("--xla", default="", help="command that runs a module on real XLA:CPU")
    arguments = parser.parse_args()
    load_backend("Host")  # before the processes fork
    found: dict[Path, list[Row]] = {}
    for folder in arguments.folders:
        files = sorted(f for f in folder.glob("*.hlo") if re.search(arguments.match, f.name))
        with tempfile.TemporaryDirectory() as temporary:
            if arguments.isolate_fusions:
                place = arguments.keep or Path(temporary)
                place.mkdir(parents=True, exist_ok=True)
                files = isolated_fusions(files, place)
                print(f"{len(files)} different fusions", flush=True)
            found[folder] = _run_all(files, arguments)
    rows = [row for each in found.values() for row in each]
    _print_summary(rows)
    _print_table(found)
    if table := bucket_table((row.bucket, row.file) for row in rows if row.bucket):
        print("\n" + "\n".join(table))
    if arguments.report:
        lines = ["file\tstatus\tseconds\tdetail", *(f"{r.file}\t{r.status}\t{r.seconds:.2f}\t{r.detail}" for r in rows)]
        arguments.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(row.status not in (PASSES, UNSUPPORTED) for row in rows))


def _run_all(files: Sequence[Path], arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(partial(_in_process, arguments=arguments), files):
            rows.append(row)
            print(f"{row.status:<16}{row.seconds:7.2f}s  {row.file}  {row.detail}", flush=True)
    return rows


def _print_summary(rows: Sequence[Row]) -> None:
    counts = Counter(row.status for row in rows)
    print(f"\n{len(rows)} modules: " + ", ".join(f"{count} {status}" for status, count in counts.most_common()))
    reasons = Counter(row.detail.split(":")[0] for row in rows if row.status == UNSUPPORTED)
    for reason, count in reasons.most_common():
        print(f"{count:5}  {reason}")


def _print_table(found: dict[Path, list[Row]]) -> None:
    """Print counts per folder, and a line for each module that does not pass."""
    print("\n| folder | modules | pass | XLA:CPU runs | of these pass |\n| --- | --- | --- | --- | --- |")
    for folder, rows in found.items():
        known = _run_by_xla(folder)
        passing = {row.file for row in rows if row.status == PASSES}
        theirs = [row.file for row in rows if row.file in known]
        both = sum(file in passing for file in theirs)
        print(f"| {folder.name} | {len(rows)} | {len(passing)} | {len(theirs) if known else '-'} | {both if known else '-'} |")
    others = [(folder, row) for folder, rows in found.items() for row in rows if row.status != PASSES]
    if others:
        print("\n| exception | what |\n| --- | --- |")
    for folder, row in others:
        detail = row.detail.replace("|", "/")
        print(f"| {folder.name}/{row.file.removesuffix('.hlo')} | {row.status}: {detail} |")


def _run_by_xla(folder: Path) -> set[str]:
    """Return the modules that real XLA:CPU runs, according to the folder's index."""
    index = folder / "index.tsv"
    if not index.exists():
        return set()
    head, *lines = (line.split("\t") for line in index.read_text(encoding="utf-8").splitlines())
    return {line[head.index("file")] for line in lines if line[head.index("cpu")].startswith("ok")}


def _in_process(file: Path, arguments: argparse.Namespace) -> Row:
    """Run one module in a forked process. A crash or a timeout becomes a row."""
    begin = time.perf_counter()
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(file, arguments, send))
    process.start()
    send.close()
    try:
        if not receive.poll(arguments.timeout):
            process.kill()
            seconds = time.perf_counter() - begin
            return Row(file.name, "timeout", f"over {arguments.timeout:g} s", seconds, timeout_signature().bucket)
        status, detail, bucket = receive.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = signal_name(-code) if code < 0 else f"exit code {code}"
        status, detail, bucket = "crash", f"the process ended without a result: {how}", crash_signature(how).bucket
    finally:
        process.join()
    return Row(file.name, status, detail, time.perf_counter() - begin, bucket)


def _child(file: Path, arguments: argparse.Namespace, send: Connection) -> None:
    try:
        detail = _run(file, arguments)
        send.send((PASSES, detail, ""))
    except BaseException as error:
        send.send((*_outcome(error), signature_of(error).bucket))


def _outcome(error: BaseException) -> tuple[str, str]:
    """Return (status, detail) of an error."""
    match error:
        case Unsupported():
            return UNSUPPORTED, _one_line(error.message)
        case Mismatch():
            return error.notes[0], _one_line(error.message)
        case HloRunError():
            return "error", _one_line(f"{type(error).__name__}: {error.message}")
        case _:
            place = traceback.format_exception(error)[-2].splitlines()[0].strip()
            return "error", _one_line(f"{type(error).__name__}: {error} at {place}")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _run(file: Path, arguments: argparse.Namespace) -> str:
    """Compile, assemble, run and compare one module. Return remarks on its success."""
    module = wrap_bare_module(hlo_run.parse(file.read_text(encoding="utf-8"), file.name))
    grid = DeviceGrid.of(module)
    engine = RandomEngine(arguments.seed)
    values = grid.make_arguments(module, lambda: make_fake_arguments(module, engine))
    reference = Reference(module)
    expected = grid.join(reference.run(grid.split(values), grid.replicas, grid.partitions, feeds=random_feeds(arguments.seed)))
    notes: list[str] = []
    known: dict[tuple[str, ...], Literal] = {}
    for target in arguments.targets.split(","):
        try:
            notes.append(_run_for(target, module, values, expected, reference.outfeed, arguments, known))
        except HloRunError as error:
            error.message = f"{error.message} ({target})" if arguments.targets != target else error.message
            raise
    if arguments.xla:
        actual = next(iter(known.values()))
        _agree(_xla(file, values, module, arguments.xla), actual, module, "differs from xla")
    return ", ".join(dict.fromkeys(notes))


def _run_for(
    target: str,
    module: HloModule,
    values: list[Literal],
    expected: Literal,
    outfeed: list[list[Literal]],
    arguments: argparse.Namespace,
    known: dict[tuple[str, ...], Literal],
) -> str:
    """Compile for a target, assemble, run and compare. Kernels that equal those of another target (`known`) run once."""
    both = arguments.host_engine == "both"
    engine = "emulator" if both else arguments.host_engine
    # The reference and the command of --xla round after every instruction.
    options = Options(
        host_engine=engine,
        host_check=arguments.host_check,
        compile_processes=1,
        xla_allow_excess_precision=False,
        verify=arguments.verify,
    )
    spills = _Spills()
    executable = compile_module(PassContext(preset(target), options, (spills,)), module.clone())
    key = tuple(_TARGET_LINES.sub("", kernel.ptx) + str((kernel.grid, kernel.block)) for kernel in executable.kernels)
    if key not in known:
        check_memory(executable)
        backend, feeds = open_backend("Host", options), random_feeds(arguments.seed)
        known[key] = run_on_grid(backend, executable, values, DeviceGrid.of(module), feeds=feeds)
        _same_outfeed(outfeed, backend.outfeed)
        if both:
            options = Options(host_engine="jit", xla_gpu_deterministic_ops=True)
            again = run_on_grid(open_backend("Host", options), executable, values, DeviceGrid.of(module), feeds=feeds)
            if any(_ADDS_FLOATS_ATOMICALLY.search(kernel.ptx) for kernel in executable.kernels):
                _agree(known[key], again, module, "engines differ")
            else:
                _same_bits(known[key], again)
        _agree(expected, known[key], module, "differs")
    return f"{len(executable.kernels)} kernels" + (f", {spills.bytes} bytes spilled for {target}" if spills.bytes else "")


def _same_outfeed(expected: list[list[Literal]], actual: list[list[Literal]]) -> None:
    wanted, given = (_flat(tuple(map(tuple, devices))) for devices in (expected, actual))
    if len(wanted) != len(given) or not all(
        np.allclose(a, b, rtol=1e-4, equal_nan=True) for a, b in zip(wanted, given, strict=True)
    ):
        raise Mismatch("an outfeed gives other values", notes=("differs",))


def _same_bits(emulated: Literal, compiled: Literal) -> None:
    """Raise Mismatch unless the two engines leave the same bits. In f64 and complex numbers any NaN equals any other."""
    for number, (a, b) in enumerate(zip(_flat(emulated), _flat(compiled), strict=True)):
        same = np.array_equal(a, b, equal_nan=True) if a.dtype.char in "dFD" else a.tobytes() == b.tobytes()
        if not same:
            raise Mismatch(f"result {number}: the JIT leaves other bits than the emulator", notes=("engines differ",))


def _agree(expected: Literal, actual: Literal, module: HloModule, what: str) -> None:
    """Raise Mismatch, with `what` as its first note, if the two differ by more than the bounds of their types."""
    for index, comparison in disagreements(expected, actual, DeviceGrid.of(module).result_shape(module)):
        raise Mismatch(f"result {list(index)} {comparison.shape}: {comparison.summary()}", notes=(what,))


def _flat(value: Literal) -> list[np.ndarray[Any, Any]]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]


def _xla(file: Path, values: Sequence[Literal], module: HloModule, command: str) -> Literal:
    """Return real XLA's results for the arguments. A module that it cannot run counts as unsupported."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder) / "in.npz", Path(folder) / "out.npz"
        _save(inputs, [leaf for value in values for leaf in _flat(value)])
        words = [*shlex.split(command), str(file), "--inputs", str(inputs), "--outputs", str(outputs), "--round-each-op"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unsupported(f"XLA:CPU cannot run it: {last[:120]}")
        arrays = _load(outputs, [shape for _, shape in module.entry.root.shape.leaves()])
    return _nest(module.entry.root.shape, iter(arrays))


def _nest(shape: Shape, arrays: Iterator[Any]) -> Any:
    return tuple(_nest(part, arrays) for part in shape.tuple_shapes) if shape.is_tuple else next(arrays)


def _save(path: Path, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Write arg0, arg1, ... Types that numpy lacks are raw integers, with their name under KEY.dtype."""
    entries: dict[str, Any] = {}
    for number, array in enumerate(arrays):
        entries[f"arg{number}"] = array
        if array.dtype.isbuiltin != 1:
            entries[f"arg{number}.dtype"] = np.array(array.dtype.name)
            entries[f"arg{number}"] = array.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)
    np.savez(path, **entries)


def _load(path: Path, shapes: Sequence[Shape]) -> list[Any]:
    with np.load(path) as data:
        return [data[f"out{number}"].view(shape.dtype.numpy).reshape(shape.dims) for number, shape in enumerate(shapes)]


if __name__ == "__main__":
    raise SystemExit(main())
