"""`scan`: a computation carried along one dimension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.values import Calls, Value, as_array, table


def _scan(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """f(slices.., carries..) → (outs.., new carries..) for each place of the dimension; the outs stacked, the last carries.

    Each step needs the carries of the one before: the loop is the op. In reverse it begins at the end, and the outs
    stand where their slices stood.
    """
    attrs = instruction.attrs
    arrays = [as_array(operand) for operand in operands]
    carry_count: int = attrs["num_carries"]
    (dim,) = attrs["dimensions"]
    (body,) = instruction.called["to_apply"]
    inputs, carries = arrays[: len(arrays) - carry_count], arrays[len(arrays) - carry_count :]
    leaves = [shape for _, shape in instruction.shape.leaves()]
    outs = [np.empty(shape.dims, shape.dtype.numpy) for shape in leaves[: len(leaves) - carry_count]]
    size = inputs[0].shape[dim]
    for place in reversed(range(size)) if attrs.get("is_reverse", False) is True else range(size):
        # The ellipsis keeps an element of a vector an array.
        index = (*(slice(None),) * dim, place, ...)
        value = calls.call(body, [*(array[index] for array in inputs), *carries])
        results = [as_array(part) for part in value] if isinstance(value, tuple) else [value]
        for out, result in zip(outs, results, strict=False):
            out[index] = result
        carries = results[len(outs) :]
    results = (*outs, *carries)
    return results if instruction.shape.is_tuple else results[0]


EVALUATE = table(("scan", _scan))
