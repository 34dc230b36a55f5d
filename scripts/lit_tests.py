"""Run the RUN lines of XLA's own lit tests with this project's tools, and count those that pass.

    python3 scripts/venv.py python scripts/lit_tests.py XLA_TREE [--rows OUT.tsv] [--verbose] [--only PART]

XLA_TREE is XLA's source tree; `FOLDERS` names the folders of the tests. Each line runs in a shell whose `hlo-opt` and
`FileCheck` are ours (the latter of the `filecheck` package), in the order of the file. Of the emitters' tools,
`gpu_test_correctness FILE` runs the fusion on Host and compares it with the reference; `fusion_to_mlir FILE | emitters_opt`
prints kernel IR: as emitted, after the first simplification (`-xla-test-optimize`), or in the LLVM dialect (`-xla-gpu-test-to-
llvm`). The IR is also checked in the form of released XLA (`--print_ir_as_xla`). Lines of other platforms, tools and test passes
are out of scope.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import hlo_run
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.print_options import FULL

FOLDERS = {
    "hlo-opt": ("tools/hlo_opt/tests", "hlo/tools/tests", "hlo/transforms/tests", "backends/gpu/tests"),
    "emitters": ("codegen/emitters/tests", "backends/gpu/codegen/emitters/tests"),
}
# What lit's parameters stand for, by folder.
PARAMETERS = {"tools/hlo_opt/tests": {"%{GPU}": "a100_pcie_80", "%{PTX}": "PTX"}}
OTHER_PARAMETERS = {"%{GPU}": "h100_sxm", "%{PTX}": "PTX"}
# Why a line is out of scope: (reason, pattern of the line or of the file's name).
SCOPE = (
    ("XLA:CPU", r"--platform=cpu|cpu_test_correctness|cpu_fusion_to_mlir|onednn"),
    ("passes for XLA's own tests, or for other platforms", r"test-only-|%if IS_ROCM|gfx\d|bmg"),
    ("a binary module of newer XLA, or all of its passes", r"protobinary|all_passes_smoke|list-passes \|"),
    ("a tool that is not here", r"generate_hlo_test_checks"),
    ("Triton", r"triton"),
)
_RUN = re.compile(r"^\s*(?://|#|;)?\s*RUN:\s?(.*)$")
_KERNEL_IR = re.compile(r"(?:gpu_)?fusion_to_mlir (\S+) *(?:\| *emitters_opt((?: +-[^|]+?)*))? *\|")
_LIMIT_SECONDS = 240
# Pipelines of `emitters_opt` and our row after them, the last pipeline first; other options name single passes.
_ROWS = {
    "test-to-llvm": "lower-to-llvm-gpu",
    "lower-tensors": "lower-tensors",
    "test-transform-loops": "cse-4",
    "test-optimize": "erase-dead-functions",
}
_SPECS = "backends/gpu/target_config/specs"  # XLA's tools for tests take an A6000
_PASSES = {"inline": "inliner,cse"}


@dataclass(frozen=True)
class Line:
    """One RUN line of a test."""

    kind: str
    file: Path
    text: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of a line: `pass`, `fail` or `scope`, with the reason."""

    line: Line
    found: str
    why: str = ""


def lines_of(kind: str, file: Path) -> list[Line]:
    """Return the RUN lines of a file; a backslash at the end of a line continues it."""
    found: list[str] = []
    goes_on = False
    for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
        match = _RUN.match(text)
        if match is None:
            continue
        part = match[1].strip()
        if goes_on:
            found[-1] += " " + part
        else:
            found.append(part)
        goes_on = part.endswith("\\")
        found[-1] = found[-1].removesuffix("\\").strip()
    return [Line(kind, file, text) for text in found]


def with_entry(text: str) -> HloModule:
    """Return a module whose entry calls the fusion of a test, as XLA's `LoadTestModule` makes it."""
    if re.search(r"^\s*ENTRY\b", text, re.MULTILINE):
        return hlo_run.parse(text)
    body = hlo_run.parse(text, verified=False)
    fusion = next((c for c in body.computations if c.name == "fusion"), body.entry)
    shapes = [p.shape.to_string() for p in fusion.parameters]
    lines = [f"  e{n} = {shape} parameter({n})" for n, shape in enumerate(shapes)]
    operands = ", ".join(f"e{n}" for n in range(len(shapes)))
    result = fusion.root.shape.to_string()
    lines.append(f"  ROOT e = {result} fusion({operands}), kind=kLoop, calls={fusion.name}")
    plain = re.sub(r"^\s*HloModule.*$", "", text, flags=re.MULTILINE)
    return hlo_run.parse(f"HloModule main\n{plain}\nENTRY entry {{\n" + "\n".join(lines) + "\n}\n")


def _write_tools(folder: Path) -> None:
    tools = Path(sys.prefix) / "bin"
    this = f"exec {shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).resolve()))}"
    scripts = {
        "hlo-opt": f'exec {tools / "hlo-opt"} "$@"',
        "FileCheck": f'exec {tools / "filecheck"} "$@"',
        "not": 'if "$@"; then exit 1; else exit 0; fi',
        "gpu_test_correctness": f'{this} --correct "$1"',
        "kernel-ir": f'{this} --kernel-ir "$@"',
    }
    for name, text in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)


def run_file(tools: Path, root: Path, lines: list[Line]) -> list[Outcome]:
    """Run the lines of one file in order, in one folder for its temporary files; see the module's docstring."""
    with tempfile.TemporaryDirectory() as folder:
        return [_run_line(tools, root, folder, line) for line in lines]


