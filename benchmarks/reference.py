"""Time the numpy reference against real XLA:CPU on a folder of modules.

python3 scripts/venv.py python benchmarks/reference.py FOLDER --xla "PYTHON RUN_CPU.py" [--match RE] [--rounds N]

Both are warm: XLA has compiled, the reference has made its plans, the arguments are in memory. They run in turns, N rounds
each; a figure is the best round. The modules are sorted by XLA's time. The geometric mean of the ratios is over modules for which
XLA needs 5 ms or more.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import hlo_run
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.values import Array, Value

_LARGE_SECONDS = 5e-3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--xla", required=True, help='how to run real XLA:CPU: "PYTHON RUN_CPU.py"')
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
    tool: Any = importlib.import_module("xla_cpu")
    files = sorted(path for path in options.folder.glob("*.hlo") if re.search(options.match, path.name))
    rows: list[tuple[float, float, str]] = []
    with tool.XlaCpu(options.xla) as xla:
        for path in files:
            theirs, ours = _seconds(path, xla, options.rounds)
            rows.append((theirs, ours, path.stem))
            print(f"{path.stem}: {1e3 * theirs:.2f} {1e3 * ours:.2f} ms", file=sys.stderr, flush=True)
    _print_table(sorted(rows, reverse=True))


def _seconds(path: Path, xla: Any, rounds: int) -> tuple[float, float]:
    """Return the best times of XLA:CPU and of the reference."""
    text = path.read_text(encoding="utf-8")
    module = hlo_run.parse(text, path.name)
    values = make_fake_arguments(module, 1)
    flat = [leaf for value in values for leaf in _flat(value)]
    reference = Reference(module)
    reference.run([values])
    theirs, ours = math.inf, math.inf
    for _ in range(rounds):
        theirs = min(theirs, *xla.run(text, flat, repeat=2, round_each_op=False).seconds)
        for _ in range(2):
            begin = time.perf_counter()
            reference.run([values])
            ours = min(ours, time.perf_counter() - begin)
    return theirs, ours


def _flat(value: Value) -> list[Array]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]


def _print_table(rows: list[tuple[float, float, str]]) -> None:
    print("| module | XLA:CPU ms | reference ms | ratio |\n| --- | --- | --- | --- |")
    for theirs, ours, name in rows:
        print(f"| {name} | {1e3 * theirs:.2f} | {1e3 * ours:.2f} | {ours / theirs:.1f} |")
    for what, least in (("all modules", 0.0), (f"XLA:CPU {1e3 * _LARGE_SECONDS:g} ms or more", _LARGE_SECONDS)):
        ratios = [ours / theirs for theirs, ours, _ in rows if theirs >= least]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"\n{what}: {len(ratios)} modules, geometric mean {mean:.2f}, worst {max(ratios):.1f}")


if __name__ == "__main__":
    main()
