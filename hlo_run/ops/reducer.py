"""The check of reducers, for reductions, windows and scatters."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.rule import brief, called, compatible_up_to_precision, make_array, refuse, results_of


def check_reducer(
    instruction: HloInstruction, inits: Sequence[str], inputs: Sequence[str], attribute: str = "to_apply"
) -> list[str]:
    """Return the element types that a reducer returns; refuse a reducer that does not match.

    Its parameters are one accumulator per input, then the inputs, all scalars. Accumulators have exactly the types of its
    results; initial values and inputs (given as element types) may be floats of other widths.
    """
    reducer = called(instruction, attribute)
    count = len(inputs)
    parameters = [parameter.shape for parameter in reducer.parameters]
    if len(parameters) != 2 * count:
        raise refuse(f"reducer '{reducer.name}' has {len(parameters)} parameters, but must have {2 * count}")
    results = results_of(reducer.root.shape)
    if len(results) != count or any(not result.is_array or result.rank for result in results):
        raise refuse(f"reducer '{reducer.name}' must return {count} scalars, but returns {brief(reducer.root.shape)}")
    for number, result in enumerate(results):
        if not result.compatible(parameters[number]):
            raise _differs(reducer, f"parameter {number}", parameters[number], "its result", result)
        init, value = make_array(inits[number], ()), make_array(inputs[number], ())
        if not compatible_up_to_precision(result, init):
            raise _differs(reducer, "the initial value", init, "its result", result)
        for found, what in ((value, "the input's elements"), (result, "its result")):
            if not compatible_up_to_precision(found, parameters[count + number]):
                raise _differs(reducer, f"parameter {count + number}", parameters[count + number], what, found)
    return [result.element_type for result in results]


def _differs(reducer: HloComputation, what: str, found: Shape, other: str, expected: Shape) -> Exception:
    return refuse(f"reducer '{reducer.name}': {what} is {brief(found)}, but {other} {brief(expected)}")
