"""Compare single HLO passes with the same passes of released XLA:GPU, on modules of XLA's own pass tests.

    python3 scripts/venv.py python scripts/released_passes.py CASES --cache DIR [--pass NAME,..] [--rows OUT.tsv] [--all]

CASES is a folder as `pass_conformance.py` takes it; without `--all` only the cases that differ there are compared. XLA compiles
each module for an H100 with `--xla_enable_hlo_passes_only`, so that its dumps show what the case's passes make of the module.
The tests are those of a newer source tree, and many make a pass with options that XLA:GPU does not set. The outcomes: equal
(the same text but for names, metadata and dead code, or no change in both), other, and not run (XLA:GPU does not run the pass,
or refuses the module before it does). The rows tell whether XLA's own result is what the test expects.
"""

from __future__ import annotations

import argparse
import collections
import csv
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pass_conformance import expected, is_plain, judge, optimized, with_options
from text_goldens import canonical

import hlo_run
from hlo_run.errors import HloRunError, Unsupported
from hlo_run.formats.xla_gpu import write_dumps
from hlo_run.hlo_passes.simplifiers.dce import Dce
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.observers.xla_order import Pipeline
from hlo_run.pipeline.xla_pipelines import xla_pipelines
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_LIMIT_SECONDS = 60.0
_DUMP = re.compile(r"\.(?P<number>\d{4})\.(?P<pipeline>[^.]+)\.after_(?P<row>.+)\.before_.+\.txt$")
_NO_TRITON = "--xla_gpu_enable_triton_gemm=false"
# The header, which says more in XLA's dumps.
_BARE = re.compile(r"\AHloModule.*\n")
_Row = dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """The comparison of one case: equal, other or not run, and whether XLA's result is what the test expects."""

    case: str
    found: str
    as_test: bool | None = None


def _dumps(file: Path, names: Iterable[str], kept: Path) -> dict[str, str]:
    """Return XLA's dumps of a module that sees only these passes, by name, from the file `kept` if it is there."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        enabled = [*names, *_enclosing(set(names), xla_pipelines())]
        flags = [
            f"--xla_enable_hlo_passes_only={','.join(dict.fromkeys(enabled))}",
            "--xla_dump_hlo_pass_re=.*",
            "--xla_dump_hlo_as_text",
            _NO_TRITON,
        ]
        with tempfile.TemporaryDirectory() as folder:
            text, target = file.read_text(encoding="utf-8"), to_text_proto(preset(DEFAULT_TARGET))
            with suppress(Unsupported):  # most modules cannot be compiled without the other passes
                write_dumps(text, str(file), target, flags, None, Path(folder), _LIMIT_SECONDS)
            with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(Path(folder).glob("*.txt")):
                    archive.write(path, path.name)
    with zipfile.ZipFile(kept) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def _enclosing(wanted: set[str], pipelines: Iterable[Pipeline]) -> Iterator[str]:
    """Return the pipelines inside of others that contain a wanted pass: XLA runs them only if they are named, too."""
    for pipeline in pipelines:
        for inner in (item for item in pipeline.items if isinstance(item, Pipeline)):
            if _has(inner, wanted):
                yield inner.name
            yield from _enclosing(wanted, (inner,))


def _has(pipeline: Pipeline, wanted: set[str]) -> bool:
    return any(_has(item, wanted) if isinstance(item, Pipeline) else item in wanted for item in pipeline.items)


def released(file: Path, names: list[str], kept: Path) -> str | None:
    """Return the module after the first pass (of several: the last) that changed it, "" if none did, None if none ran."""
    found = sorted(
        (m["number"], m["pipeline"], m["row"], text) for n, text in _dumps(file, names, kept).items() if (m := _DUMP.search(n))
    )
    after = [text for _, _, row, text in found if row in names]
    if after:
        return after[-1] if len(names) > 1 else after[0]
    places = {pipeline.name for pipeline in xla_pipelines() if _has(pipeline, set(names))}
    return "" if any(pipeline in places for _, pipeline, _, _ in found) else None


def _same(ours: str, theirs: str) -> bool:
    """Return True for equal modules but for names and metadata; the module's name and its layouts are left out."""
    return _form(ours) == _form(theirs)


def _form(text: str) -> str:
    module = hlo_run.parse(text, verified=False)
    module.attrs.pop("origin_recovery_table", None)  # like the origins of instructions
    Dce().apply(PassContext(preset(DEFAULT_TARGET), Options()), module)  # passes leave dead code behind
    lines = canonical(module.to_string(), metadata=False).splitlines()[1:]
    return "\n".join(re.sub(r", (?:frontend_attributes|origin)=\{.*?\}(?=,|$)", "", line) for line in lines)


def compare(cases: Path, cache: Path, row: _Row) -> Outcome:
    """Compare one case."""
    case, passes = row["case"], with_options(row)
    names = list(dict.fromkeys(row["passes"].split(",")))
    file = cases / f"{case}.hlo"
    theirs = released(file, names, cache / f"{case}.zip")
    if theirs is None:
        return Outcome(case, "not run")
    code, ours = optimized(str(file), passes)
    before = file.read_text(encoding="utf-8")
    if not theirs:
        kept = not code and hlo_run.parse(ours).to_string() == hlo_run.parse(before, verified=False).to_string()
        return Outcome(case, "equal" if kept else "other", row["changed"] != "true")
    try:
        before = hlo_run.parse(before, verified=False).to_string()
        as_test = expected(cases, row, _BARE.sub("HloModule m\n", before), _BARE.sub("HloModule m\n", theirs)) == "agree"
        return Outcome(case, "equal" if not code and _same(ours, theirs) else "other", as_test)
    except HloRunError:
        return Outcome(case, "other")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="a folder for XLA's dumps")
    parser.add_argument("--pass", dest="names", default="", metavar="NAMES", help="only the cases of these passes")
    parser.add_argument("--rows", type=Path, help="write a line for each case")
    parser.add_argument("--all", action="store_true", help="also the cases that agree with XLA's tests")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    with (args.cases / "index.tsv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if is_plain(row)]
    chosen = {name for name in str(args.names).split(",") if name}
    rows = [row for row in rows if not chosen or row["pass"] in chosen]
    with ProcessPoolExecutor(args.jobs) as pool:
        if not args.all:
            verdicts = list(pool.map(partial(judge, args.cases), rows, chunksize=8))
            rows = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict != "agree"]
        outcomes = list(pool.map(partial(compare, args.cases, args.cache), rows))
    if args.rows:
        text = "".join(f"{o.case}\t{o.found}\t{o.as_test}\n" for o in sorted(outcomes, key=lambda o: o.case))
        args.rows.write_text(text, encoding="utf-8")
    counts = collections.Counter((o.found, o.as_test) for o in outcomes)
    print("| released XLA's result | as the test expects | cases |\n| --- | --- | ---: |")
    for (found, as_test), count in sorted(counts.items(), key=str):
        print(f"| {found} | {({True: 'yes', False: 'no', None: ''})[as_test]} | {count} |")


if __name__ == "__main__":
    main()
