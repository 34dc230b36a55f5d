"""Time the comparison of two arrays and the report on a mismatch, and print the memory that the comparison adds.

    python benchmarks/compare.py [MEGABYTES]

Two f32 arrays of MEGABYTES each (40 by default) are equal, apart by rounding, or wrong everywhere. Processor time.
"""

from __future__ import annotations

import argparse
import resource
from time import process_time

import numpy as np

from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import ErrorSpec, compare


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megabytes", type=int, nargs="?", default=40)
    rows = parser.parse_args().megabytes * 250
    want = np.random.default_rng(1).standard_normal((rows, 1000), dtype=np.float32)
    for name, factor in (("equal", 1.0), ("rounding apart", 1 + 2e-7), ("wrong", 1.01)):
        got = want * np.float32(factor)
        before, begin = _peak_bytes(), process_time()
        comparison = compare(want, got, Shape.array("f32", want.shape), ErrorSpec(1e-3, 1e-3))
        compared = process_time() - begin
        line = f"{name}: {want.size} elements, {1e9 * compared / want.size:.1f} ns each"
        if not comparison.ok:
            begin = process_time()
            comparison.report()
            line += f", report {1e9 * (process_time() - begin) / want.size:.1f} ns each"
        print(f"{line}, peak grew by {(_peak_bytes() - before) / want.nbytes:.2f} of one array")
        del got, comparison  # so that the next pair does not add to the peak


if __name__ == "__main__":
    main()
