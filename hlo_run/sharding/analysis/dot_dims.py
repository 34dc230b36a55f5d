"""The dimensions of a dot, or of a convolution as a dot: batch, contracting, free ones and true spatial ones."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.values.sharding import Sharding, SingleSharding
from hlo_run.hlo.views.dots import Dot
from hlo_run.sharding.values.make import REPLICATED, elements_of, is_maximal
from hlo_run.sharding.values.merge import merge
from hlo_run.sharding.values.moves import transpose_collapsing
from hlo_run.sharding.values.replicate import replicate_dims


class DimGroup(Struct, frozen=True):
    """One dimension of the product: its number in each operand, in the result, and among the spatial ones; -1 is none."""

    lhs: int = -1
    rhs: int = -1
    output: int = -1
    spatial: int = -1

    def operand(self, index: int) -> int:
        """Return the dimension of operand 0 or 1."""
        return self.rhs if index else self.lhs


class ProductDims(Struct, frozen=True):
    """The dimensions of a dot or convolution by their role; only a convolution has `spatial` ones."""

    batch: tuple[DimGroup, ...]
    contracting: tuple[DimGroup, ...]
    lhs_free: tuple[DimGroup, ...]
    rhs_free: tuple[DimGroup, ...]
    spatial: tuple[DimGroup, ...]
    lhs_rank: int
    rhs_rank: int
    output_rank: int

    def free(self, index: int) -> tuple[DimGroup, ...]:
        """Return the free dimensions of operand 0 or 1."""
        return self.rhs_free if index else self.lhs_free

    def rank(self, index: int) -> int:
        """Return the rank of operand 0 or 1."""
        return self.rhs_rank if index else self.lhs_rank


def product_dims(product: HloInstruction) -> ProductDims:
    """Return the dimensions of a `dot` or `convolution`."""
    return _dims_of_convolution(product) if product.opcode == "convolution" else _dims_of_dot(product)


def _dims_of_dot(dot: HloInstruction) -> ProductDims:
    ranks = [operand.shape.rank for operand in dot.operands[:2]]
    lhs, rhs = Dot.of(dot).sides
    batch = tuple(DimGroup(a, b, n) for n, (a, b) in enumerate(zip(lhs.batch, rhs.batch, strict=True)))
    contracting = tuple(DimGroup(a, b) for a, b in zip(lhs.contracting, rhs.contracting, strict=True))
    first = len(batch)
    lhs_free = tuple(DimGroup(d, -1, first + n) for n, d in enumerate(lhs.free))
    rhs_free = tuple(DimGroup(-1, d, first + len(lhs.free) + n) for n, d in enumerate(rhs.free))
    return ProductDims(batch, contracting, lhs_free, rhs_free, (), ranks[0], ranks[1], dot.shape.rank)


def _dims_of_convolution(convolution: HloInstruction) -> ProductDims:
    lhs, rhs = convolution.operands[:2]
    labels = convolution.dim_labels
    groups: dict[str, list[DimGroup]] = {"batch": [], "spatial": []}
    groups["lhs"] = [DimGroup(labels.input.first_dim, -1, labels.output.first_dim)]
    # The kernel's labels are its input feature (`i`) and its output feature (`o`).
    groups["rhs"] = [DimGroup(-1, labels.kernel.second_dim, labels.output.second_dim)]
    groups["contracting"] = [DimGroup(labels.input.second_dim, labels.kernel.first_dim)]
    spatial = zip(labels.input.spatial_dims, labels.kernel.spatial_dims, labels.output.spatial_dims, strict=True)
    for number, (left, right, output) in enumerate(spatial):
        window = convolution.window.dims[number]
        role = _role(lhs.shape.dims[left], rhs.shape.dims[right], window)
        groups[role].append(DimGroup(left, right, output, number))
    return ProductDims(
        tuple(groups["batch"]),
        tuple(groups["contracting"]),
        tuple(groups["lhs"]),
        tuple(groups["rhs"]),
        tuple(groups["spatial"]),
        lhs.shape.rank,
        rhs.shape.rank,
        convolution.shape.rank,
    )


def _role(lhs_size: int, rhs_size: int, window: WindowDim) -> str:
    if is_spatial_batch(lhs_size, window):
        return "batch"
    undilated = window.base_dilation == 1 and window.window_dilation == 1
    unpadded = window.pad_low == window.pad_high == 0 and not window.reversal
    if lhs_size == window.size and undilated and unpadded:
        return "contracting"
    if window.stride == 1 and undilated:
        if rhs_size == 1 and window.size == 1 and unpadded:
            return "lhs"
        padded = window.pad_low == window.pad_high == rhs_size - 1 and window.reversal
        if lhs_size == 1 and window.size == rhs_size and padded:
            return "rhs"
    return "spatial"


def is_spatial_batch(lhs_size: int, window: WindowDim) -> bool:
    """True if a spatial dimension is a batch dimension: by its strides and dilations each input meets one kernel element."""
    if lhs_size != window.size:
        return False
    steps = (window.stride, window.window_dilation)
    less = max(1, lhs_size - 1)
    unpadded = window.pad_low == window.pad_high == 0 and not window.reversal
    if window.base_dilation == lhs_size and steps in ((less, 1), (1, less)) and unpadded:
        return True
    padded = window.pad_low == window.pad_high == lhs_size - 1 and window.reversal
    return padded and steps == (lhs_size, 1) and window.base_dilation == lhs_size - 1


def operand_sharding(
    product: Sharding | None, other: Sharding | None, index: int, dims: ProductDims, may_combine: bool
) -> SingleSharding:
    """Return the sharding that operand `index` should have, from the shardings of the product and of the other operand."""
    free_of_other, own_free = dims.free(1 - index), dims.free(index)
    result = REPLICATED
    if product is not None:
        away = [d.output for d in free_of_other] + [d.output for d in dims.contracting if d.output >= 0]
        to_operand, to_output = [-1] * dims.output_rank, [-1] * dims.rank(index)
        for group in (*dims.batch, *own_free):
            to_operand[group.output] = group.operand(index)
            to_output[group.operand(index)] = group.output
        moved = transpose_collapsing(replicate_dims(elements_of(product)[0], away), to_operand, to_output)
        assert moved is not None, "the dimensions that vanish are replicated"
        result = moved
    if other is None or is_maximal(other):
        return result
    away = [d.operand(1 - index) for d in free_of_other]
    away += [d.operand(1 - index) for d in own_free if d.operand(1 - index) >= 0]
    to_operand, to_other = [-1] * dims.rank(1 - index), [-1] * dims.rank(index)
    for group in (*dims.batch, *dims.contracting):
        to_operand[group.operand(1 - index)] = group.operand(index)
        to_other[group.operand(index)] = group.operand(1 - index)
    from_other = transpose_collapsing(replicate_dims(elements_of(other)[0], away), to_operand, to_other)
    assert from_other is not None, "the dimensions that vanish are replicated"
    better, joined = merge(result, from_other, may_combine)
    return elements_of(joined)[0] if better else result


def output_sharding(operand: SingleSharding, index: int, dims: ProductDims) -> SingleSharding:
    """Return the sharding of the product that operand `index` suggests: its batch and free dimensions as they are."""
    if operand.is_whole:
        return operand
    away = [d.operand(index) for d in dims.contracting]
    away += [d.operand(index) for d in dims.free(1 - index) if d.operand(index) >= 0]
    to_operand, to_output = [-1] * dims.output_rank, [-1] * dims.rank(index)
    for group in (*dims.batch, *dims.free(index)):
        to_operand[group.output] = group.operand(index)
        to_output[group.operand(index)] = group.output
    moved = transpose_collapsing(replicate_dims(operand, away), to_output, to_operand)
    assert moved is not None, "the dimensions that vanish are replicated"
    return moved
