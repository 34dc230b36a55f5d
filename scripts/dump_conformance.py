"""Compare the files that --xla_dump_to writes with those of real XLA:GPU.

    python3 scripts/venv.py python scripts/dump_conformance.py FILE_OR_FOLDER... [--every N [--from K]] [--cache DIR]
        [--names] [--contents] [--show KIND] [--verbose]

`--names` (the default) compiles every module twice with both: with XLA's default flags for dumps, and with
--xla_dump_hlo_pass_re=.* and --xla_dump_emitter_re=.*. It prints how many modules have equal file names. XLA compiles kernels in
threads, so that the numbers of LLVM IR and PTX files depend on the time; only how many there are is compared.

`--contents` compares texts, and prints a row per kind of file in the form of the table in docs/conformance.md. It compares only
modules whose optimised HLO is XLA's, byte for byte. Of dumps of kernels it compares the names of the functions; of texts with
flags, all lines but paths and the lines that jaxlib adds. XLA weighs the producers between two steps of priority fusion in
threads, so that their order is free. `--show KIND` prints the first lines that differ in files of one kind.

XLA compiles for an H100, without Triton, autotuning and CUB's sorts, and runs no HLO passes on modules with fusions. In modules
for several devices, small all-reduces are not done by Triton's kernels. `--cache` keeps its dumps. Needs `hlo-run[xla-gpu]`.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import itertools
import re
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hlo_run.cli import run
from hlo_run.codegen.llvm.toolkit import PTXAS, find_in_toolkit
from hlo_run.errors import HloRunError
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, write_dumps
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_PASSES = ("--xla_dump_hlo_pass_re=.*", "--xla_dump_emitter_re=.*")
_MODES = {"default": (), "passes": _PASSES}
# So that both compilers are given the same flags.
_FLAGS = (*EMITTERS_ONLY, "--xla_gpu_autotune_level=0")
# Without a device XLA does not know CUB's scratch sizes, and sorts in kernels.
_NO_CUB = "--xla_gpu_enable_cub_radix_sort=false"
# Triton's, although Triton is off.
_NO_ALL_REDUCE_KERNEL = "--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false"
_AS_IS = "--xla_disable_all_hlo_passes"
_NUMBERED = re.compile(r"\.\d+\.(ir-no-opt\.ll|ir-with-opt\.ll|ptx)$")
_PASS_DUMP = re.compile(r"\.\d{4}\..*after_")
_PASS_NUMBER = re.compile(r"\.\d{4}\.(?=.*after_)")
_OPTIMIZED = "gpu_after_optimizations.txt"
_LOG = ".mlir-passes.log"
_FUNCTION = re.compile(r"^ +func\.func (?:private )?@([\w.$-]+)", re.MULTILINE)
_DEAD_FUNCTIONS = re.compile("EraseDeadFunctions|erase-dead-functions")
_DUMP_OF_ROW = "// -----// IR Dump Before"
_FUSION_DUMP = "priority_fusion_dump.txt"
# Lines that depend on where files lie, and those that jaxlib adds: it renames parameters and sets two flags.
_LOCAL = re.compile(
    r"^\s*(?:xla_dump_to|xla_gpu_cuda_data_dir|parameter_names|xla_cpu_enable_fast_min_max|xla_pjrt_allow_auto_layout_in_hlo): "
    r".*\n",
    re.MULTILINE,
)


@dataclass
class Kind:
    """The files of a kind: how many are equal, of how many, and the first differing lines of the others."""

    equal: int = 0
    total: int = 0
    differences: list[str] = field(default_factory=list[str])


def flags_of(file: Path, mode: Sequence[str]) -> list[str]:
    """Return the flags for a module."""
    text = file.read_text(encoding="utf-8")
    header = text.split("\n", 1)[0]
    given = {
        _AS_IS: "is_scheduled=true" in header or " fusion(" in text,
        _NO_CUB: " sort(" in text,
        _NO_ALL_REDUCE_KERNEL: "num_partitions=" in header or "replica_count=" in header,
    }
    return [*_FLAGS, *mode, *(flag for flag, is_given in given.items() if is_given)]


def dumps_of_xla(file: Path, flags: tuple[str, ...], cache: Path | None) -> dict[str, str] | str:
    """Return the files that XLA writes, by name (between passes: empty texts), or why XLA refuses the module."""
    kept = cache / f"{'passes' if flags else 'default'}-{file.parent.name}-{file.stem}.zip" if cache is not None else None
    if kept is not None and kept.with_suffix(".refused").exists():
        return kept.with_suffix(".refused").read_text(encoding="utf-8")
    if kept is not None and kept.exists():
        with zipfile.ZipFile(kept) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}
    tool = find_in_toolkit(PTXAS, "")
    cuda = tool.parent.parent if tool is not None else None
    text = file.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        try:
            write_dumps(text, str(file), to_text_proto(preset(DEFAULT_TARGET)), flags_of(file, flags), cuda, Path(folder))
        except HloRunError as error:
            if kept is not None:
                kept.with_suffix(".refused").write_text(error.message, encoding="utf-8")
            return error.message
        found = read_folder(Path(folder))
    if kept is not None:
        with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in found.items():
                archive.writestr(name, content)
    return found


def our_dumps(file: Path, flags: tuple[str, ...]) -> dict[str, str] | str:
    """Return the files that hlo-run writes, by name (between passes: empty texts), or that it fails."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder, "dumps")
        arguments = [str(file), f"--xla_dump_to={ours}", f"--output={folder}/m.hlox", *flags_of(file, flags)]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = run(arguments)
        return f"hlo-run ends with exit code {code}: {errors.getvalue().strip()[:300]}" if code else read_folder(ours)


