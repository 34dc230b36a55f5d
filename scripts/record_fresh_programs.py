"""Record training steps and inference programs of `scripts/fresh_programs` as HLO text, for scripts/mutation_score.py.

    python scripts/record_fresh_programs.py [NAME...]

Needs an environment of its own, with jax, flax, optax, dm-haiku, distrax and equinox, and for `later` also diffrax, optimistix,
numpyro, tinygp, e3nn-jax and mctx. For each program it stores what JAX lowers it to in tests/data/fresh_programs, without the
layouts that are row-major.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

_TARGET = Path(__file__).parent.parent / "tests" / "data" / "fresh_programs"
_FAMILIES = ("vision", "sequences", "generative", "numeric", "sciences", "later")


def main() -> int:
    """Record the programs of the command line, or all of them, and return the exit code."""
    jax: Any = importlib.import_module("jax")
    _TARGET.mkdir(parents=True, exist_ok=True)
    for family in _FAMILIES:
        programs = importlib.import_module(f"fresh_programs.{family}").programs()
        for name, (function, arguments) in programs.items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            text = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("hlo").as_hlo_text()
            text = _without_layouts(re.sub(r"(?m)^HloModule .*", f"HloModule {name}", text))
            # JAX 0.12 prints the attribute of compare under another name.
            text = re.sub(r"\border=TOTAL\b", "type=TOTALORDER", text)
            (_TARGET / f"{name}.hlo").write_text(text, encoding="utf-8")
            print(f"{name}: {len(text)} characters")
    return 0


def _without_layouts(text: str) -> str:
    """Leave out the layouts that are row-major, which are the default."""

    def kept(found: re.Match[str]) -> str:
        numbers = [int(number) for number in found[2].split(",") if number]
        return found[1] if numbers == sorted(numbers, reverse=True) else found[0]

    return re.sub(r"(\[[\d,]*\])\{([\d,]*)\}", kept, text)


if __name__ == "__main__":
    sys.exit(main())
