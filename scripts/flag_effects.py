"""Find out which flags change what real XLA:GPU makes of a few modules, and whether hlo-run follows.

    python3 scripts/venv.py python scripts/flag_effects.py [MODULE.hlo...] [--flags NAME,..] [--verdicts accepted,refused]
        [--cache DIR] [--triton] [--together N] [--ours] [--rows OUT.tsv] [--record OUT.tsv]

Every flag of `hlo_run/options/debug_options.tsv` with one of the verdicts is set to other values than its default, one at a
time; `VALUES` has values for those whose type suggests none. XLA compiles the modules of `scripts/flag_modules` (or those given)
for an H100 without autotuning, those for several devices for as many. With `--triton` it has its defaults, else Triton is off.
Its dumps are compared with those of its defaults: the optimised module, thunks, buffers, LLVM IR, PTX, and the names of the
files. Only differences count that two runs with the same flags do not have.

Most flags change nothing, and a compilation of all modules takes ten seconds of processor time. `--together=10` first sets ten
flags at once. If no module changes, none of the ten counts as one that changes something; else the halves are tried, down to one
flag. It needs `--cache`.

With `--ours`, hlo-run compiles the modules that changed, with the flag and without it. A flag is followed if our optimised
modules change where XLA's do and become as equal to XLA's as they were before. The cache keeps what XLA made, by flag, value and
GPU. `--record` writes the modules of which XLA makes something else, a line per flag and value. `tests/data/flag_effects.tsv` has
those with Triton, and a test holds the column `changes` of the table to them. Needs `hlo-run[xla-gpu]`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hlo_run.cli import run
from hlo_run.codegen.llvm.toolkit import PTXAS, find_in_toolkit
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, find_plugin
from hlo_run.options.debug_options import DebugOption, debug_options
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_MODULES = Path(__file__).resolve().parent / "flag_modules"
_DUMPS = ("--xla_dump_hlo_as_text",)
_AUTOTUNING_OFF = ("--xla_gpu_autotune_level=0",)
_FLAGS = (*EMITTERS_ONLY, *_AUTOTUNING_OFF)
_LIMIT_SECONDS = 1800
# Values of flags whose type does not suggest any that matter.
VALUES: dict[str, tuple[str, ...]] = {
    "xla_gpu_all_reduce_blueconnect_num_devices_per_host": ("2",),
    "xla_gpu_all_gather_combine_threshold_bytes": ("0",),
    "xla_gpu_all_reduce_combine_threshold_bytes": ("0",),
    "xla_gpu_reduce_scatter_combine_threshold_bytes": ("0",),
    "xla_gpu_collective_permute_combine_threshold_bytes": ("0",),
    "xla_gpu_collective_permute_decomposer_threshold": ("0",),
    "xla_gpu_threshold_for_windowed_einsum_mib": ("0",),
    "xla_gpu_operand_bytes_threshold_for_windowed_einsum": ("0",),
    "xla_gpu_disable_async_collectives": ("ALLCOLLECTIVES",),
    "xla_gpu_experimental_max_unroll_factor": ("1", "4"),
    "xla_gpu_experimental_collective_cse_distance_threshold": ("1", "100"),
    "xla_gpu_auto_spmd_partitioning_memory_budget_gb": ("1",),
    "xla_multiheap_size_constraint_per_heap": ("65536",),
    "xla_gpu_cudnn_gemm_fusion_level": ("1", "2", "3"),
    "xla_recognize_reduction_optimization_level": ("1", "2"),
    "xla_gpu_collective_inflation_factor": ("2",),
    "xla_gpu_memory_limit_slop_factor": ("50",),
    "xla_gpu_autotune_level": ("0",),
    "xla_gpu_execution_terminate_timeout": ("10s",),
    "xla_gpu_collectives_implementation": ("nccl",),
    "xla_gpu_experimental_cost_model_gemm_tiling_options": ("key=1",),
    "xla_gpu_experimental_force_split_k": ("1", "4"),
    "xla_gpu_redzone_padding_bytes": ("0",),
    "xla_gpu_rocm_max_trace_events": ("1",),
    "xla_debug_buffer_assignment_show_max": ("1",),
}
# XLA prints its flags if it does not know a value.
_USAGE = "--xla_dump"
_UNKNOWN_VALUE = "XLA's command line does not take the value"
_UNKNOWN_FLAG = "Unknown flag in XLA_FLAGS"
# Errors that say nothing of the flag: the machine lacks a library.
_OF_THE_MACHINE = re.compile("nvJitLink", re.IGNORECASE)
# Files that only say more about the same compilation.
_MORE_DUMPS = re.compile(r"^files$|^autotuner_|[.]riegeli$")
_CHECK = re.compile(r"^F\S* [\d:.]+ +\d+ [\w.]+:\d+\] (.*)$", re.MULTILINE)
_NAME = re.compile(r"^module_\d+\.")
_PTX_OR_LLVM = re.compile(r"\.(ptx|ll)$")

_WORKER = """
import ctypes, importlib, sys
from pathlib import Path
from hlo_run.formats.gpu_plugin import Plugin, Refused, compile_options, device_counts
plugin, target, *files = sys.argv[1:]
hlo = importlib.import_module("jaxlib._hlo")
xla = Plugin(plugin)
for file in files:
    text = Path(file).read_text()
    print("START", file, flush=True)
    try:
        module = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        counts = device_counts(text)
        options = compile_options(hlo.XlaComputation(module).program_shape(), *counts, "sharding={" in text, "xla.sdy." in text)
        xla.compile(xla.topology(Path(target).read_bytes(), counts[0] * counts[1]), module, options)
    except (Refused, RuntimeError, ValueError) as error:
        print("REFUSED", file, str(error).replace(chr(10), " ")[:300], flush=True)
