"""Evaluate `batch-norm-training`, `-inference` and `-grad` in f64, with one rounding at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.values import Array, Calls, Value, arrays_row, as_array, narrow, table, widen


class _Features:
    """The operands of a batch norm in f64; `spread` broadcasts a per-feature array over the first operand."""

    def __init__(self, instruction: HloInstruction, operands: Sequence[Array]) -> None:
        types = [operand.shape.dtype for operand in instruction.operands]
        self.arrays = [widen(x, dtype).astype(np.float64) for x, dtype in zip(operands, types, strict=True)]
        # The attribute is an f32, whatever the operand's type.
        self.epsilon = np.float64(np.float32(instruction.epsilon))
        feature = instruction.feature_index
        rank = self.arrays[0].ndim
        self.others = tuple(d for d in range(rank) if d != feature)
        self._spread = [-1 if d == feature else 1 for d in range(rank)]
        # Without elements the statistics are 0 / 0.
        self.count = np.float64(np.prod([self.arrays[0].shape[d] for d in self.others], dtype=np.int64))

    def spread(self, per_feature: Array) -> Array:
        return per_feature.reshape(self._spread)

    def normalise(self, scale: Array, offset: Array, mean: Array, variance: Array) -> Array:
        factor = scale / np.sqrt(variance + self.epsilon)
        return (self.arrays[0] - self.spread(mean)) * self.spread(factor) + self.spread(offset)


def _typed(instruction: HloInstruction, results: Sequence[Array]) -> Value:
    leaves = [shape for _, shape in instruction.shape.leaves()]
    return tuple(narrow(result, shape.dtype) for result, shape in zip(results, leaves, strict=True))


def _training(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the normalised operand, the mean and the biased variance."""
    given = _Features(instruction, [as_array(operand) for operand in operands])
    x, scale, offset = given.arrays
    mean = x.sum(given.others) / given.count
    variance = np.square(x - given.spread(mean)).sum(given.others) / given.count
    return _typed(instruction, (given.normalise(scale, offset, mean, variance), mean, variance))


def _inference(instruction: HloInstruction, operands: Sequence[Array]) -> Array:
    given = _Features(instruction, operands)
    return narrow(given.normalise(*given.arrays[1:]), instruction.shape.dtype)


def _grad(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the gradients of the operand, the scale and the offset."""
    given = _Features(instruction, [as_array(operand) for operand in operands])
    x, scale, mean, variance, grad = given.arrays
    inverse = 1 / np.sqrt(variance + given.epsilon)
    centred = x - given.spread(mean)
    offset_grad = grad.sum(given.others)
    product_sum = (grad * centred).sum(given.others)
    rest = given.count * grad - given.spread(offset_grad) - centred * given.spread(product_sum * inverse * inverse)
    return _typed(instruction, (rest * given.spread(scale * inverse / given.count), product_sum * inverse, offset_grad))


EVALUATE = table(
    ("batch-norm-training", _training),
    arrays_row("batch-norm-inference", _inference),
    ("batch-norm-grad", _grad),
)
