"""Compare the optimised modules, and the modules between passes, with the dumps of real XLA:GPU as text.

    python3 scripts/venv.py python scripts/text_goldens.py FOLDER... [--every N [--from K]] [--cache DIR] [--jobs N]
        [--rows OUT.tsv] [--models NAME,..] [--show NAME] [--block-level]

XLA compiles every `.hlo` file of the folders once, for an H100 and without Triton, and the cache keeps its dumps. Our compiler
runs the same file. With `--block-level`, XLA has its default flags and our compiler makes block-level fusions; each way needs
a cache of its own. The command prints a row per folder in the form of the table in docs/conformance.md:

- byte-equal: the optimised module is the same text.
- canonically equal: the same text after all names are replaced by numbers in the order in which they occur; the hash of the names
  in the header is left out.
- structure: also without metadata.

For the other modules it prints the first XLA pass after which the texts differ to the end, with the number of modules. `--show`
prints the differing lines of one module. A module that XLA refuses, or that is for several devices, does not count.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import itertools
import multiprocessing
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import hlo_run
from hlo_run.codegen.llvm.ptxas import find_ptxas
from hlo_run.errors import HloRunError, Unsupported
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, write_dumps
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import OPTIMIZED_HLO, PIPELINE_START, Level, Observer, Step
from hlo_run.pass_support.replacements import file_name
from hlo_run.pipeline.compile import optimize
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_FINAL = "gpu_after_optimizations.txt"
_AS_IS = "--xla_disable_all_hlo_passes"
_FLAGS = ("--xla_dump_hlo_pass_re=.*",)
_DUMP = re.compile(r"\.(?P<number>\d{4})\.(?P<pipeline>[^.]+)\.after_(?P<row>.+)\.before_(?P<next>.+)\.txt$")
# Changes that XLA makes outside of its passes.
_UNSEEN = ("pre-scheduling-passes/schedule", "scheduled-gpu-module/renew-copies")
_SEVERAL = re.compile(r"\b(?:num_partitions|replica_count)=")
# Parts of the label of a row that one side alone has.
ALONE, LACKING = "ours alone: ", " (we lack it)"
# Rows of ours to search for one of XLA's, from the last one found.
_REACH = 80

_HEADER = re.compile(r"^(ENTRY )?%(?P<name>\S+) \((?P<parameters>.*)\) -> ")
_PARAMETER = re.compile(r"(?<![\w.\-])([\w.\-]+): ")
_COMPUTATIONS = re.compile(r"(?<!control-predecessors)=(?:%[\w.\-$]+|\{%[^{}]*\})")
_NAME = re.compile(r"%([\w.\-$]+)")
_SCHEDULING_NAME = re.compile(r'scheduling_name="([^"]*)"')
# A hash that depends on the names of computations.
_FINGERPRINT = re.compile(r'(?<=fingerprint_before_lhs=")[0-9a-f]+')
_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')


@dataclass(frozen=True)
class State:
    """The module after a row (`pipeline-start`: before the first row of a pipeline)."""

    pipeline: str
    row: str
    text: str
    changed: bool = True

    @property
    def label(self) -> str:
        """The row as `pipeline/row`."""
        return f"{self.pipeline}/{self.row}"


@dataclass(frozen=True)
class Outcome:
    """The comparison of one module. `first` is the first row after which the canonical texts differ."""

    name: str
    refused: str = ""
    failed: str = ""
    bytes_equal: bool = False
    canonical: bool = False
    structure: bool = False
    first: str = ""
    first_bytes: str = ""
    lines: tuple[str, ...] = ()
    final_lines: tuple[str, ...] = ()


class _States(Observer):
    """Collects the states of our run."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.final = ""

    def after(self, step: Step) -> None:
        if step.level is not Level.HLO:
            return
        if step.row == OPTIMIZED_HLO:
            self.final = step.text()
            return
        text = step.text() if step.changed or not self.states else self.states[-1].text
        self.states.append(State(file_name(step.pipeline), step.pass_name or step.row, text, bool(step.changed)))