print("END", flush=True)
"""


def values_of(option: DebugOption) -> tuple[str, ...]:
    """Return the values other than the default with which a flag is tried; none for paths and other free texts."""
    if option.name in VALUES:
        return VALUES[option.name]
    if option.choices:
        return tuple(choice for choice in option.choices if choice not in option.default.split(","))
    match option.type:
        case "bool":
            return ("false" if option.default == "true" else "true",)
        case "int32" | "int64":
            return tuple(value for value in ("0", "1", "2") if value != option.default)[:2]
        case "float":
            return (str(2 * float(option.default or "1")),)
        case _:
            return ()


def spellings(option: DebugOption, value: str) -> tuple[str, ...]:
    """Return the ways in which XLA's command line may write a value: enums in full, or without what all values share."""
    words = [choice.split("_") for choice in option.choices]
    shared = len(list(itertools.takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))))
    if not shared:
        return (value,)
    own = value.split("_")[shared:]
    return (value, "_".join(own).lower(), own[0].lower())


def outputs_of_xla(modules: Sequence[Path], flags: Sequence[str]) -> dict[str, dict[str, str]]:
    """Compile modules in one process of XLA; return by module and kind what it made, or {"error": why} for a module."""
    found: dict[str, dict[str, str]] = {}
    left = list(modules)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            found |= _compiled(left, flags, Path(folder))
        left = [module for module in left if module.stem not in found]
    return found


