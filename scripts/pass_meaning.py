"""Check that HLO passes keep the meaning of the modules in XLA's own pass tests.

    python3 scripts/venv.py python scripts/pass_meaning.py CASES [--pipeline] [--pass NAME,..] [--rows OUT.tsv] [--jobs N]

CASES is a folder with `index.tsv` (columns `pass`, `case`, `passes`, `ours`, ..) and a module in `CASE.hlo` for each of its rows.
The modules are the inputs of the C++ tests in XLA's source tree (`xla/hlo/transforms`, `xla/service`, `xla/backends/gpu`,
`*_test.cc`). A tool outside of this repository extracts them from the tests, with the passes that each test runs.

For each case with passes that exist here (`ours` is `yes`) it runs `hlo-opt --passes=` with `--verify=every`, reads the output,
evaluates both modules with the reference on the same random arguments, and compares. With `--pipeline` every module instead goes
through the whole pipeline and runs on Host. The outcomes are: same; changed (another result); crash; invalid (the output does not
read back); refused; skipped (large, of several devices, or beyond the reference); timeout. The exit code is 1 if any case
changed, crashed, or is invalid.
"""

from __future__ import annotations

import argparse
import collections
import csv
import io
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

import hlo_run
from hlo_run.cli import run_opt
from hlo_run.errors import DeviceError, HloRunError, Unsupported
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import BOUNDS, NARROW_FLOAT_BOUND, disagreements
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import DEFAULT_TARGET, preset

LIMIT_S = 20
LIMIT_ELEMENTS = 1 << 22
LIMIT_BYTES = 6 << 30
SEEDS = (1, 2)
_COLLECTIVE = ("all-gather", "all-reduce", "all-to-all", "collective-", "ragged-all-to-all", "reduce-scatter")
_BAD = ("changed", "crash", "invalid")
_Row = dict[str, str]


def judge(path: Path, passes: str) -> tuple[str, str]:
    """Return the outcome of a case and the reason. Without `passes` the whole pipeline runs."""
    try:
        before = hlo_run.parse(path.read_text(encoding="utf-8"), str(path))
    except HloRunError as error:
        return "refused", f"as it is: {error.message}"
    if reason := _beyond(before):
        return "skipped", reason
    if passes:
        return _judge_passes(path, before, passes)
    return _judge_pipeline(before)


def _beyond(module: HloModule) -> str:
    devices = max(int(module.attrs.get(name, 1)) for name in ("replica_count", "num_partitions"))
    if devices > 1 or any(i.opcode.startswith(_COLLECTIVE) for i in module.instructions):
        return "several devices"
    leaves = [leaf for instruction in module.instructions for _, leaf in instruction.shape.leaves()]
    largest = max((leaf.element_count for leaf in leaves if leaf.is_array), default=0)
    return f"{largest} elements" if largest > LIMIT_ELEMENTS else ""


