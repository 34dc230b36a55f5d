"""Compare the numpy reference with real XLA:CPU on folders of modules.

    python3 scripts/venv.py python scripts/reference_conformance.py FOLDER... --xla "PYTHON RUN_CPU.py" --rows FILE.tsv
                                                                    [--match RE] [--seeds 1,2,3] [--timeout S] [--again]

Every module runs on both with the same arguments; in a folder with an `index.tsv`, only those whose `cpu` column says ok. Each
seed runs once with the fake arguments that `hlo-run` makes and once with standard normal floats and integers in [-8, 8].
XLA:CPU rounds after every op. Bounds are those of `hlo_run.reference.compare.agreement`: integers, pred and the bits of
rng-bit-generator must be equal. Rows are added to FILE.tsv as they are found. A module that has a row there is not
run again; with `--again`, only modules that agreed are not. It prints the table of docs/differences.md and every exception.
"""

from __future__ import annotations

import argparse
import csv
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xla_cpu import XlaCpu, XlaError

import hlo_run
from hlo_run.errors import HloRunError, Unsupported
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.numerics.precision import round_value
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value

AGREES = "agrees"
_KINDS = ("fake", "normal")
_FIELDS = ("folder", "file", "status", "seconds", "detail")


class _TooLong(Exception):
    """A module took longer than the timeout."""


