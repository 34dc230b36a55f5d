"""Write down what changed between two releases of XLA, so that hlo-run can mirror the newer one.

    python3 scripts/venv.py python scripts/follow_release.py OLD_PYTHON NEW_PYTHON FILE_OR_FOLDER.. [--every N]
        [--disable PASS,..] [--renamed OLD=NEW,..] [--cache DIR] [--jobs N] > CHANGES.md

Both Pythons have jaxlib and the XLA:GPU plugin. The list has these parts:

- Flags: the fields of DebugOptions that are new, gone, of another type or of another default.
- Protos: the other messages and enums of XLA whose fields or values changed.
- Pipelines: which passes are new, gone or moved, as a difference.
- Text: the modules that the two parse or print differently.
- Passes: each module is compiled by both, for an H100 without Triton and autotuning. A module whose texts differ counts for the
  first pass after which they differ to the end (names, metadata and backend configs left out), with the first module and the
  first lines that show it. What comes later in this module is not seen; `--disable` switches passes off in both. `--renamed`
  names passes that have another name or pipeline, such as autotuner/autotuner=config-assigner/config-assigner.
- Work of passes: how many modules a pass changes in each release, where that differs.
- Files: names of dumps that one release alone writes, and the modules whose thunks differ although the modules are the same.

`--cache` keeps the dumps of both, so that the list can be written again.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from record_xla_pipelines import merge_lines
from release import Field, Release
from text_goldens import ALONE, LACKING, State, canonical, divergence, xla_states
from xla_text import XlaText

from hlo_run.formats.spelling import older
from hlo_run.hlo.values.backend_config import sorted_config
from hlo_run.pass_support.observer import PIPELINE_START

_OPTIONS = "xla.DebugOptions"
_CONFIG = ".config.pbtxt"
_THUNKS = ".thunk_sequence.txt"
_BACKEND_CONFIG = re.compile(r"(, backend_config=)(.*)")
_HEADER = re.compile(r"\AHloModule.*\n")
_COUNTER = re.compile(r"(?<=apply-xla-transforms)-\d+")
_PASS_DUMP = re.compile(r"\.\d{4}\.[^.]+\.after_")
_NUMBERED = re.compile(r"\.\d+(?=\.(?:ir-no-opt\.ll|ir-with-opt\.ll|ptx)$)")
_MODULE = re.compile(r"module_\d+\.[^.]*")
_LINES = 8


@dataclass
class Shown:
    """A difference: how many modules show it, and the first of them with its first lines."""

    count: int = 0
    module: str = ""
    lines: tuple[str, ...] = ()

    def add(self, module: str, lines: Iterable[str] = ()) -> None:
        """Count a module."""
        self.count += 1
        if not self.module:
            self.module, self.lines = module, tuple(lines)


@dataclass
class Modules:
    """The findings in the compilations of all modules."""

    renamed: Mapping[str, str]
    compiled: int = 0
    equal: int = 0
    refused: dict[str, Shown] = field(default_factory=lambda: defaultdict(Shown))
    passes: dict[str, Shown] = field(default_factory=lambda: defaultdict(Shown))
    work: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    workers: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, Shown] = field(default_factory=lambda: defaultdict(Shown))
    thunks: Shown = field(default_factory=Shown)
    configs: Shown = field(default_factory=Shown)

    def add(self, name: str, before: Mapping[str, str] | str, after: Mapping[str, str] | str) -> None:
        """Compare the dumps of a module by the two releases."""
        if isinstance(before, str) or isinstance(after, str):
            if isinstance(before, str) != isinstance(after, str):
                reason = before if isinstance(before, str) else str(after)
                self.refused[f"{'old' if isinstance(before, str) else 'new'} release: {reason[:160]}"].add(name)
            return
        self.compiled += 1
        (old, old_text), (new, new_text) = _states(before, self.renamed), _states(after, {})
        for states, counter in zip((old, new), self.work, strict=True):
            for label in {state.label for state in states if state.row != PIPELINE_START}:
                counter[label] += 1
                self.workers.setdefault(label, name)
        found = divergence(old, new, metadata=False)
        if canonical(_plain(old_text), metadata=False) == canonical(_plain(new_text), metadata=False):
            self.equal += 1
            if _with_configs(old_text) != _with_configs(new_text):
                self.configs.add(name, _changed_lines(_with_configs(old_text), _with_configs(new_text)))
            one, other = (next((text for file, text in dumps.items() if file.endswith(_THUNKS)), "") for dumps in (before, after))
            if canonical(one) != canonical(other):
                self.thunks.add(name, _changed_lines(one, other))
        else:
            self.passes[_label(found.label)].add(name, _changed_lines(*_forms(found.before, found.after)))
        lacking, extra = (_kinds(one) - _kinds(other) for one, other in ((before, after), (after, before)))
        for kind in lacking | extra:
            self.files[f"{'gone' if kind in lacking else 'new'}: `{kind}`"].add(name)


def _states(dumps: Mapping[str, str], renamed: Mapping[str, str]) -> tuple[list[State], str]:
    """Return the module after every pass that changed it, in the form that both releases share, and the optimised module."""

    def named(state: State) -> State:
        pipeline, _, row = renamed.get(state.label, state.label).partition("/")
        return replace(state, pipeline=pipeline, row=_COUNTER.sub("", row))

    states, final = xla_states(dict(dumps))
    made = [replace(named(s), text=_plain(s.text), changed=s.row != PIPELINE_START) for s in states]
    return made, final


def _plain(text: str) -> str:
    """Return a dump without its header and backend configs, in the notation of older releases."""
    lines = older(_HEADER.sub("", text)).splitlines()
    return "\n".join(_BACKEND_CONFIG.sub("", line) for line in lines)


def _label(label: str) -> str:
    """Say of which release a pass is that changes something in one alone."""
    if label.startswith(ALONE):
        return f"{label.removeprefix(ALONE)} (changes it in the old release alone)"
    return label.replace(LACKING, " (changes it in the new release alone)") or "after the last pass"


def _with_configs(text: str) -> str:
    """Return the canonical text with the keys of backend configs in alphabetic order."""
    form = canonical(older(_HEADER.sub("", text)), metadata=False)
    return _BACKEND_CONFIG.sub(lambda found: found[1] + sorted_config(found[2]), form)


def _forms(before: str, after: str) -> tuple[str, str]:
    return canonical(before, metadata=False), canonical(after, metadata=False)


def _changed_lines(before: str, after: str) -> Iterator[str]:
    """Yield the first lines that differ."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return itertools.islice((line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")), _LINES)


