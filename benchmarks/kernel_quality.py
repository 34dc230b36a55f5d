"""Compare our kernels with those of real XLA's native emitters without a GPU, by the figures of ptxas and nvdisasm.

    python3 scripts/venv.py python benchmarks/kernel_quality.py FOLDER --xla_json FILE --ptx_stats "COMMAND" \\
        [--cuda_data_dir DIR] [--match RE]

FILE is the output of `compile_gpu.py FOLDER/*.hlo --as-is --json FILE`: real XLA's kernels of each module, with fusions as they
are. COMMAND (`ptx_stats.py`) counts the instructions of PTX files with the same tools. The output is a page of Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hlo_run
from hlo_run.artifact import Kernel
from hlo_run.cache import choose_cache
from hlo_run.errors import HloRunError
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.ops.infer import infer_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset

_ACCESS = re.compile(r"v(\d)\.[a-z](\d+)")


@dataclass(frozen=True, slots=True)
class Side:
    """One kernel of one compiler. `load_bits` and `store_bits` are the widths of the widest global load and store."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    barriers: int
    load_bits: int
    store_bits: int
    registers: int
    spill_bytes: int
    sass: int


@dataclass(frozen=True, slots=True)
class Pair:
    """The same kernel from both compilers."""

    name: str
    ours: Side
    xla: Side

    @property
    def ratio(self) -> float:
        return self.ours.sass / self.xla.sass

    @property
    def remarks(self) -> str:
        """The differences besides the number of instructions."""
        ours, xla = self.ours, self.xla
        found: list[str] = []
        if (ours.grid, ours.block) != (xla.grid, xla.block):
            found.append(f"launch {_launch(ours)}, XLA {_launch(xla)}")
        if ours.load_bits < xla.load_bits:
            found.append("narrower loads")
        if ours.store_bits < xla.store_bits:
            found.append("narrower stores")
        if ours.spill_bytes > xla.spill_bytes:
            found.append(f"spills {ours.spill_bytes} bytes")
        if ours.shared_bytes != xla.shared_bytes:
            found.append(f"shared {ours.shared_bytes}, XLA {xla.shared_bytes}")
        if ours.barriers != xla.barriers:
            found.append(f"barriers {ours.barriers}, XLA {xla.barriers}")
        return "; ".join(found)


def main() -> None:
    """Print the page."""
    choose_cache("off")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--xla_json", type=Path, required=True)
    parser.add_argument("--ptx_stats", required=True)
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument("--target", default="h100")
    parser.add_argument("--cuda_data_dir", default="", help="the CUDA toolkit with the libdevice that real XLA used")
    parser.add_argument("--keep", type=Path, help="a folder to keep our PTX in")
    arguments = parser.parse_args()
    report = json.loads(arguments.xla_json.read_text())["modules"]
    files = [f for f in sorted(arguments.folder.glob("*.hlo")) if re.search(arguments.match, f.name) and f.stem in report]
    refused: list[str] = []
    kernels: dict[str, Kernel] = {}
    for file in files:
        if not report[file.stem]["ok"]:
            refused.append(f"{file.stem}: XLA does not compile it as it is")
            continue
        try:
            kernels |= {
                f"{file.stem}/{kernel.name}": kernel for kernel in _compile(file, arguments.target, arguments.cuda_data_dir)
            }
        except HloRunError as error:
            refused.append(f"{file.stem}: {error.message}")
    with tempfile.TemporaryDirectory() as directory:
        stats = _stats(kernels, arguments.keep or Path(directory), arguments.ptx_stats)
    theirs = {f"{stem}/{k['name']}": k for stem, module in report.items() if module["ok"] for k in module["kernel_list"]}
    pairs = [
        Pair(name, _ours(kernel, stats[name]), _xla(theirs[name]))
        for name, kernel in kernels.items()
        if name in theirs and "sass_instructions" in theirs[name]["ptx"] and "sass_instructions" in stats[name]
    ]
    print(_page(pairs, [name for name in kernels if name not in theirs], refused))