def main() -> int:
    """Run the folders of the command line. The exit code is 1 if a module does not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--xla", required=True, help='how to run real XLA:CPU: "PYTHON RUN_CPU.py"')
    parser.add_argument("--rows", type=Path, required=True, help="file of the rows (tab-separated)")
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--timeout", type=int, default=120, help="seconds for one module on one kind of arguments")
    parser.add_argument("--again", action="store_true", help="run modules again that did not agree")
    options = parser.parse_args()
    rows = {key: row for key, row in _read(options.rows).items() if not options.again or row["status"] == AGREES}
    modules = [(folder, name) for folder in options.folders for name in _runnable(folder) if re.search(options.match, name)]
    with XlaCpu(options.xla) as xla:
        for folder, name in modules:
            if (folder.name, name) not in rows:
                row = _judge(folder / name, xla, [int(seed) for seed in options.seeds.split(",")], options.timeout)
                rows[folder.name, name] = row
                _write(options.rows, rows)
                if row["status"] != AGREES:
                    print(f"{row['folder']}/{name}: {row['status']}: {row['detail']}", file=sys.stderr, flush=True)
    chosen = [rows[folder.name, name] for folder, name in modules]
    _print_table(chosen)
    return int(any(row["status"] != AGREES for row in chosen))


def _runnable(folder: Path) -> list[str]:
    """Return the modules of a folder that XLA:CPU runs according to its index, or all without an index."""
    index = folder / "index.tsv"
    if not index.exists():
        return sorted(path.name for path in folder.glob("*.hlo"))
    with index.open(encoding="utf-8", newline="") as lines:
        return [row["file"] for row in csv.DictReader(lines, delimiter="\t") if row["cpu"].startswith("ok")]


def _read(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {(row["folder"], row["file"]): row for row in csv.DictReader(lines, delimiter="\t")}


def _write(path: Path, rows: dict[tuple[str, str], dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, _FIELDS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def _judge(file: Path, xla: XlaCpu, seeds: Sequence[int], timeout: int) -> dict[str, str]:
    """Return the row of one module."""
    begin = time.perf_counter()
    try:
        status, detail = _compare(file, xla, seeds, timeout)
    except Unsupported as error:
        status, detail = "unsupported", error.message
    except HloRunError as error:
        status, detail = "error", f"{type(error).__name__}: {error.message}"
    except XlaError as error:
        status, detail = "xla", str(error)
    except Exception as error:
        status, detail = "error", f"{type(error).__name__}: {error} at {traceback.format_exc().splitlines()[-3].strip()}"
    seconds = f"{time.perf_counter() - begin:.1f}"
    found = (file.parent.name, file.name, status, seconds, " ".join(detail.split())[:500])
    return dict(zip(_FIELDS, found, strict=True))


@contextmanager
def _at_most(seconds: int, xla: XlaCpu) -> Iterator[None]:
    """Raise _TooLong if the context takes longer."""

    def stop(_signal: int, _frame: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    except _TooLong:
        xla.stop()
        raise
    finally:
        signal.alarm(0)


def _compare(file: Path, xla: XlaCpu, seeds: Sequence[int], timeout: int) -> tuple[str, str]:
    """Return the status and a detail. Timeouts of a kind of arguments count only if all kinds time out."""
    text = file.read_text(encoding="utf-8")
    module = wrap_bare_module(hlo_run.parse(text, file.name))
    too_long: list[str] = []
    for kind in _KINDS:
        try:
            with _at_most(timeout, xla):
                for seed in seeds:
                    if found := _disagreement(module, text, xla, kind, seed):
                        return found
        except _TooLong:
            too_long.append(kind)
    note = f"over {timeout} s on {' and '.join(too_long)} arguments" if too_long else ""
    return (AGREES if len(too_long) < len(_KINDS) else "timeout"), note


def _disagreement(module: HloModule, text: str, xla: XlaCpu, kind: str, seed: int) -> tuple[str, str] | None:
    """Return the status and the difference; None if the two agree."""
    grid = DeviceGrid.of(module)
    shape = grid.result_shape(module)
    values = _arguments(module, grid, kind, seed)
    flat = [leaf for value in values for leaf in _flat(value)]
    found = xla.run(text, flat, grid=(grid.replicas, grid.partitions)).results
    typed = [array.view(leaf.dtype.numpy) for array, (_, leaf) in zip(found, shape.leaves(), strict=True)]
    expected, actual = _nest(shape, iter(typed)), _run(Reference(module), grid, values)
    wrong = disagreements(expected, actual, shape)
    if not wrong:
        return None
    index, comparison = wrong[0]
    said = f"{kind} {seed}: result {list(index)} {comparison.shape}: {comparison.summary()}"
    precise = round_value(_run(Reference(module, "f64"), grid, values), shape)
    off = [other for place, other in disagreements(precise, actual, shape) if place == index]
    if not off:
        return "differs", f"{said}; float64 agrees with the reference"
    return "ill-conditioned", f"{said}; in float64 the reference itself differs: {off[0].summary()}"


def _run(reference: Reference, grid: DeviceGrid, values: Sequence[Value]) -> Value:
    return grid.join(reference.run(grid.split(values), grid.replicas, grid.partitions))


def _arguments(module: HloModule, grid: DeviceGrid, kind: str, seed: int) -> list[Value]:
    """Return the arguments of all devices."""
    engine, rng = RandomEngine(seed), np.random.default_rng(seed)
    shapes = [parameter.shape for parameter in module.entry.parameters]
    makers: dict[str, Callable[[], list[Value]]] = {
        "fake": lambda: make_fake_arguments(module, engine),
        "normal": lambda: [_normal(rng, shape) for shape in shapes],
    }
    return grid.make_arguments(module, makers[kind])


def _normal(rng: np.random.Generator, shape: Shape) -> Value:
    """Return standard normal floats, integers in [-8, 8] or [0, 8] (less for narrower types), and random preds."""
    if shape.is_tuple:
        return tuple(_normal(rng, part) for part in shape.tuple_shapes)
    dtype = shape.dtype
    if dtype.kind == "pred":
        return rng.integers(0, 2, shape.dims).astype(np.bool_)
    if dtype.is_integer:
        top = min(8, (1 << (dtype.bits - dtype.is_signed)) - 1)
        return np.asarray(rng.integers(-top if dtype.is_signed else 0, top + 1, shape.dims)).astype(dtype.numpy)
    array: NDArray[Any] = np.asarray(rng.standard_normal(shape.dims))
    if dtype.is_complex:
        array = array + 1j * rng.standard_normal(shape.dims)
    # A scale has no sign.
    return (np.abs(array) if dtype.name == "f8e8m0fnu" else array).astype(dtype.numpy)


def _flat(value: Value) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]


def _nest(shape: Shape, arrays: Iterator[Any]) -> Value:
    return tuple(_nest(part, arrays) for part in shape.tuple_shapes) if shape.is_tuple else next(arrays)


def _print_table(rows: Sequence[dict[str, str]]) -> None:
    print("| folder | modules XLA:CPU runs | agree | exceptions |\n| --- | --- | --- | --- |")
    for folder in dict.fromkeys(row["folder"] for row in rows):
        counts = Counter(row["status"] == AGREES for row in rows if row["folder"] == folder)
        print(f"| {folder} | {counts.total()} | {counts[True]} | {counts[False]} |")
    print()
    for row in rows:
        if row["status"] != AGREES:
            print(f"- {row['folder']}/{row['file']}: {row['status']}: {row['detail']}")


if __name__ == "__main__":
    raise SystemExit(main())