def read_folder(folder: Path) -> dict[str, str]:
    """Return the texts in a folder by name; of dumps between passes only the names."""
    paths = sorted(folder.iterdir())
    return {p.name: "" if _PASS_DUMP.search(p.name) else p.read_text(encoding="utf-8", errors="replace") for p in paths}


def names_of(dumps: Iterable[str]) -> Counter[str]:
    """Return the names of dumps, without the numbers of kernels, and how often each occurs."""
    return Counter(_NUMBERED.sub(r".N.\1", name) for name in dumps)


def _plain(name: str) -> str:
    """Return a name without the module and without the number of a pass."""
    return re.sub(r"^module_\d+\.[^.]*", "", _PASS_NUMBER.sub(".", name))


def compared(name: str, text: str) -> tuple[str, str] | None:
    """Return the kind of a dump and the part of its text that is compared; None for a dump that is not compared."""
    if name.endswith(_LOG):
        # The IR without dead functions, which only XLA emits.
        _, *dumps = text.split(_DUMP_OF_ROW)
        live = [after for row, after in itertools.pairwise(dumps) if _DEAD_FUNCTIONS.search(row.split("\n", 1)[0])]
        return "names of functions in kernels", "\n".join(_FUNCTION.findall(live[0])) if live else ""
    if _PASS_DUMP.search(name) or name.endswith((".ll", ".ptx", ".hlo.pb")):
        return None
    if name.endswith(_FUSION_DUMP):
        text = _with_sorted_steps(text)
    kind = re.sub(r"^\.?(?:sm_\w+\.?\w*_)?(?:gpu_after_optimizations-)?", "", _plain(name))
    return kind, _LOCAL.sub("", text)


def _with_sorted_steps(text: str) -> str:
    """Return the steps of priority fusion with those between two fusions sorted: XLA weighs producers in threads."""
    first, *steps = re.split(r"^(?=fusion_steps \{\n)", text, flags=re.MULTILINE)
    end = steps[-1].find("gpu_device_info") if steps else -1
    steps, rest = ([*steps[:-1], steps[-1][:end]], steps[-1][end:]) if end >= 0 else (steps, "")
    groups = itertools.groupby(steps, lambda step: step.split("\n", 2)[1] == "  fusion {")
    return "".join([first, *("".join(part if fuses else sorted(part)) for fuses, part in groups), rest])