def _compile(file: Path, target: str, cuda_data_dir: str) -> list[Kernel]:
    module = hlo_run.parse(file.read_text(encoding="utf-8"), str(file))
    wrap_bare_module(module)
    infer_module(module)
    executable = compile_module(PassContext(preset(target), Options(xla_gpu_cuda_data_dir=cuda_data_dir)), module)
    return list(executable.kernels)


def _stats(kernels: dict[str, Kernel], directory: Path, command: str) -> dict[str, dict[str, Any]]:
    """Return the command's figures for each kernel's PTX."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {directory / f"{name.replace('/', '.')}.ptx": name for name in kernels}
    for file, name in files.items():
        file.write_text(kernels[name].ptx, encoding="utf-8")
    done = subprocess.run([*shlex.split(command), *map(str, files)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr}")
    return {files[Path(file)]: stats for file, stats in json.loads(done.stdout).items()}


def _ours(kernel: Kernel, stats: dict[str, Any]) -> Side:
    return _side(kernel.grid, kernel.block, kernel.shared_bytes, stats)


def _xla(kernel: dict[str, Any]) -> Side:
    return _side(tuple(kernel["grid"]), tuple(kernel["threads"]), kernel["shared_bytes"], kernel["ptx"])


def _side(grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int, stats: dict[str, Any]) -> Side:
    return Side(
        grid=grid,
        block=block,
        shared_bytes=shared_bytes,
        barriers=stats["barriers"],
        load_bits=_widest(stats["ld_global"]),
        store_bits=_widest(stats["st_global"]),
        registers=stats["registers"],
        spill_bytes=stats["spill_store_bytes"] + stats["spill_load_bytes"],
        sass=stats["sass_instructions"],
    )


def _widest(accesses: dict[str, int]) -> int:
    found = [_ACCESS.fullmatch(access) for access in accesses]
    return max((int(match[1]) * int(match[2]) for match in found if match), default=0)


def _launch(side: Side) -> str:
    return f"{'x'.join(map(str, side.grid))} of {'x'.join(map(str, side.block))}"


def _page(pairs: list[Pair], unmatched: list[str], refused: list[str]) -> str:
    worst = sorted(pairs, key=lambda pair: -pair.ratio)
    lines = [
        f"| {len(pairs)} kernels | |",
        "| --- | --- |",
        f"| SASS instructions, geometric mean of ours / XLA's | {_mean([pair.ratio for pair in pairs]):.3f} |",
        f"| kernels with more instructions than XLA's | {sum(pair.ratio > 1 for pair in pairs)} |",
        f"| registers, geometric mean | {_mean([pair.ours.registers / pair.xla.registers for pair in pairs]):.3f} |",
        f"| narrower loads or stores | {sum('narrower' in pair.remarks for pair in pairs)} |",
        f"| spills where XLA has none | {sum('spills' in pair.remarks for pair in pairs)} |",
        f"| other launch dimensions | {sum('launch' in pair.remarks for pair in pairs)} |",
        f"| other shared memory | {sum('shared' in pair.remarks for pair in pairs)} |",
        f"| other barriers | {sum('barriers' in pair.remarks for pair in pairs)} |",
        "",
        "| kernel | SASS | registers | load, store bits | shared bytes | what differs |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(pair) for pair in worst),
    ]
    lines += ["", *(f"Not in XLA's thunks: {name}." for name in unmatched), *(f"Not compared: {text}." for text in refused)]
    return "\n".join(lines).rstrip()


def _row(pair: Pair) -> str:
    ours, xla = pair.ours, pair.xla
    module, _, kernel = pair.name.partition("/")
    is_clear = kernel == "fusion_generated" or re.sub(r"\W", "_", module).endswith(kernel)
    name = module if is_clear else f"{module} {kernel}"
    widths = f"{ours.load_bits}, {ours.store_bits} / {xla.load_bits}, {xla.store_bits}"
    return (
        f"| {name} | {ours.sass} / {xla.sass} = {pair.ratio:.2f} | {ours.registers} / {xla.registers} | {widths} | "
        f"{ours.shared_bytes} / {xla.shared_bytes} | {pair.remarks} |"
    )


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


if __name__ == "__main__":
    main()