def canonical(text: str, metadata: bool = True) -> str:
    """Return the text with numbers in place of the names of computations and instructions, in the order in which they occur."""
    computations: dict[str, str] = {}
    instructions: dict[str, str] = {}

    def computation(found: re.Match[str]) -> str:
        return "@" + computations.setdefault(found[1], f"c{len(computations)}")

    def instruction(found: re.Match[str]) -> str:
        return "%" + instructions.setdefault(found[1], f"i{len(instructions)}")

    def scheduling(found: re.Match[str]) -> str:
        return f'scheduling_name="{instructions.setdefault(found[1], f"i{len(instructions)}")}"'

    lines: list[str] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            number = computations.setdefault(header["name"], f"c{len(computations)}")
            named = _PARAMETER.sub(lambda f: instructions.setdefault(f[1], f"i{len(instructions)}") + ": ", header["parameters"])
            lines.append(f"{header[1] or ''}@{number} ({named}) -> {line[header.end() :]}")
            continue
        if "%" in line:
            line = line if metadata else _METADATA.sub("", line)
            line = _COMPUTATIONS.sub(lambda f: _NAME.sub(computation, f[0]), line)
            line = _SCHEDULING_NAME.sub(scheduling, _NAME.sub(instruction, line))
        lines.append(_FINGERPRINT.sub("", line))
    return "\n".join(lines)


def xla_dumps(file: Path, cache: Path, block_level: bool = False) -> dict[str, str] | str:
    """Return XLA's dumps of a module by file name, in order, from the cache if they are there; else the reason of a refusal."""
    kept = cache / file.parent.name / f"{file.stem}.zip"
    refusal = kept.with_suffix(".refused")
    if refusal.exists():
        return refusal.read_text(encoding="utf-8")
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        flags = [*_FLAGS] if block_level else [*EMITTERS_ONLY, *_FLAGS]
        flags += [_AS_IS] if "is_scheduled=true" in text.split("\n", 1)[0] else []
        ptxas = find_ptxas("")
        cuda = ptxas.parent.parent if ptxas is not None else None
        with tempfile.TemporaryDirectory() as folder:
            try:
                write_dumps(
                    text, str(file), to_text_proto(preset(DEFAULT_TARGET)), [*flags, "--xla_dump_hlo_as_text"], cuda, Path(folder)
                )
            except Unsupported as error:
                refusal.write_text(error.message, encoding="utf-8")
                return error.message
            with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(Path(folder).glob("*.txt")):
                    archive.write(path, path.name)
    with zipfile.ZipFile(kept) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def xla_states(dumps: dict[str, str]) -> tuple[list[State], str]:
    """Return the module after every pass of XLA that changed it and at the start of pipelines, and the optimised module."""
    states: list[tuple[int, State]] = []
    final = ""
    for name, text in dumps.items():
        found = _DUMP.search(name)
        if name.endswith(_FINAL):
            final = final or text
        elif found is not None:
            states.append((int(found["number"]), State(found["pipeline"], found["row"], text)))
    return [state for _, state in sorted(states, key=lambda pair: pair[0])], final


class _Texts:
    """Compares texts and keeps their canonical forms, with or without metadata."""

    def __init__(self, metadata: bool) -> None:
        self._metadata = metadata
        self._canonical: dict[str, str] = {}

    def form(self, text: str) -> str:
        if text not in self._canonical:
            self._canonical[text] = canonical(text, self._metadata)
        return self._canonical[text]

    def same(self, one: str, two: str) -> bool:
        return one == two or self.form(one) == self.form(two)


@dataclass
class _Divergence:
    label: str = ""
    before: str = ""
    after: str = ""
    bytes_label: str = ""
    seen: list[str] = field(default_factory=list[str])


def divergence(ours: Sequence[State], theirs: Sequence[State], metadata: bool) -> _Divergence:
    """Find the row after which the canonical texts differ to the end, and the one after which the bytes do."""
    texts, found, place = _Texts(metadata), _Divergence(), 0
    for state in theirs:
        window = list(itertools.islice(enumerate(ours), place, place + _REACH))
        hits = [number for number, other in window if (other.pipeline, other.row) == (state.pipeline, state.row)]
        same = [number for number in hits if texts.same(ours[number].text, state.text)]
        before = place
        if hits:
            changed = [number for number in hits if ours[number].changed]
            place = (same or (changed if state.row != PIPELINE_START else hits) or hits)[0] + 1
        current = ours[place - 1].text if place else ours[0].text
        own = [s.label for s in ours[before : max(place - 1, before)] if s.changed and s.label not in _UNSEEN]
        label = f"{ALONE}{own[0]}" if own else state.label + ("" if hits else LACKING)
        if current == state.text:
            found = _Divergence()
            continue
        found.bytes_label = found.bytes_label or label
        if texts.same(current, state.text):
            found.label = ""
        elif not found.label:
            found.label, found.before, found.after = label, current, state.text
    return found


