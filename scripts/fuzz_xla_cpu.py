"""Compare the reference with real XLA:CPU on random modules and print the differences.

    python3 scripts/venv.py python scripts/fuzz_xla_cpu.py --xla "PYTHON RUN_CPU.py" [--count N] [--seed N]

Modules and arguments are those of `hlo_run.fuzz`, compared as in `hlo-fuzz`: exact results must be equal, others
may differ by the generator's error bound. Modules that XLA:CPU alone cannot run are left out: with infeeds, outfeeds, or custom
calls of the generator. Modules that XLA refuses are counted with its reason. The exit code is 1 if any module differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from xla_cpu import Arrays, XlaCpu, XlaError

import hlo_run
from hlo_run.fuzz.check import differences, feeds_of, make_arguments
from hlo_run.fuzz.generate import random_module
from hlo_run.reference.evaluate.evaluate import Reference

_ELSEWHERE = (" infeed(", " outfeed(", " custom-call(")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--xla", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with XlaCpu(options.xla) as xla:
        for seed in range(options.seed, options.seed + options.count):
            status, detail = _judge(seed, xla)
            counts[status] += 1
            if detail:
                print(f"seed {seed}: {status}: {detail}", flush=True)
    print(", ".join(f"{number} {status}" for status, number in counts.most_common()))
    return int(counts["differs"] > 0)


def _judge(seed: int, xla: XlaCpu) -> tuple[str, str]:
    """Return the status (agrees, differs, refused by XLA, or left out) and a detail."""
    made = random_module(seed)
    if any(word in made.text for word in _ELSEWHERE):
        return "left out", ""
    module = hlo_run.parse(made.text)
    arguments = make_arguments(made)
    expected = Reference(module).run([arguments], feeds=feeds_of(seed))[0]
    try:
        found = xla.run(made.text, _flat(arguments)).results
    except XlaError as error:
        return "refused", " ".join(str(error).split())[:200]
    shape = module.entry.root.shape
    typed = [array.view(leaf.dtype.numpy) for array, (_, leaf) in zip(found, shape.leaves(), strict=True)]
    said = list(differences(made.result, expected, _nested(made.result, iter(typed)), "result"))
    return ("differs", said[0]) if said else ("agrees", "")


def _flat(values: Sequence[Any]) -> Arrays:
    """Return the leaves of arguments. Tuples may be nested."""
    leaves: Arrays = []
    for value in values:
        leaves += _flat(cast(Sequence[Any], value)) if isinstance(value, tuple) else [np.asarray(value)]
    return leaves


def _nested(like: Any, leaves: Any) -> Any:
    return tuple(_nested(part, leaves) for part in like.parts) if like.is_tuple else next(leaves)


if __name__ == "__main__":
    sys.exit(main())
