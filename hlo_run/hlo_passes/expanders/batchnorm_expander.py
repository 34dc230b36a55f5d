"""Expand batch normalisation: sums over all dimensions except the feature's, then elementwise operations.

    batch-norm-training(x, scale, offset)   =>   mean = sum(x) / n;  variance = max(sum(x * x) / n - mean * mean, 0)
                                                 tuple((x - mean) * rsqrt(variance + epsilon) * scale + offset, mean, variance)

Also batch-norm-inference, which has operands mean and variance, and batch-norm-grad. The element count n uses the run-time
sizes of dimensions. XLA's `batchnorm_expander.cc`, with the same order of operations.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.edit import scalar_adder
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class BatchNormExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "batchnorm_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("batch-norm-training",), _training, described=True, computations_first=False)
        expand(module, ("batch-norm-inference",), _inference, described=True, computations_first=False)
        expand(module, ("batch-norm-grad",), _grad, described=True, computations_first=False)


class _Features:
    """Helpers of the three opcodes: sums per feature, and broadcasts of per-feature values."""

    def __init__(self, b: HloBuilder, x: HloValue, feature: int) -> None:
        self._b = b
        self._x = x
        self._feature = feature
        self._others = [dim for dim in range(x.shape.rank) if dim != feature]

    def constant(self, value: float) -> HloValue:
        return self._b.constant(value, self._x.shape.element_type)

    def adding(self) -> HloComputation:
        """Return the computation of all sums."""
        return scalar_adder(self._x.shape.element_type)

    def sum(self, value: HloValue, zero: HloValue, adding: HloComputation) -> HloValue:
        return self._b.reduce(value, zero, self._others, adding)

    def spread(self, value: HloValue) -> HloValue:
        """Broadcast a scalar or a per-feature value to the shape of x."""
        return self._b.broadcast(value, self._x.shape.dims, [self._feature] if value.shape.rank else [])

    def count(self) -> HloValue:
        """Return the number of elements per feature, as a float."""
        count = self._b.constant(1, "s32")
        for dim in self._others:
            count = self._b.get_dimension_size(self._x, dim) * count
        return self._b.convert(count, self._x.shape.element_type)

    def mean(self, value: HloValue, count: HloValue) -> HloValue:
        return value / self._b.broadcast(count, value.shape.dims)


def _training(b: HloBuilder, old: HloInstruction, x: HloValue, scale: HloValue, offset: HloValue) -> HloValue:
    f = _Features(b, x, old.feature_index)
    zero = f.constant(0)
    epsilon = f.spread(f.constant(old.epsilon))
    count = f.count()
    all_scales, all_offsets, adding = f.spread(scale), f.spread(offset), f.adding()
    squares = x * x
    total, total_squares = f.sum(x, zero, adding), f.sum(squares, zero, adding)
    mean = f.mean(total, count)
    means = f.spread(mean)
    mean_square = f.mean(total_squares, count)
    variance = mean_square - mean * mean
    variance = b.maximum(variance, b.broadcast(zero, variance.shape.dims))  # rounding may make it negative
    deviation = b.rsqrt(f.spread(variance) + epsilon)
    normalized = (x - means) * deviation
    return b.tuple([normalized * all_scales + all_offsets, mean, variance])


def _inference(
    b: HloBuilder, old: HloInstruction, x: HloValue, scale: HloValue, offset: HloValue, mean: HloValue, variance: HloValue
) -> HloValue:
    f = _Features(b, x, old.feature_index)
    epsilon = b.broadcast(f.constant(old.epsilon), variance.shape.dims)
    true_scale = scale * b.rsqrt(variance + epsilon)
    true_shift = offset - mean * true_scale
    return x * f.spread(true_scale) + f.spread(true_shift)


def _grad(
    b: HloBuilder, old: HloInstruction, x: HloValue, scale: HloValue, mean: HloValue, variance: HloValue, dy: HloValue
) -> HloValue:
    f = _Features(b, x, old.feature_index)
    count, zero, epsilon = f.count(), f.constant(0), f.constant(old.epsilon)
    all_epsilons, epsilons = f.spread(epsilon), b.broadcast(epsilon, variance.shape.dims)
    scales, variances, means = f.spread(scale), f.spread(variance), f.spread(mean)
    deviations = b.rsqrt(variances + all_epsilons)
    deviation = b.rsqrt(variance + epsilons)
    centered = x - means
    products, adding = dy * centered, f.adding()
    product_sum, offset_grad = f.sum(products, zero, adding), f.sum(dy, zero, adding)
    scale_grad = product_sum * deviation
    offset_grads, product_sums = f.spread(offset_grad), f.spread(product_sum)
    correction = product_sums * centered / (variances + all_epsilons)
    factor = f.mean(scales * deviations, count)
    x_grad = factor * (dy * f.spread(count) - offset_grads - correction)
    return b.tuple([x_grad, scale_grad, offset_grad])