def _run_line(tools: Path, root: Path, folder: str, line: Line) -> Outcome:
    for why, pattern in SCOPE:
        if re.search(pattern, line.text) or re.search(pattern, line.file.name):
            return Outcome(line, "scope", why)
    parent = line.file.parent
    places = PARAMETERS.get(str(parent.relative_to(root)), OTHER_PARAMETERS)
    places = {**places, "%s": str(line.file), "%S": str(parent), "%t": f"{folder}/t"}
    command = re.sub(r"%if !IS_ROCM %\{(.*?)%\}$", r"\1", line.text)
    for name, value in places.items():
        command = command.replace(name, value)
    done = _shell(_KERNEL_IR.sub(r"kernel-ir \1\2 |", command), tools, folder)
    if done.returncode and _KERNEL_IR.search(command):
        done = _shell(_KERNEL_IR.sub(r"kernel-ir \1\2 --newer |", command), tools, folder)
    if not done.returncode:
        return Outcome(line, "pass")
    text = (done.stderr + done.stdout).strip().splitlines()
    return Outcome(line, "fail", next((t for t in text if "error" in t.lower()), text[-1] if text else ""))


def _shell(command: str, tools: Path, folder: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    try:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"error: more than {_LIMIT_SECONDS} s")


def correct(file: Path) -> int:
    """Run the fusion of a file on Host, alone, and compare it with the reference; return the exit code."""
    module = with_entry(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file.name)
        path.write_text(module.to_string(FULL), encoding="utf-8")
        flags = ["--platform=Host", "--xla_disable_all_hlo_passes"]
        return subprocess.run([str(Path(sys.prefix) / "bin" / "hlo-run"), *flags, str(path)], check=False).returncode


def kernel_ir(file: Path, options: list[str]) -> int:
    """Print the kernel of a fusion after the passes that the options of XLA's `emitters_opt` name; return the exit code."""
    given = [option.lstrip("-").partition("=")[0].removeprefix("xla-").removeprefix("gpu-") for option in options]
    row = next((name for option, name in _ROWS.items() if option in given), "emit-kernels")
    passes = [name for name in given if name not in _ROWS and name != "newer"]
    module = with_entry(file.read_text(encoding="utf-8"))
    if module.entry.root.opcode == "fusion":
        module = isolate_instruction(module.entry.root)
    tools = Path(sys.prefix) / "bin"
    form = ["--print_ir_as_xla"] if "--newer" in options else []
    specs = next(parent / _SPECS for parent in file.parents if (parent / _SPECS).is_dir())
    gpu = "b200" if any("compute_capability_major=10" in option for option in options) else "a6000"
    target = f"--xla_gpu_target_config_filename={specs / gpu}.txtpb"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file.name)
        path.write_text(module.to_string(FULL), encoding="utf-8")
        done = _tool([str(tools / "hlo-run"), *form, target, f"--stage={row}", "--xla_disable_all_hlo_passes", str(path)])
        if passes and not done.returncode:
            path = Path(folder, "kernel.mlir")
            path.write_text(done.stdout, encoding="utf-8")
            named = ",".join(_PASSES.get(name, name) for name in passes)
            done = _tool([str(tools / "hlo-opt"), *form, target, f"--passes={named}", str(path)])
    # XLA's tool calls the kernel @main and knows no buffers, so it has no attributes of them.
    text = re.sub(r"func\.func @\w+(?=\(.*\bxla\.entry)", "func.func @main", done.stdout)
    text = re.sub(r"llvm\.(align|dereferenceable) = \d+ : index, |xla\.invariant, ", "", text)
    print(text)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    return done.returncode


def _tool(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True)


def main() -> int:
    """Run the command line; the exit code is 0."""
    if len(sys.argv) > 2 and sys.argv[1] == "--correct":
        return correct(Path(sys.argv[2]))
    if len(sys.argv) > 2 and sys.argv[1] == "--kernel-ir":
        return kernel_ir(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--rows", type=Path, help="write a line for each RUN line")
    parser.add_argument("--verbose", action="store_true", help="print the lines that fail")
    parser.add_argument("--only", default="", metavar="PART", help="only files whose path contains PART")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    root = args.tree / "xla" if (args.tree / "xla").is_dir() else args.tree
    tests = [
        lines_of(kind, file)
        for kind, folders in FOLDERS.items()
        for folder in folders
        for file in sorted((root / folder).rglob("*"))
        if file.suffix in (".hlo", ".mlir") and args.only in str(file)
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        _write_tools(Path(folder))
        outcomes = [outcome for found in pool.map(partial(run_file, Path(folder), root), tests) for outcome in found]
    _report(outcomes, args.verbose)
    if args.rows:
        rows = (f"{o.line.file.relative_to(root)}\t{o.found}\t{o.line.text}\t{o.why}\n" for o in outcomes)
        args.rows.write_text("".join(rows), encoding="utf-8")
    return 0


def _report(outcomes: list[Outcome], verbose: bool) -> None:
    print("| lines | in scope | pass |\n| --- | ---: | ---: |")
    for kind in FOLDERS:
        ours = [o for o in outcomes if o.line.kind == kind and o.found != "scope"]
        print(f"| {kind} | {len(ours)} | {sum(o.found == 'pass' for o in ours)} |")
    left_out = collections.Counter(o.why for o in outcomes if o.found == "scope")
    print("\n| out of scope | lines |\n| --- | ---: |")
    for why, count in left_out.most_common():
        print(f"| {why} | {count} |")
    for outcome in outcomes if verbose else ():
        if outcome.found == "fail":
            print(f"\n{outcome.line.file.name}: {outcome.line.text}\n    {outcome.why[:300]}")


if __name__ == "__main__":
    raise SystemExit(main())
