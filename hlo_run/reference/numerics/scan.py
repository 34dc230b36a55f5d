"""Evaluate `scan`: a computation applied along one dimension, with carries from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.values import Calls, Value, as_array, table


def _scan(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Run f(slices.., carries..) → (outs.., carries..) at each index; return the stacked outs and the last carries.

    In reverse, the scan begins at the last index. The outs are stacked at the indices of their slices.
    """
    arrays = [as_array(operand) for operand in operands]
    carry_count = instruction.num_carries
    (dim,) = instruction.dimensions
    body = instruction.to_apply
    inputs, carries = arrays[: len(arrays) - carry_count], arrays[len(arrays) - carry_count :]
    leaves = [shape for _, shape in instruction.shape.leaves()]
    outs = [np.empty(shape.dims, shape.dtype.numpy) for shape in leaves[: len(leaves) - carry_count]]
    size = inputs[0].shape[dim]
    for place in reversed(range(size)) if instruction.is_reverse else range(size):
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