def _compiled(modules: Sequence[Path], flags: Sequence[str], folder: Path) -> dict[str, dict[str, str]]:
    """Compile modules up to one that ends the process."""
    tool = find_in_toolkit(PTXAS, "")
    where = [f"--xla_gpu_cuda_data_dir={tool.parent.parent}"] if tool is not None else []
    target, dumps = folder / "target.txtpb", folder / "dumps"
    target.write_text(to_text_proto(preset(DEFAULT_TARGET)), encoding="utf-8")
    environment = os.environ | {
        "XLA_FLAGS": " ".join([*where, *_DUMPS, *flags, f"--xla_dump_to={dumps}"]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [sys.executable, "-c", _WORKER, str(find_plugin("flag_effects.py")), str(target), *map(str, modules)]
    done = None
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
        lines, words = done.stdout.splitlines(), done.stderr.strip()[-4000:]
    except subprocess.TimeoutExpired as error:
        lines, words = (error.stdout or b"").decode().splitlines(), "too slow"
    begun = [line.split(" ", 1)[1] for line in lines if line.startswith("START ")]
    errors = dict(line.split(" ", 2)[1:] for line in lines if line.startswith("REFUSED "))
    if "END" not in lines:
        crash = _CHECK.search(done.stderr) if done is not None else None
        reason = _USAGE if _USAGE in words else crash[1] if crash is not None else words
        errors[begun[-1] if begun else str(modules[0])] = f"crash: {reason}"
        begun = begun or [str(modules[0])]
    return {Path(file).stem: {"error": errors[file]} if file in errors else _output(dumps, Path(file).stem) for file in begun}


def _output(folder: Path, module: str) -> dict[str, str]:
    """Return what XLA wrote about a module, by kind: the optimised module as text, of others a digest."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.glob(f"module_*.{module}.*")):
        name = _NAME.sub("", path.name).removeprefix(module)
        kinds["files"].append(re.sub(r"\.\d+\.", ".N.", name))
        if name.endswith((".pbtxt", "debug_options")):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if _PTX_OR_LLVM.search(name):
            kinds["LLVM IR" if name.endswith(".ll") else "PTX"].append(text)
        elif name.endswith("gpu_after_optimizations.txt"):
            kinds["HLO"].append(text)
        else:
            kinds[re.sub(r"^.*gpu_after_optimizations-|^\.", "", name).removesuffix(".txt")].append(text)
    return {
        kind: texts[0] if kind == "HLO" else hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()
        for kind, texts in kinds.items()
    }


def changes(before: dict[str, str], after: dict[str, str], noisy: set[str]) -> list[str]:
    """Return the kinds of a module's outputs that differ."""
    if "error" in after:
        return [] if "error" in before else [f"error ({after['error'][:120]})"]
    return sorted(kind for kind in before.keys() | after.keys() if kind not in noisy and before.get(kind) != after.get(kind))


class Trials:
    """The compilations of the modules by XLA with flags, kept in a folder by flag and value."""

    def __init__(self, modules: Sequence[Path], base: Sequence[str], cache: Path | None) -> None:
        self._modules, self._base, self._cache = modules, base, cache
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
        self.default, again = self.made("", ""), self.made("", "again")
        self.noisy = {
            module: {k for k, v in kinds.items() if again[module].get(k) != v} for module, kinds in self.default.items()
        }

    def made(self, name: str, value: str) -> dict[str, dict[str, str]]:
        """Return by module and kind what XLA makes with a value of a flag, or without a flag."""
        kept = self._file(name, value)
        if kept is not None and kept.exists():
            return json.loads(kept.read_text(encoding="utf-8"))
        words = spellings(debug_options()[name], value) if name else ("",)
        for word in words:
            found = outputs_of_xla(self._modules, [*self._base, *([f"--{name}={word}"] if name else [])])
            if not all(_USAGE in kinds.get("error", "") for kinds in found.values()):
                break
        else:
            found = {module.stem: {"error": _UNKNOWN_VALUE} for module in self._modules}
        if kept is not None:
            kept.write_text(json.dumps(found), encoding="utf-8")
        return found

    def changes(self, made: dict[str, dict[str, str]]) -> dict[str, list[str]]:
        """Return by module the kinds of outputs that differ from those of the defaults."""
        return {module: changes(self.default[module], kinds, self.noisy[module]) for module, kinds in made.items()}

    def try_together(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Keep what XLA makes with each of some values of different flags; those that change nothing are tried at once."""
        left = [pair for pair in pairs if not self._is_known(*pair)]
        if len(left) == 1:
            self.made(*left[0])
        if len(left) < 2:
            return
        together = outputs_of_xla(self._modules, [*self._base, *(f"--{name}={value}" for name, value in left)])
        if not any(self.changes(together).values()):
            for pair in left:
                if (kept := self._file(*pair)) is not None:
                    kept.write_text(json.dumps(self.default), encoding="utf-8")
            return
        middle = len(left) // 2
        self.try_together(left[:middle])
        self.try_together(left[middle:])

    def _is_known(self, name: str, value: str) -> bool:
        kept = self._file(name, value)
        return kept is None or kept.exists()

    def _file(self, name: str, value: str) -> Path | None:
        if self._cache is None:
            return None
        texts = [module.read_text(encoding="utf-8") for module in self._modules]
        key = repr((name, value, self._base, texts, to_text_proto(preset(DEFAULT_TARGET))))
        return self._cache / f"{name or 'default'}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def sets_of_flags(options: Sequence[DebugOption], most: int) -> list[list[tuple[str, str]]]:
    """Return sets of at most `most` values of different flags, of those that XLA spells in one way."""
    values = [[(option.name, value) for value in values_of(option) if len(spellings(option, value)) == 1] for option in options]
    rounds = [[pair for pair in each if pair is not None] for each in itertools.zip_longest(*values)]
    return [pairs[start : start + most] for pairs in rounds for start in range(0, len(pairs), most)]


def our_hlo(module: Path, flags: Sequence[str]) -> str:
    """Return our optimised module, or the first line of the error."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(module), f"--xla_dump_to={folder}/d", f"--output={folder}/m.hlox", *_FLAGS, *flags]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = run(arguments)
        found = list(Path(folder, "d").glob("*gpu_after_optimizations.txt"))
        return found[0].read_text(encoding="utf-8") if found else f"exit code {code}: {errors.getvalue().strip()[:200]}"


def follows(before: tuple[str, str], after: tuple[str, str]) -> str:
    """Say how ours (with and without the flag) follows XLA's; both pairs are (XLA's, ours)."""
    if after[1].startswith("exit code"):
        return "ours refuses"
    if after[0].rstrip() == after[1].rstrip():
        return "equal"
    if before[1] == after[1]:
        return "ours does not change"
    return "ours changes otherwise" if before[0].rstrip() == before[1].rstrip() else "ours changes"


def main() -> int:
    """Run the command line; the exit code is 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", type=Path)
    parser.add_argument("--flags", default="", help="only these flags (comma-separated)")
    parser.add_argument("--verdicts", default="accepted,refused", help="only flags with these verdicts")
    parser.add_argument("--cache", type=Path, help="keep what XLA made in this folder")
    parser.add_argument("--together", type=int, default=1, help="first set this many flags at once")
    parser.add_argument("--triton", action="store_true", help="compile with XLA's defaults, Triton included")
    parser.add_argument("--record", type=Path, help="write the modules that change, by flag and value")
    parser.add_argument("--ours", action="store_true", help="compile the modules that changed with hlo-run, too")
    parser.add_argument("--rows", type=Path, help="write a line for each flag, value and module")
    args = parser.parse_args()
    if args.together > 1 and args.cache is None:
        parser.error("--together needs --cache")
    modules = args.modules or sorted(_MODULES.glob("*.hlo"))
    base = _AUTOTUNING_OFF if args.triton else _FLAGS
    trials = Trials(modules, base, args.cache)
    default = trials.default
    for module, kinds in default.items():
        changing = ", ".join(sorted(trials.noisy[module])) or "-"
        print(f"default {module}: {kinds.get('error') or 'compiled'}; differs from run to run: {changing}")
    rows: list[str] = []
    recorded: list[str] = []
    chosen: list[str] = args.flags.split(",") if args.flags else []
    verdicts = args.verdicts.split(",")
    ours_by_default: dict[str, str] = {}
    tried = [
        option
        for option in debug_options().values()
        if (option.name in chosen if chosen else option.verdict in verdicts)
        and not (option.is_dropped or re.search("XLA:[CT]PU", option.reason))
    ]
    for pairs in sets_of_flags(tried, args.together) if args.together > 1 else ():
        trials.try_together(pairs)
        print(f"together: {', '.join(name for name, _ in pairs)}", flush=True)
    for option in tried:
        values = values_of(option)
        for value in values:
            found = trials.made(option.name, value)
            errors = [kinds.get("error", "") for kinds in found.values()]
            if all(_UNKNOWN_FLAG in error or error == _UNKNOWN_VALUE for error in errors):
                print(f"{option.verdict} {option.name}={value}: XLA does not read it", flush=True)
                continue
            if any(map(_OF_THE_MACHINE.search, errors)):
                print(f"{option.verdict} {option.name}={value}: not tried ({next(filter(None, errors))})", flush=True)
                continue
            changed = trials.changes(found)
            for name, kinds in changed.items():
                verdict = ""
                if args.ours and "HLO" in kinds and "HLO" in found[name]:
                    file = next(m for m in modules if m.stem == name)
                    if name not in ours_by_default:
                        ours_by_default[name] = our_hlo(file, ())
                    ours = our_hlo(file, [f"--{option.name}={value}"])
                    verdict = follows((default[name]["HLO"], ours_by_default[name]), (found[name]["HLO"], ours))
                rows.append("\t".join([option.name, value, option.verdict, name, ", ".join(kinds), verdict]))
            changing = sorted(name for name, kinds in changed.items() if not all(map(_MORE_DUMPS.search, kinds)))
            recorded.append(f"{option.name}\t{value}\t{','.join(changing)}")
            text = "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in changed.items() if kinds)
            print(f"{option.verdict} {option.name}={value}: {text or 'no change'}", flush=True)
        if not values:
            print(f"{option.verdict} {option.name}: not tried ({option.type})", flush=True)
    if args.record is not None:
        args.record.write_text("".join(row + "\n" for row in recorded), encoding="utf-8")
    if args.rows is not None:
        args.rows.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
