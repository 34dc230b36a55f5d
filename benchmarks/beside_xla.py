"""Compare the whole pipeline with real XLA:GPU on a folder of modules, for an H100 and without Triton.

    python benchmarks/beside_xla.py FOLDER RECORDS [--results FILE]

For every `.hlo` file of FOLDER the figures are those of `hlo-run --xla_diff`: kernels and copies, bytes accessed and planned
memory, as ratios of ours to XLA's. Then follow geometric means, and a line for each module beyond 1.3. RECORDS keeps XLA's
results, one file per module, so XLA compiles a module once (this needs `hlo-run[xla-gpu]`). FILE keeps our figures, one line per
module: an interrupted run continues, and several runs may share the work. The output is Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

import hlo_run
from hlo_run.analysis.cost.side_by_side import Side
from hlo_run.codegen.llvm.ptxas import find_ptxas
from hlo_run.commands.target_choice import target_config
from hlo_run.commands.xla_diff import our_side, xla_flags, xla_side
from hlo_run.errors import HloRunError
from hlo_run.formats.xla_gpu import XlaCompilation, compile_with_xla
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import preset

_OPTIONS = Options(xla_diff="emitters")
_TARGET = preset("h100")
_FAR = 1.3


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity on both sides. The mean leaves out modules for which either side is 0."""

    name: str
    ours: int
    xla: int

    @property
    def ratio(self) -> float:
        return self.ours / self.xla if self.xla else 1.0 if not self.ours else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--all", action="store_true", help="a row for every module, not for those beyond 1.3 alone")
    arguments = parser.parse_args()
    results = _known(arguments.results)
    for file in sorted(arguments.folder.glob("*.hlo")):
        if file.stem not in results:
            results |= _known(arguments.results)
        if file.stem not in results:
            results[file.stem] = found = _compare(file, arguments.records)
            if arguments.results is not None:
                with arguments.results.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({file.stem: found}) + "\n")
    _print({file.stem: results[file.stem] for file in sorted(arguments.folder.glob("*.hlo"))}, arguments.all)


def _known(path: Path | None) -> dict[str, Any]:
    """Return the results in a file."""
    found: dict[str, Any] = {}
    if path is not None and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            found |= json.loads(line)
    return found


def _compare(file: Path, records: Path) -> Any:
    """Return the figures of both sides, or the error of the side that failed."""
    text = file.read_text(encoding="utf-8")
    made = _xlas(file.stem, text, records)
    if isinstance(made, str):
        return {"xla_error": made}
    try:
        module = wrap_bare_module(hlo_run.parse(text))
        ours = our_side(PassContext(_TARGET, _OPTIONS), module)
        return {"measures": [asdict(measure) for measure in _measures(ours, xla_side(made))]}
    except HloRunError as error:
        return {"error": error.message}


def _measures(ours: Side, xla: Side) -> list[Measure]:
    return [
        Measure("kernels and copies", ours.launches, xla.launches),
        Measure("bytes accessed", ours.bytes_accessed, xla.bytes_accessed),
        Measure("planned memory", ours.memory_bytes, xla.memory_bytes),
        Measure("library calls", ours.library_calls, xla.library_calls),
    ]


def _xlas(name: str, text: str, records: Path) -> XlaCompilation | str:
    """Return XLA's result for a module, or its error. A new result is recorded."""
    path = records / f"{name}.json"
    if not path.exists():
        records.mkdir(parents=True, exist_ok=True)
        ptxas = find_ptxas()
        cuda = ptxas.parent.parent if ptxas is not None else None
        try:
            made: Any = structs.asdict(
                compile_with_xla(text, name, target_config(_OPTIONS), xla_flags(_OPTIONS, "emitters"), cuda)
            )
        except HloRunError as error:
            made = error.message
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(made), encoding="utf-8")
        os.replace(temporary, path)
    record = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(record, str):
        return record
    return XlaCompilation(record["text"], tuple(record["thunk_kinds"]), record["memory_bytes"])


def _print(results: dict[str, Any], shows_all: bool) -> None:
    rows = {name: [Measure(**measure) for measure in found["measures"]] for name, found in results.items() if "measures" in found}
    names = [measure.name for measure in next(iter(rows.values()))] if rows else []
    print(f"| module | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for name, measures in rows.items():
        if shows_all or any(measure.ratio > _FAR for measure in measures[:3]):
            print(f"| {name} | {' | '.join(f'{m.ours} / {m.xla} = {m.ratio:.2f}' for m in measures)} |")
    print(f"\n{len(rows)} modules. Geometric means, and modules beyond {_FAR}:\n")
    for place, name in enumerate(names):
        ratios = [measures[place].ratio for measures in rows.values() if measures[place].ours and measures[place].xla]
        total = sum(measures[place].ours for measures in rows.values()) / (sum(m[place].xla for m in rows.values()) or 1)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        far = sum(measures[place].ratio > _FAR for measures in rows.values())
        print(f"- {name}: {mean:.3f} (sums {total:.3f}), {far} beyond")
    for key, who in (("xla_error", "XLA does not compile"), ("error", "we do not compile")):
        failed = {name: found[key] for name, found in results.items() if key in found}
        print(f"- {who}: {len(failed)}" + "".join(f"\n  - {name}: {reason}" for name, reason in failed.items()))


if __name__ == "__main__":
    main()
