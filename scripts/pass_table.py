"""Write docs/passes.md: every HLO pass of XLA:GPU, in order, with our pass or the reason that there is none.

    python3 scripts/venv.py python scripts/pass_table.py [--check]

XLA's passes are those of tests/data/xla_pipelines.txt (recorded by scripts/record_xla_pipelines.py), ours those of
hlo_run/pipeline/table.py. With `--check` it writes nothing, and the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.options import Options
from hlo_run.pipeline.other_passes import OTHER_PASSES
from hlo_run.pipeline.table import PIPELINE
from hlo_run.target import DEFAULT_TARGET, preset

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "passes.md"
RECORDED = ROOT / "tests" / "data" / "xla_pipelines.txt"
OPEN = "open"

_HOST_MEMORY = "moves work or memory to the host, which nothing here can name"
_COLLECTIVES = "makes collectives of several devices faster, changes no result"
_NEVER = "runs only with a flag that hlo-run does not have"
# Pipelines that a pass of ours runs itself, without rows, and the file that does so.
_WITHIN = {"spmd-cleanup": ("spmd-partitioning", "hlo_run/hlo_passes/partitioning/cleanup.py")}
# Why a pass of XLA's has no row of ours. A pass that is neither here nor in our table is open.
WHY_NOT = {
    "hlo_host_device_type_call_wrapper": _HOST_MEMORY,
    "convert-memory-placement-to-internal-annotations": _HOST_MEMORY,
    "host_compute_asyncifier": _HOST_MEMORY,
    "host-offloading-prepare-convert-to-custom-call": _HOST_MEMORY,
    "host-offload-legalize": _HOST_MEMORY,
    "host-memory-transfer-asyncifier": _HOST_MEMORY,
    "cudnn-custom-call-converter": "cuDNN's own fusions: no backend here takes them",
    "composite-rewriter": "composite calls of one kernel library; they stay calls",
    "apply-xla-transforms": _NEVER,
    "collectives-schedule-linearizer": "runs only if XLA measures convolutions on a device",
    "deviceless-estimate-cub-sort-scratch-size": "`estimate-cub-sort-scratch-size` runs instead, as with a device",
    "autotuner": "measures library algorithms on the device; the libraries' own choice is taken",
    "convert_triton_gemm_config": "no GEMM goes to Triton",
    "propagate-call-metadata": "calls are inlined with their metadata",
    "hlo-verifier": "`--verify` says when the verifier runs",
}


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
    groups = {group for group, _ in recorded}
    ours = _ours()
    rows = [(group, name, *_place(name, group, ours)) for group, name in recorded if name not in groups - set(ours)]
    names = {row[1]: row[2] for row in rows}
    counts = {state: sum(found == state for found in names.values()) for state in ("there", "not needed", OPEN)}
    lines = [
        "# Passes",
        "",
        "XLA:GPU's HLO passes in the order in which they run, and ours. Made by `scripts/pass_table.py`; a test keeps it true.",
        "",
        "`spmd-partitioner` runs only for a module of several partitions, `sharding-removal` for others. Of the "
        "two propagations, `shardy-xla` runs where Shardy is on and the module has its attributes, "
        "`sharding-propagation` elsewhere.",
        "",
        f"Of {len(names)} different passes {counts['there']} are there, {counts['not needed']} are not needed, "
        f"{counts[OPEN]} are open. `hlo-run --list_passes` lists our rows, also those for which XLA has no pass.",
    ]
    for group, items in groupby(rows, key=lambda row: row[0]):
        lines += ["", f"## {group}", "", "| XLA's pass | ours |", "| --- | --- |"]
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
        file = Path(inspect.getfile(type(row.make(ctx)))).relative_to(ROOT).as_posix()
        lines.append(f"| {row.name} | {_link(file)} |")
    return "\n".join(lines) + "\n"


def _ours() -> dict[str, list[tuple[str, str]]]:
    """Return (group, path of the pass's file) of every row, by the pass's name."""
    ctx = PassContext(preset(DEFAULT_TARGET), Options())
    found: dict[str, list[tuple[str, str]]] = {}
    for group in PIPELINE:
        for names, row in group.all_rows():
            file = Path(inspect.getfile(type(row.make(ctx)))).relative_to(ROOT).as_posix()
            found.setdefault(row.pass_name, []).append((names[-1], file))
    return found


def _place(name: str, group: str, ours: dict[str, list[tuple[str, str]]]) -> tuple[str, str]:
    """Return (state, text of the table cell) for one of XLA's rows."""
    if group in _WITHIN:
        runner, file = _WITHIN[group]
        return "there", f"{_link(file)}, within `{runner}`"
    if name in ours:
        link = _link(ours[name][0][1])
        return "there", link if group in dict(ours[name]) else f"{link}, not at this place"
    if WHY_NOT.get(name) == _COLLECTIVES:
        return OPEN, f"open: {_COLLECTIVES}"
    if name in WHY_NOT:
        return "not needed", f"not needed: {WHY_NOT[name]}"
    return OPEN, OPEN


def _link(file: str) -> str:
    return f"[{file.removeprefix('hlo_run/hlo_passes/')}](../{file})"


def unknown_notes() -> Iterator[str]:
    """Yield the names in `WHY_NOT` that XLA does not have, or that we have by now."""
    recorded = {line.split("\t")[1] for line in RECORDED.read_text(encoding="utf-8").splitlines()}
    ours = _ours()
    yield from (name for name in WHY_NOT if name not in recorded or name in ours)


if __name__ == "__main__":
    raise SystemExit(main())
