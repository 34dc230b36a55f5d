"""Time the elementary functions beside numpy's, and count values that are not the nearest number.

python3 scripts/venv.py python benchmarks/elementary.py [--elements N] [--checked N]

Nanoseconds of processor time per element, the least of 5: of f64 arrays by numpy and by hlo-run, and of f32 arrays by numpy in
f64 (rounded to f32 afterwards) and by hlo-run. `not nearest`: how many values of f64 are not the nearest to the true value, for
numpy and for hlo-run, among `--checked` random arguments; `decimal` arithmetic with 45 digits and more is the truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hlo_run.elementary import exact, functions
from hlo_run.elementary.rounding import Elementary

_SIZES = {
    "log": (1e-5, 1e5),
    "acosh": (1.0001, 1e5),
    "rsqrt": (1e-5, 1e5),
    "asin": (1e-3, 1.0),
    "acos": (1e-3, 1.0),
    "atanh": (1e-3, 1.0),
}
_POSITIVE = ("log", "log1p", "acosh", "rsqrt", "power")
_USUAL = (1e-3, 10.0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 18)
    parser.add_argument("--checked", type=int, default=2000)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    print("| function | f64 numpy ns | f64 ns | f32 numpy ns | f32 ns | numpy not nearest | not nearest |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, function in vars(functions).items():
        if isinstance(function, Elementary):
            print(_row(name, function, rng, options.elements, options.checked), flush=True)


def _row(name: str, function: Elementary, rng: np.random.Generator, elements: int, checked: int) -> str:
    low, high = _SIZES.get(name, _USUAL)
    operands = [_drawn(rng, low, high, elements, name in _POSITIVE) for _ in range(2 if name in ("atan2", "power") else 1)]
    narrow = function.narrowed(24, 2.0**-126)
    times = (
        _nanoseconds(lambda: function.approximate(*operands), elements),
        _nanoseconds(lambda: function(*operands), elements),
        _nanoseconds(lambda: function.approximate(*operands).astype(np.float32), elements),
        _nanoseconds(lambda: narrow(*operands).astype(np.float32), elements),
    )
    few = [operand[:checked] for operand in operands]
    decimal: Any = getattr(exact, name)
    wanted = np.array([exact.nearest(decimal, *(x.item(place) for x in few)) for place in range(checked)])
    wrong = [int(np.count_nonzero(found != wanted)) for found in (function.approximate(*few), function(*few))]
    return f"| {name} | {' | '.join(f'{t:.1f}' for t in times)} | {100 * wrong[0] / checked:.1f} % | {wrong[1]} |"


def _drawn(rng: np.random.Generator, low: float, high: float, count: int, is_positive: bool) -> Any:
    size = np.exp2(rng.uniform(np.log2(low), np.log2(high), count)).astype(np.float32).astype(np.float64)
    return size if is_positive else np.where(rng.random(count) < 0.5, -size, size)


def _nanoseconds(run: Callable[[], object], count: int) -> float:
    best = float("inf")
    with np.errstate(all="ignore"):
        for _ in range(5):
            begin = time.process_time()
            run()
            best = min(best, time.process_time() - begin)
    return 1e9 * best / count


if __name__ == "__main__":
    main()