def compare_file(file: Path, cache: Path, block_level: bool = False) -> Outcome:
    """Compare the compilation of one module with XLA's."""
    if _SEVERAL.search(file.read_text(encoding="utf-8").split("\n", 1)[0]):
        return Outcome(file.stem, refused="for several devices, and XLA compiles it for one")
    dumps = xla_dumps(file, cache, block_level)
    if isinstance(dumps, str):
        return Outcome(file.stem, refused=dumps)
    theirs, final = xla_states(dumps)
    states = _States()
    options = Options(block_level_fusions=block_level, verify="off", xla_dump_compact_gte=False, xla_dump_hlo_as_long_text=True)
    try:
        module = hlo_run.parse(file.read_text(encoding="utf-8"), str(file))
        optimize(PassContext(preset(DEFAULT_TARGET), options, (states,), show=options), module)
    except HloRunError as error:
        return Outcome(file.stem, failed=error.message)
    ours, theirs_text = states.final.rstrip("\n"), final.rstrip("\n")
    if ours == theirs_text:
        return Outcome(file.stem, bytes_equal=True, canonical=True, structure=True)
    same = canonical(ours) == canonical(theirs_text)
    alike = same or canonical(ours, metadata=False) == canonical(theirs_text, metadata=False)
    found = divergence(states.states, theirs, metadata=alike)
    return Outcome(
        file.stem,
        canonical=same,
        structure=alike,
        first="" if same else found.label or "after the last pass",
        first_bytes=found.bytes_label or "after the last pass",
        lines=_first_lines(found.before or ours, found.after or theirs_text, alike),
        final_lines=_first_lines(ours, theirs_text, alike),
    )


def _first_lines(ours: str, theirs: str, metadata: bool, limit: int = 12) -> tuple[str, ...]:
    one, two = canonical(ours, metadata).splitlines(), canonical(theirs, metadata).splitlines()
    if one == two:
        one, two = ours.splitlines(), theirs.splitlines()
    changes = (line for line in difflib.unified_diff(one, two, "ours", "XLA", lineterm="", n=0) if line[0] in "+-")
    return tuple(itertools.islice(changes, limit))


def summary(folder: str, outcomes: Iterable[Outcome]) -> str:
    """Return the folder's row of the table."""
    counted = [outcome for outcome in outcomes if not outcome.refused]
    total = len(counted)
    numbers = [sum(getattr(o, name) for o in counted) for name in ("bytes_equal", "canonical", "structure")]
    parts = " | ".join(f"{number} ({100 * number / max(total, 1):.0f} %)" for number in numbers)
    return f"| {folder} | {total} | {parts} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--from", type=int, default=0, dest="start")
    parser.add_argument("--cache", type=Path, default=Path("xla_dumps"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--show", default="")
    parser.add_argument("--block-level", action="store_true")
    arguments = parser.parse_args()
    rows: list[str] = []
    print("| folder | modules | byte-equal | canonically equal | structure |\n| --- | --- | --- | --- | --- |")
    buckets: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in ("structure", "metadata", "names")}
    for folder in arguments.folders:
        files = sorted(folder.glob("*.hlo"))[arguments.start :: arguments.every]
        wanted = [name for name in (arguments.models or arguments.show).split(",") if name]
        files = [file for file in files if not wanted or file.stem in wanted]
        outcomes = _run_all(files, arguments.cache, arguments.jobs, arguments.block_level)
        print(summary(folder.name, outcomes), flush=True)
        for o in outcomes:
            if arguments.show:
                found = (o.name, o.refused, o.failed, "first:", o.first, "bytes:", o.first_bytes, *o.lines)
                print(*found, "the optimised module:", *o.final_lines, sep="\n")
            rows.append("\t".join((folder.name, o.name, _verdict(o), o.first, o.first_bytes, o.failed, *o.lines[:2])))
            if not o.refused and not o.bytes_equal:
                kind = "names" if o.canonical else "metadata" if o.structure else "structure"
                buckets[kind][(o.first_bytes if o.canonical else o.first) or f"error: {o.failed[:60]}"] += 1
    for title, counter in buckets.items():
        print(f"\nFirst difference of {title}:")
        for label, count in counter.most_common():
            print(f"{count:5} {label}")
    if arguments.rows:
        arguments.rows.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _verdict(o: Outcome) -> str:
    if o.refused:
        return "refused"
    return "bytes" if o.bytes_equal else "canonical" if o.canonical else "structure" if o.structure else "differs"


def _run_all(files: Sequence[Path], cache: Path, jobs: int, block_level: bool) -> list[Outcome]:
    work = partial(compare_file, cache=cache, block_level=block_level)
    if jobs < 2:
        return [work(file) for file in files]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        return pool.map(work, files, chunksize=1)


if __name__ == "__main__":
    sys.exit(main())