def _judge_passes(path: Path, before: HloModule, passes: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    flags = ["--verify=every", "--xla_dump_large_constants", "--xla_dump_compact_gte=false"]
    with redirect_stdout(out), redirect_stderr(err):
        code = run_opt([f"--passes={passes}", *flags, str(path)])
    if code:
        return "crash" if code == 70 else "refused", _first_line(err.getvalue())
    try:
        after = hlo_run.parse(out.getvalue())
    except HloRunError as error:
        return "invalid", error.message
    expected = _results(before)
    if isinstance(expected, str):
        return "skipped", expected
    found = _results(after, before)
    if isinstance(found, str):
        return "skipped", f"after: {found}"
    return _compare(expected, found, before, after)


def _judge_pipeline(before: HloModule) -> tuple[str, str]:
    ctx = PassContext(preset(DEFAULT_TARGET), Options(verify="every", compile_processes=1, cache="off"))
    working = before.clone()
    try:
        executable = compile_module(ctx, working)
    except HloRunError as error:
        return "crash" if error.exit_code == 70 else "refused", error.message
    expected = _results(before)
    if isinstance(expected, str):
        return "skipped", expected
    host = open_backend("Host", Options())
    try:
        found = [host.run(executable, make_fake_arguments(before, seed)) for seed in SEEDS]
    except (Unsupported, DeviceError) as error:
        return "skipped", f"on Host: {error.message}"
    return _compare(expected, found, before, before)


def _results(module: HloModule, original: HloModule | None = None) -> list[Literal] | str:
    """Return the results for the seeds, on arguments for `original`, or the reason that there are none."""
    try:
        found = [evaluate(module, make_fake_arguments(original or module, seed)) for seed in SEEDS]
        return found if all(_fits(value, module.entry.root.shape) for value in found) else "a library's call has another shape"
    except (HloRunError, MemoryError) as error:  # mostly of a library's call, whose shapes fit no operation of the library
        return _first_line(str(error))


def _fits(value: Literal, shape: Shape) -> bool:
    if isinstance(value, tuple):
        return all(_fits(part, element) for part, element in zip(value, shape.tuple_shapes, strict=True))
    return not shape.is_array or np.asarray(value).shape == shape.dims


def _compare(expected: list[Literal], found: list[Literal], before: HloModule, after: HloModule) -> tuple[str, str]:
    shape = before.entry.root.shape
    if not shape.compatible(after.entry.root.shape):
        return "skipped", f"the result is {after.entry.root.shape}, was {shape}"
    bound = max(_narrowest_bound(before), _narrowest_bound(after))
    for seed, one, other in zip(SEEDS, expected, found, strict=True):
        for index, comparison in disagreements(one, other, shape):
            if not _agree_as_narrow(one, other, shape, index, bound):
                return "changed", f"seed {seed}, result {list(index)}: {comparison.summary()}"
    return "same", ""


def _narrowest_bound(module: HloModule) -> float:
    """Return the error bound of the narrowest floats in the module, as a wide result may come from narrow values."""
    types = {leaf.element_type for i in module.instructions for _, leaf in i.shape.leaves() if leaf.is_array}
    return max((BOUNDS.get(name, NARROW_FLOAT_BOUND) for name in types if DTYPES[name].is_float), default=0.0)


def _agree_as_narrow(one: Literal, other: Literal, shape: Shape, index: tuple[int, ...], bound: float) -> bool:
    for number in index:
        assert isinstance(one, tuple), "the index is valid for the shape"
        assert isinstance(other, tuple), "both results have the same shape"
        one, other, shape = one[number], other[number], shape.tuple_shapes[number]
    if not shape.dtype.is_float:
        return False
    magnitudes = np.abs(np.asarray(one).astype(np.float64))
    largest = float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))
    return compare(one, other, shape, ErrorSpec(abs=bound * largest, rel=bound)).ok


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def _child(pipe: Connection, path: Path, passes: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        pipe.send(judge(path, passes))
    except MemoryError:
        pipe.send(("skipped", "memory"))
    except Exception as error:  # the cases are foreign, and any error of ours is the result of a case
        pipe.send(("crash", f"{type(error).__name__}: {error}"))


def run_all(folder: Path, rows: list[_Row], whole: bool, jobs: int) -> Iterator[tuple[_Row, str, str]]:
    """Yield (row, outcome, reason) in the order of completion. Each case runs in its own process."""
    fork = multiprocessing.get_context("fork")
    waiting = list(reversed(rows))
    running: dict[Connection, tuple[_Row, BaseProcess, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            row = waiting.pop()
            ours, theirs = fork.Pipe(duplex=False)
            path = folder / f"{row['case']}.hlo"
            process = fork.Process(target=_child, args=(theirs, path, "" if whole else row["passes"]))
            process.start()
            theirs.close()
            running[ours] = (row, process, time.monotonic())
        for pipe in multiprocessing.connection.wait(list(running), timeout=1):
            assert isinstance(pipe, Connection), "only connections are waited for"
            row, process, _ = running.pop(pipe)
            try:
                what, why = pipe.recv()
            except EOFError:
                what, why = "crash", "the process ended"
            process.join()
            yield row, what, why
        for pipe, (row, process, begin) in list(running.items()):
            if time.monotonic() - begin > LIMIT_S:
                process.kill()
                process.join()
                del running[pipe]
                yield row, "timeout", f"{LIMIT_S} s"


def main() -> int:
    """Run the cases, print a table by pass and every bad case, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--pipeline", action="store_true", help="compile every module with the whole pipeline and run it on Host")
    parser.add_argument("--pass", dest="names", default="", help="only the cases of these passes, comma separated")
    parser.add_argument("--rows", type=Path, help="write a line for each case")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="run only every Nth case")
    args = parser.parse_args()
    names: set[str] = set(str(args.names).split(",")) - {""}
    with (args.cases / "index.tsv").open(encoding="utf-8") as lines:
        rows = [
            row for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if args.pipeline or row["ours"] == "yes"
        ]
    rows = [row for row in rows if not names or row["pass"] in names][:: args.every]
    if args.pipeline:  # each module once
        texts = {(args.cases / f"{row['case']}.hlo").read_text(encoding="utf-8"): row for row in reversed(rows)}
        rows = list(texts.values())[::-1]
    if rows:  # import everything once, before the forks
        judge(args.cases / f"{rows[0]['case']}.hlo", "" if args.pipeline else rows[0]["passes"])
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    found: list[str] = []
    for row, what, why in run_all(args.cases, rows, args.pipeline, args.jobs):
        table[row["pass"]][what] += 1
        found.append(f"{row['case']}\t{what}\t{why}\n")
        if what in _BAD:
            print(f"{what}: {row['case']}: {why}", flush=True)
    if args.rows:
        args.rows.write_text("".join(sorted(found)), encoding="utf-8")
    for name, counts in sorted(table.items()):
        print(f"{name:40} {counts.total():5} {dict(counts.most_common())}")
    total = sum(table.values(), collections.Counter[str]())
    print(f"{total.total()} cases: {dict(total.most_common())}")
    return 1 if any(total[what] for what in _BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
