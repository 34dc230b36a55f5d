"""Expand batch normalisation: sums over all dimensions except the feature's, then elementwise operations.

    batch-norm-training(x, scale, offset)   =>   mean = sum(x) / n;  variance = sum(x * x) / n - mean * mean
                                                 tuple((x - mean) * rsqrt(variance + epsilon) * scale + offset, mean, variance)

Also batch-norm-inference, which has operands mean and variance, and batch-norm-grad. The element count n uses the run-time
sizes of dynamic dimensions. XLA's `batchnorm_expander.cc`, with the same order of operations.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.expansion import expand


class BatchNormExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "batchnorm_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("batch-norm-training",), _training, described=True)
        expand(module, ("batch-norm-inference",), _inference, described=True)
        expand(module, ("batch-norm-grad",), _grad, described=True)


class _Features:
    """Helpers of the three opcodes: sums per feature, and broadcasts of per-feature values."""

    def __init__(self, b: HloBuilder, instruction: HloInstruction, x: HloValue) -> None:
        self._b = b
        self._x = x
        self._feature = instruction.feature_index
        self._others = [dim for dim in range(x.shape.rank) if dim != self._feature]
        self.epsilon = b.constant(instruction.epsilon, x.shape.element_type)

    def sum(self, value: HloValue) -> HloValue:
        zero = self._b.constant(0, value.shape.element_type)
        return self._b.reduce(value, zero, self._others, "add")

    def spread(self, value: HloValue) -> HloValue:
        """Broadcast a scalar or a per-feature value to the shape of x."""
        return self._b.broadcast(value, self._x.shape.dims, [self._feature] if value.shape.rank else [])

    def count(self) -> HloValue:
        """Return the number of elements per feature, as a float."""
        dynamic = self._x.shape.dynamic_dims
        fixed = [dim for dim in self._others if not dynamic or not dynamic[dim]]
        count = self._b.constant(math.prod(self._x.shape.dims[dim] for dim in fixed), "s32")
        for dim in self._others:
            if dim not in fixed:
                count = self._b.get_dimension_size(self._x, dim) * count
        return self._b.convert(count, self._x.shape.element_type)

    def scaled_deviation(self, value: HloValue) -> HloValue:
        """Return 1 / sqrt(variance + epsilon), elementwise."""
        return self._b.rsqrt(value + self.epsilon)


def _training(b: HloBuilder, old: HloInstruction, x: HloValue, scale: HloValue, offset: HloValue) -> HloValue:
    f = _Features(b, old, x)
    count = f.count()
    mean = f.sum(x) / count
    centered = x - f.spread(mean)
    variance = f.sum(x * x) / count - mean * mean
    normalized = centered * f.scaled_deviation(f.spread(variance))
    return b.tuple([normalized * f.spread(scale) + f.spread(offset), mean, variance])


def _inference(
    b: HloBuilder, old: HloInstruction, x: HloValue, scale: HloValue, offset: HloValue, mean: HloValue, variance: HloValue
) -> HloValue:
    f = _Features(b, old, x)
    true_scale = scale * f.scaled_deviation(variance)
    true_shift = offset - mean * true_scale
    return x * f.spread(true_scale) + f.spread(true_shift)


def _grad(
    b: HloBuilder, old: HloInstruction, x: HloValue, scale: HloValue, mean: HloValue, variance: HloValue, dy: HloValue
) -> HloValue:
    f = _Features(b, old, x)
    count = f.count()
    centered = x - f.spread(mean)
    product_sum = f.sum(dy * centered)
    offset_grad = f.sum(dy)
    scale_grad = product_sum * f.scaled_deviation(variance)
    factor = f.spread(scale) * f.scaled_deviation(f.spread(variance)) / f.spread(count)
    correction = f.spread(product_sum) * centered / (f.spread(variance) + f.epsilon)
    x_grad = factor * (dy * f.spread(count) - f.spread(offset_grad) - correction)
    return b.tuple([x_grad, scale_grad, offset_grad])
