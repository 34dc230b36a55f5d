"""Time sorts on Host: the emitted kernels against the library's radix sort (numpy), on the same keys.

    python3 scripts/venv.py python benchmarks/sorts.py

Milliseconds, the best of `ROUNDS` runs in turns on warm code (`--host_engine=jit`), and the number of launched kernels.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import hlo_run
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.target import preset

ROUNDS = 5
SIZES = ((1, 1000), (200, 1000), (20000, 16), (1, 20000), (10, 20000))
EMITTED = """HloModule emitted
less {{ a = u32[] parameter(0)
  b = u32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT }}
ENTRY e {{ x = u32[{0}] parameter(0)
  i = s32[{0}] parameter(1)
  ROOT s = (u32[{0}], s32[{0}]) sort(x, i), dimensions={{1}}, to_apply=less }}
"""
LIBRARY = """HloModule library
ENTRY e {{ x = u32[{0}] parameter(0)
  i = s32[{0}] parameter(1)
  ROOT s = (u32[{0}], s32[{0}], u8[1]) custom-call(x, i), custom_call_target="xla.gpu.ext.cub_sort_pairs",
    backend_config={{"descending":false}} }}
"""


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("| rows x elements | kernels | emitted | library |\n| --- | --- | --- | --- |")
    random = np.random.default_rng(1)
    options = Options(host_engine="jit")
    for rows, elements in SIZES:
        dims = f"{rows},{elements}"
        values = [
            random.integers(0, 1 << 32, (rows, elements), np.uint32),
            np.broadcast_to(np.arange(elements, dtype=np.int32), (rows, elements)).copy(),
        ]
        programs = [
            compile_module(PassContext(preset("h100"), options), hlo_run.parse(text.format(dims))) for text in (EMITTED, LIBRARY)
        ]
        backends = [open_backend("Host", options) for _ in programs]
        best = [float("inf")] * len(programs)
        for turn in range(ROUNDS + 1):
            for number, (backend, program) in enumerate(zip(backends, programs, strict=True)):
                spent = _seconds(backend, program, values)
                best[number] = min(best[number], spent) if turn else best[number]
        print(f"| {rows} x {elements} | {len(programs[0].thunks)} | {1000 * best[0]:.2f} | {1000 * best[1]:.2f} |")


def _seconds(backend: Any, program: Any, values: Any) -> float:
    begin = time.perf_counter()
    backend.run(program, values)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
