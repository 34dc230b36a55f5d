"""Write docs/passes.md: every HLO pass of XLA:GPU, in order, with our pass or the reason that there is none.

    python3 scripts/venv.py python scripts/pass_table.py [--check]

XLA's passes are those of tests/data/xla_pipelines.txt (recorded by scripts/record_xla_pipelines.py), ours those of
hlo_run/pipeline/table.py. With `--check` it writes nothing, and the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.other_passes import OTHER_PASSES
from hlo_run.pipeline.table import PIPELINE
from hlo_run.target import DEFAULT_TARGET, preset

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "passes.md"
RECORDED = ROOT / "tests" / "data" / "xla_pipelines.txt"
OPEN = "open"

_HOST_MEMORY = "no work and no memory moves to the host"
# Pipelines that a pass of ours runs itself, without rows, and the file that does so.
_WITHIN = {"spmd-cleanup": ("spmd-partitioning", "hlo_run/sharding/partitioning/cleanup.py")}
# Why a pass of XLA's needs no row of ours: a compilation without it has the same result.
NOT_NEEDED = {
    "apply-xla-transforms": "applies edits that a caller of XLA's library registers; a command line cannot",
    "collectives-schedule-linearizer": "acts only while XLA measures convolutions on a device, which hlo-run does not do",
    "conv-fp8-fallback": "acts on fusions of cuDNN, which `--xla_gpu_experimental_enable_conv_fusion` makes on a device",
    "deviceless-estimate-cub-sort-scratch-size": "`estimate-cub-sort-scratch-size` runs instead, as with a device",
    "hlo-verifier": "changes nothing; `--verify` says when the verifier runs",
    "nullary-function-wrap-inliner": "`call-inliner` inlines all calls, those without parameters too",
}
# What is missing of the passes that are open.
WHY_OPEN = {
    "hlo_host_device_type_call_wrapper": _HOST_MEMORY,
    "convert-memory-placement-to-internal-annotations": _HOST_MEMORY,
    "host_compute_asyncifier": _HOST_MEMORY,
    "host-offloading-prepare-convert-to-custom-call": _HOST_MEMORY,
    "host-offload-legalize": _HOST_MEMORY,
    "host-memory-transfer-asyncifier": _HOST_MEMORY,
    "host-offloader": f"{_HOST_MEMORY}; the row of this name is the cse at the end of XLA's pass",
    "cudnn-custom-call-converter": "custom calls with fusions of cuDNN stay custom calls",
    "hoist-fused-bitcasts": "block-level fusions are made without bitcasts on their border; a given fusion keeps its own",
    "rematerialization": "a module that needs more memory than the device has is not changed",
}
_TESTS = ROOT / "tests"


def main() -> int:
    """Write or check the page. Return the exit code."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """Return the text of docs/passes.md."""
    recorded = [tuple(line.split("\t")) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    ours = _ours()
    rows = [(group, name, *_place(name, group, ours)) for group, name in recorded]
    names = {row[1]: row[2] for row in rows}
    counts = {state: sum(found == state for found in names.values()) for state in ("there", "not needed", OPEN)}
    lines = [
        "# Passes",
        "",
        "XLA:GPU's HLO passes in the order in which they run, from the beginning of a compilation to its end, and ours. Made by "
        "`scripts/pass_table.py` from what `scripts/record_xla_pipelines.py` recorded: released XLA with its defaults, Triton "
        "included, for one device and for two. A test keeps it true. A pass is there if a test shows its effect; the table links "
        "it, and `scripts/pass_effects.py` checks that it fails if the pass does nothing. A pass is not needed if a compilation "
        "without it has the same result. All others are open.",
        "",
        "`spmd-partitioner` runs only for a module of several partitions, `sharding-removal` for others. Of the "
        "two propagations, `shardy-xla` runs where Shardy is on and the module has its attributes, "
        "`sharding-propagation` elsewhere.",
        "",
        f"Of {len(names)} different passes {counts['there']} are there, {counts['not needed']} are not needed, "
        f"{counts[OPEN]} are open. `hlo-run --list_passes` lists our rows, also those for which XLA has no pass.",
    ]
    for group, items in groupby(rows, key=lambda row: row[0]):
        lines += ["", f"## {group}", "", "| XLA's pass | ours | its test |", "| --- | --- | --- |"]
        lines += [f"| {name} | {text} |" for _, name, _, text in items]
    lines += [
        "",
        "## Outside of the pipeline",
        "",
        "Passes that XLA:GPU does not run by default: `hlo-opt --passes=NAME` runs them.",
        "",
    ]
    lines += ["| pass | here |", "| --- | --- |"]
    ctx = PassContext(preset(DEFAULT_TARGET), Options())
    for _, row in OTHER_PASSES.all_rows():
        file = _file_of(row.make(ctx))
        lines.append(f"| {row.name} | {_link(file)} |")
    return "\n".join(lines) + "\n"


def _ours() -> dict[str, list[tuple[str, str]]]:
    """Return (group, path of the pass's file) of every row, by the pass's name."""
    ctx = PassContext(preset(DEFAULT_TARGET), Options())
    found: dict[str, list[tuple[str, str]]] = {}
    for group in PIPELINE:
        for names, row in group.all_rows():
            file = _file_of(row.make(ctx))
            found.setdefault(row.pass_name, []).append((names[-1], file))
    return found


def _file_of(item: object) -> str:
    """Return the path of the source file that defines the type of `item`."""
    return f"{type(item).__module__.replace('.', '/')}.py"


def _place(name: str, group: str, ours: dict[str, list[tuple[str, str]]]) -> tuple[str, str]:
    """Return (state, text of the table cells) for one of XLA's rows."""
    if name in NOT_NEEDED:
        return "not needed", f"not needed: {NOT_NEEDED[name]} | "
    if name in WHY_OPEN or name not in ours:
        return OPEN, f"open: {WHY_OPEN.get(name, 'hlo-run has no such pass')} | "
    test = test_of(name, ours[name][0][1])
    if test is None:
        return OPEN, f"open: no test shows its effect ({_link(ours[name][0][1])}) | "
    link = f"[{test.removeprefix('tests/').removeprefix('hlo_passes/')}](../{test})"
    if group in _WITHIN:
        runner, file = _WITHIN[group]
        return "there", f"{_link(file)}, within `{runner}` | {link}"
    here = "" if group in dict(ours[name]) else ", not at this place"
    return "there", f"{_link(ours[name][0][1])}{here} | {link}"


def test_of(name: str, file: str) -> str | None:
    """Return the test of a pass: a file of tests that asks for the row by name, that of the pass's own file first.

    A text test asks for it by `--only`, a Python test names it in quotes or in flags, or imports the pass of its own file. None
    if no test does.
    """
    path = Path(file).relative_to("hlo_run")
    own = [_TESTS / path.with_suffix(".hlo"), *sorted((_TESTS / path.parent).glob(f"test_{path.stem}*.py"))]
    near = sorted((_TESTS / path.parent).glob("**/*.hlo")) + sorted((_TESTS / path.parent).glob("**/test_*.py"))
    folders = [_TESTS / "hlo_passes", _TESTS / "sharding"]
    others = [path for pattern in ("**/*.hlo", "**/test_*.py") for folder in folders for path in sorted(folder.glob(pattern))]
    for test in dict.fromkeys((*own, *near, *others)):
        is_own = test in own and f"from {'.'.join(('hlo_run', *path.with_suffix('').parts))} import" in _text_of(test)
        if names_pass(test, name) or is_own:
            return test.relative_to(ROOT).as_posix()
    return None


def names_pass(test: Path, name: str) -> bool:
    """True if a file of tests runs the pass `name` and looks at the result."""
    text = _text_of(test)
    spelled = re.sub("[-_]", "[-_]", re.escape(name).replace("\\-", "-"))
    if test.suffix == ".hlo":
        asks = re.search(rf"^// RUN:.*(?:--only=|,|--passes=){spelled}(?:-\d+)?(?=[\s,{{]|$)", text, re.MULTILINE)
        return asks is not None and "// CHECK" in text
    return re.search(rf"""["'=,]{spelled}(?:-\d+)?["',\s{{]""", text) is not None and "assert" in text


@functools.cache
def _text_of(test: Path) -> str:
    return test.read_text(encoding="utf-8") if test.exists() else ""


def _link(file: str) -> str:
    return f"[{file.removeprefix('hlo_run/hlo_passes/')}](../{file})"


def tests_of_passes() -> dict[str, str]:
    """Return the test of each pass that is there."""
    recorded = dict.fromkeys(line.split("\t")[1] for line in RECORDED.read_text(encoding="utf-8").splitlines())
    ours = _ours()
    found = {name: test_of(name, ours[name][0][1]) for name in recorded if name in ours and name not in (*WHY_OPEN, *NOT_NEEDED)}
    return {name: test for name, test in found.items() if test is not None}


def unknown_notes() -> Iterator[str]:
    """Yield the names with a reason that XLA does not have, or that we have by now."""
    recorded = {line.split("\t")[1] for line in RECORDED.read_text(encoding="utf-8").splitlines()}
    ours = set(_ours()) - {"host-offloader"}
    yield from (name for name in (*NOT_NEEDED, *WHY_OPEN) if name not in recorded or name in ours)


if __name__ == "__main__":
    raise SystemExit(main())
