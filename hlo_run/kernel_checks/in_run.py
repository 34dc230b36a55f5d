"""Compares what each kernel has computed in a run with the same value in the reference's run of the optimised module.

Other than alone, the operands differ by what the kernels before have rounded, so the errors are those that have come together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.kernel_checks.outcomes import Outcome
from hlo_run.kernel_checks.written_arrays import part_at
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.values import Value, as_array, quiet


def compare_in_run(outcomes: Iterable[Outcome], values: Mapping[HloInstruction, Value], spec: ErrorSpec) -> None:
    """Give the outcomes their errors in the run. `values` are the reference's, the last of each instruction, by its name."""
    named = {instruction.name: value for instruction, value in values.items()}
    with quiet():
        for outcome in outcomes:
            value = named.get(outcome.unit.name)
            if value is None or not outcome.result:
                continue
            expected = tuple(dynamic.leave(as_array(part_at(value, path))) for path, _ in outcome.unit.leaves)
            shape = Shape.make_tuple(tuple(leaf for _, leaf in outcome.unit.leaves))
            outcome.in_run = compare(expected, outcome.result, shape, spec)
