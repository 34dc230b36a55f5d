"""The Interpreter platform: the numpy reference as a platform of its own; it takes the module, not the executable."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.backends.literals import Literal
from hlo_run.hlo.graph import HloModule
from hlo_run.reference.evaluate import evaluate


class InterpreterBackend:
    """Runs modules as they were written, no pass before and no kernel behind."""

    name = "Interpreter"
    description = "numpy"

    def run_module(self, module: HloModule, arguments: Sequence[Literal], seed: int = 42, precision: str = "native") -> Literal:
        """Run with one literal per entry parameter and return the result; raises Unsupported.

        `seed` is the module's, `precision` as in `evaluate`.
        """
        return evaluate(module, arguments, precision, seed)
