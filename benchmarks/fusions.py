"""Prints what the fusion passes make of modules beside what real XLA:GPU makes of them.

    python benchmarks/fusions.py MODULES DUMPS

DUMPS has a folder for each module (`NAME/` for `MODULES/NAME.hlo`) that XLA:GPU dumped into: `compile_gpu.py .. --emitters-only
--dump DUMPS`. First the passes alone: `priority-fusion` and `multi_output_fusion` get the module as it stood before XLA's,
and fusions are compared by what is in them. Then whole modules: kernels, library calls and copies, each loop body once, and
the bytes of their operands and results. Markdown.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hlo_run
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.fusion_contents import fusion_contents
from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.shape import Shape
from hlo_run.options import Options
from hlo_run.pipeline.compile import optimize
from hlo_run.pipeline.hlo.fusion.multi_output_fusion import MultiOutputFusion
from hlo_run.pipeline.hlo.fusion.priority_fusion import PriorityFusion
from hlo_run.pipeline.passes import HloPass, PassContext
from hlo_run.target import preset

_PASSES: tuple[Callable[[], HloPass], ...] = (PriorityFusion, MultiOutputFusion)
_RUNS = frozenset("fusion copy custom-call sort fft dot convolution triangular-solve cholesky".split())


@dataclass(frozen=True)
class Work:
    """What a compiled module launches and moves."""

    launches: int
    accessed: int


def main() -> None:
    modules, dumps = map(Path, sys.argv[1:])
    folders = [folder for folder in sorted(dumps.iterdir()) if folder.is_dir()]
    for make in _PASSES:
        _compare_pass(make, folders)
    _compare_modules(modules, folders)


def _compare_pass(make: Callable[[], HloPass], folders: list[Path]) -> None:
    name = make().name
    xlas = ours = same = equal = compared = 0
    seconds = 0.0
    for folder in folders:
        before, after = _dump(folder, f"*.before_{name}.txt"), _dump(folder, f"*.after_{name}.before_*.txt")
        if before is None or after is None:
            continue
        begin = time.process_time()
        make().apply(PassContext(preset("h100"), Options()), before)
        seconds += time.process_time() - begin
        found, expected = fusion_contents(before), fusion_contents(after)
        xlas, ours, same = xlas + expected.total(), ours + found.total(), same + (found & expected).total()
        compared, equal = compared + 1, equal + (found == expected)
    counts = f"{xlas} fusions of XLA's, {ours} of ours, {same} in both"
    print(f"- {name}: {compared} modules, {equal} fused alike; {counts}; {seconds:.1f} s")


def _dump(folder: Path, pattern: str) -> HloModule | None:
    file = next(iter(sorted(folder.glob(pattern))), None)
    return hlo_run.parse(file.read_text(encoding="utf-8")) if file is not None else None


def _compare_modules(modules: Path, folders: list[Path]) -> None:
    print("\n| module | launches and copies, ours / XLA | bytes, ours / XLA |\n| --- | ---: | ---: |")
    launches: list[float] = []
    accessed: list[float] = []
    for folder in folders:
        optimized = _dump(folder, "*gpu_after_optimizations.txt")
        file = modules / f"{folder.name}.hlo"
        if optimized is None or not file.exists():
            continue
        module = hlo_run.parse(file.read_text(encoding="utf-8"))
        try:
            optimize(PassContext(preset("h100"), Options()), module)
        except HloRunError as error:
            print(f"| {folder.name} | {error} | |")
            continue
        mine, theirs = _work(module), _work(optimized)
        launches.append(mine.launches / max(theirs.launches, 1))
        accessed.append(mine.accessed / max(theirs.accessed, 1))
        counts = f"{mine.launches} / {theirs.launches} = {launches[-1]:.2f}"
        print(f"| {folder.name} | {counts} | {mine.accessed} / {theirs.accessed} = {accessed[-1]:.2f} |", flush=True)
    print(f"\n{len(launches)} modules, geometric means {_mean(launches):.3f} and {_mean(accessed):.3f}")


def _work(module: HloModule) -> Work:
    runs = [i for c in executed_computations(module) for i in c.instructions if i.opcode in _RUNS]
    return Work(len(runs), sum(map(_accessed, runs)))


def _accessed(instruction: HloInstruction) -> int:
    return _bytes(instruction.shape) + sum(_bytes(operand.shape) for operand in dict.fromkeys(instruction.operands))


def _bytes(shape: Shape) -> int:
    return sum(leaf.size_bytes for _, leaf in shape.leaves())


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


if __name__ == "__main__":
    main()
