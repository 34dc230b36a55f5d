"""Compare our fusion passes with those of XLA:GPU on dumped modules; `beside_xla.py` compares whole pipelines.

    python benchmarks/fusions.py DUMPS

DUMPS has a folder for each module that XLA:GPU dumped into (`--xla_dump_hlo_pass_re=.*priority-fusion.*|.*multi_output_fusion.*`,
without Triton's passes). `priority-fusion` and `multi_output_fusion` get the module that XLA's pass got. Fusions are compared by
their contents. The output is Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import hlo_run
from hlo_run.analysis.fusion.fusion_contents import fusion_contents
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.fusion.multi_output_fusion import MultiOutputFusion
from hlo_run.hlo_passes.fusion.priority_fusion import PriorityFusion
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.target import preset

_PASSES: tuple[Callable[[], HloPass], ...] = (PriorityFusion, MultiOutputFusion)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", type=Path)
    folders = [folder for folder in sorted(parser.parse_args().dumps.iterdir()) if folder.is_dir()]
    for make in _PASSES:
        _compare_pass(make, folders)


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


if __name__ == "__main__":
    main()