def _kinds(dumps: Mapping[str, str]) -> set[str]:
    """Return the names of files without the module, the numbers of kernels, and dumps between passes."""
    return {_MODULE.sub("M", _NUMBERED.sub(".N", name), count=1) for name in dumps if not _PASS_DUMP.search(name)}


def changed_fields(before: Mapping[str, Field], after: Mapping[str, Field]) -> Iterator[str]:
    """Yield what changed between the fields of a message."""
    for name, found in after.items():
        if name not in before:
            yield f"new: `{name}` ({found.type or found.number})"
        elif before[name] != found:
            yield f"other: `{name}` was {before[name].type} {before[name].number}, is {found.type} {found.number}"
    yield from (f"gone: `{name}`" for name in before if name not in after)


def defaults(dumps: Mapping[str, str] | str) -> dict[str, list[str]]:
    """Return the flags in a `config.pbtxt` with their values: the defaults, as no flag is given that matters."""
    text = "" if isinstance(dumps, str) else next((text for name, text in dumps.items() if name.endswith(_CONFIG)), "")
    _, _, options = text.partition("debug_options {\n")
    found: dict[str, list[str]] = defaultdict(list)
    for line in options.partition("\n}")[0].splitlines():
        name, colon, value = line.strip().partition(": ")
        if colon and line.startswith("  ") and not line.startswith("   "):
            found[name].append(value)
    return found


def flag_lines(old: Release, new: Release, before: Mapping[str, str] | str, after: Mapping[str, str] | str) -> Iterator[str]:
    """Yield a line per flag that changed."""
    values = defaults(after)
    for line in changed_fields(old.flags, new.flags):
        name = line.split("`")[1]
        yield f"- {line}" + (f", default {', '.join(values[name])}" if name in values and line.startswith("new") else "")
    earlier = defaults(before)
    for name in (name for name in new.flags if name in old.flags):
        one, other = (", ".join(found.get(name, ["unset"])) for found in (earlier, values))
        if one != other and "xla_dump_to" not in name:
            yield f"- other default: `{name}` was {one}, is {other}"


def proto_lines(old: Release, new: Release) -> Iterator[str]:
    """Yield a line per message or enum that changed, but DebugOptions."""
    for name in sorted({*old.protos, *new.protos} - {_OPTIONS}):
        if name not in new.protos or name not in old.protos:
            yield f"- {'gone' if name not in new.protos else 'new'}: `{name}`"
        elif changes := list(changed_fields(old.protos[name], new.protos[name])):
            yield f"- `{name}`: {'; '.join(changes)}"