def compare_contents(theirs: Mapping[str, str], ours: Mapping[str, str], module: str, kinds: dict[str, Kind]) -> bool:
    """Count the equal files of a module by kind, and return False if its optimised HLO is not XLA's."""
    optimized = next((name for name in theirs if name.endswith(_OPTIMIZED)), "")
    if theirs.get(optimized, "").rstrip() != ours.get(optimized, "").rstrip():
        return False
    for name, text in theirs.items():
        expected = compared(name, text)
        if expected is None:
            continue
        kind = kinds[expected[0]]
        kind.total += 1
        found = compared(name, ours[name]) if name in ours else (expected[0], "(no such file)\n")
        if found == expected:
            kind.equal += 1
        else:
            assert found is not None
            lines = difflib.unified_diff(found[1].splitlines(), expected[1].splitlines(), "ours", "XLA", lineterm="", n=0)
            changed = (line for line in lines if not line.startswith(("---", "+++", "@@")))
            kind.differences.append("\n    ".join([f"{module}: {name}", *itertools.islice(changed, 12)]))
    return True


def contents(files: Sequence[Path], cache: Path | None, show: str) -> None:
    """Compare the texts of all modules and print a row per kind."""
    kinds, compared_modules, refused, failed = defaultdict[str, Kind](Kind), 0, 0, Counter[str]()
    for file in files:
        theirs = dumps_of_xla(file, _PASSES, cache)
        if isinstance(theirs, str):
            refused += 1
            continue
        ours = our_dumps(file, _PASSES)
        if isinstance(ours, str):
            failed[ours] += 1
            print(f"{file.name}: {ours}", file=sys.stderr)
            continue
        compared_modules += compare_contents(theirs, ours, file.stem, kinds)
    print(f"{compared_modules} of {len(files) - refused} modules have XLA's optimised HLO ({refused} refused by XLA)\n")
    print("| file | files | equal |\n| --- | --- | --- |")
    for name, kind in sorted(kinds.items()):
        print(f"| {name} | {kind.total} | {kind.equal} ({100 * kind.equal // kind.total} %) |")
    for name, kind in kinds.items():
        if show and show in name:
            print(f"\n{name}:")
            print("\n".join(kind.differences))


def names(files: Sequence[Path], cache: Path | None, verbose: bool) -> None:
    """Compare the names of the files of all modules and print the counts."""
    for mode, flags in _MODES.items():
        equal, refused, lacking, extra = 0, 0, Counter[str](), Counter[str]()
        for file in files:
            theirs = dumps_of_xla(file, flags, cache)
            ours = theirs if isinstance(theirs, str) else our_dumps(file, flags)
            if isinstance(theirs, str) or isinstance(ours, str):
                refused += 1
                print(f"{mode} {file.name}: {str(ours).splitlines()[0]}", file=sys.stderr)
                continue
            expected, found = names_of(theirs), names_of(ours)
            equal += expected == found
            less, more = (Counter(map(_plain, part.elements())) for part in (expected - found, found - expected))
            for found_names, counts, sign in ((less - more, lacking, "-"), (more - less, extra, "+")):
                counts.update(found_names)
                if verbose and found_names:
                    print(f"{mode} {file.name}: {sign} {' '.join(found_names)}")
        print(f"{mode}: {equal} of {len(files) - refused} modules have XLA's names ({refused} refused)")
        for sign, counts in (("-", lacking), ("+", extra)):
            for name, count in counts.most_common(8):
                print(f"  {sign} {count:4} {name}")


def main() -> int:
    """Compare all modules and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take every N-th module of a folder")
    parser.add_argument("--from", type=int, default=0, dest="start")
    parser.add_argument("--cache", type=Path, help="keep XLA's dumps in this folder")
    parser.add_argument("--names", action="store_true", help="compare the names of files (the default)")
    parser.add_argument("--contents", action="store_true", help="compare texts")
    parser.add_argument("--show", default="", help="print the differences of this kind of file")
    parser.add_argument("--verbose", action="store_true", help="print the names that differ, per module")
    arguments = parser.parse_args()
    if arguments.cache is not None:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    parts = (sorted(p.glob("*.hlo"))[arguments.start :: arguments.every] if p.is_dir() else [p] for p in arguments.paths)
    files = [file for part in parts for file in part]
    if arguments.contents:
        contents(files, arguments.cache, arguments.show)
    if arguments.names or not arguments.contents:
        names(files, arguments.cache, arguments.verbose)
    return 0


if __name__ == "__main__":
    sys.exit(main())