def pipeline_lines(old: Release, new: Release) -> Iterator[str]:
    """Yield the differing lines of the pipelines, with those around them."""
    one, other = (reduce(merge_lines, release.pipelines()) for release in (old, new))
    yield "```diff"
    yield from list(difflib.unified_diff(one, other, lineterm="", n=1))[2:]
    yield "```"


def text_lines(old: Release, new: Release, files: Sequence[Path]) -> Iterator[str]:
    """Yield a line per module that the two parse or print differently."""
    with XlaText(old.python) as before, XlaText(new.python) as after:
        for file in files:
            text = file.read_text(encoding="utf-8")
            one, other = before.print(old.spelled(text)), after.print(text)
            if one != other:
                lines = [f"only {one[0]} | {other[0]}"] if one[0] != other[0] else list(_changed_lines(one[1], other[1]))
                yield f"- {file.name}: {' | '.join(line.strip() for line in lines[:2])}"


def shown_lines(found: Mapping[str, Shown]) -> Iterator[str]:
    """Yield an item per difference, the most frequent first."""
    for label, shown in sorted(found.items(), key=lambda item: (-item[1].count, item[0])):
        yield f"- {label}: {shown.count}, first `{shown.module}`"
        if shown.lines:
            yield from ("", "  ```diff", *(f"  {line}" for line in shown.lines), "  ```", "")


def work_lines(modules: Modules, order: Sequence[str]) -> Iterator[str]:
    """Yield a row per pass that changes more or fewer modules than before."""
    before, after = modules.work
    yield from ("| pass | modules it changed | it changes | first module |", "| --- | ---: | ---: | --- |")
    for label in order:
        if before[label] != after[label]:
            yield f"| {label} | {before[label]} | {after[label]} | {modules.workers[label]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD_PYTHON")
    parser.add_argument("new", metavar="NEW_PYTHON")
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--every", type=int, default=1, help="take every N-th module of a folder")
    parser.add_argument("--disable", default="", help="passes that run in neither release")
    parser.add_argument("--renamed", default="", help="passes with other names: OLD_PIPELINE/PASS=NEW_PIPELINE/PASS,..")
    parser.add_argument("--cache", type=Path, help="keep the dumps in this folder")
    parser.add_argument("--jobs", type=int, default=1, help="compile so many modules at once")
    arguments = parser.parse_args()
    paths: list[Path] = arguments.paths
    for path in (Path(arguments.old), Path(arguments.new), *paths):
        if not path.exists() and shutil.which(path) is None:
            parser.error(f"{path} does not exist")
    old, new = (Release(python, arguments.cache) for python in (arguments.old, arguments.new))
    parts = (sorted(path.glob("*.hlo"))[:: arguments.every] if path.is_dir() else [path] for path in paths)
    files: list[Path] = [file for part in parts for file in part]
    if not files:
        parser.error("no module to compile: the folders have no .hlo files")
    flags = [f"--xla_disable_hlo_passes={arguments.disable}"] if arguments.disable else []

    def dumps(file: Path) -> tuple[Mapping[str, str] | str, Mapping[str, str] | str]:
        return old.dumps(file, flags), new.dumps(file, flags)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        dumped = list(pool.map(dumps, files))
    modules = Modules(dict(pair.split("=", 1) for pair in arguments.renamed.split(",") if pair))
    for file, (before, after) in zip(files, dumped, strict=True):
        modules.add(file.stem, before, after)
    print(f"# From XLA of jaxlib {old.version} to {new.version}")
    print("\n## Flags\n", *flag_lines(old, new, *dumped[0]), sep="\n")
    print("\n## Protos\n", *proto_lines(old, new), sep="\n")
    print("\n## Pipelines\n", *pipeline_lines(old, new), sep="\n")
    print("\n## Text\n", *text_lines(old, new, files), sep="\n")
    print(f"\n## Passes\n\nThe texts of {modules.equal} of {modules.compiled} optimised modules are the same.\n")
    print(*shown_lines(modules.passes), *shown_lines(modules.refused), sep="\n")
    print(*shown_lines({"the same but for backend configs": modules.configs} if modules.configs.count else {}), sep="\n")
    print("\n## Work of passes\n", *work_lines(modules, [*dict.fromkeys([*modules.work[1], *modules.work[0]])]), sep="\n")
    print("\n## Files\n", *shown_lines(modules.files), sep="\n")
    print(*shown_lines({"the same module, other thunks": modules.thunks} if modules.thunks.count else {}), sep="\n")


if __name__ == "__main__":
    main()
