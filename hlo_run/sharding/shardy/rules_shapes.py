"""Sharding rules of instructions that move elements or combine neighbours: reshapes, slices, windows, sorts and others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_run.hlo.graph import HloInstruction
from hlo_run.sharding.shardy.rule import Dim, Kind, Rule, RuleBuilder


def builder_for(instruction: HloInstruction) -> RuleBuilder:
    """Return a builder with the ranks of the operands and the results; operands and results other than arrays have rank 0."""
    ranks = [operand.shape.rank if operand.shape.is_array else 0 for operand in instruction.operands]
    return RuleBuilder(ranks, [len(dims) for dims in result_dims(instruction)])


def result_dims(instruction: HloInstruction) -> list[tuple[int, ...]]:
    """Return the extents of all results; () for results that are not arrays."""
    return [shape.dims if shape.is_array else () for _, shape in instruction.shape.leaves()]


def broadcast(instruction: HloInstruction) -> Rule:
    """Return the rule of a broadcast: the operand's dimensions, and new ones."""
    builder = builder_for(instruction)
    source: dict[int, int] = {out: number for number, out in enumerate(instruction.dimensions)}
    for dim, size in enumerate(instruction.shape.dims):
        builder.factor([source.get(dim)], [dim], size)
    return builder.build()


def transpose(instruction: HloInstruction) -> Rule:
    """Return the rule of a transpose: each dimension in its new place."""
    builder = builder_for(instruction)
    before = instruction.operands[0].shape.dims
    for out, dim in enumerate(instruction.dimensions):
        builder.factor([dim], [out], before[dim])
    return builder.build()


def reshape(instruction: HloInstruction) -> Rule | None:
    """Return the rule of a reshape: common factors of the extents, from major to minor, while both sides can be cut alike."""
    before, after = instruction.operands[0].shape.dims, instruction.shape.dims
    if math.prod(before) == 0:
        return None
    builder = builder_for(instruction)
    sides = [_Side(before), _Side(after)]
    while not all(side.is_done for side in sides):
        if any(_take_ones(builder, sides, number) for number in range(2)):
            continue
        for side in sides:
            side.open()
        one, other = sides
        shared = math.gcd(one.left, other.left)
        if one.taken == other.taken and shared > 1:
            builder.factor([one.dim], [other.dim], shared)
            one.take(shared)
            other.take(shared)
        elif one.taken == other.taken:
            _add_alone(builder, sides, 0, one.left)
            _add_alone(builder, sides, 1, other.left)
        else:
            behind = 0 if one.taken < other.taken else 1
            _add_alone(builder, sides, behind, _factor_to_align(sides[behind], sides[1 - behind], shared))
        for side in sides:
            side.close()
    return builder.build()


class _Side:
    """One side of a reshape: the dimension that is cut, and the products of the extents and of the factors until now."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.dim = 0
        self.extent = 1
        self.taken = 1

    @property
    def is_done(self) -> bool:
        """True if all dimensions are cut."""
        return self.dim == len(self.sizes)

    @property
    def left(self) -> int:
        """The rest of the dimension."""
        return self.extent // self.taken

    def open(self) -> None:
        """Begin with a dimension, unless one is not finished."""
        if not self.is_done and self.extent == self.taken:
            self.extent *= self.sizes[self.dim]

    def take(self, size: int) -> None:
        """Cut a factor off."""
        self.taken *= size

    def close(self) -> None:
        """Go on to the next dimension if this one is finished."""
        if not self.is_done and self.extent == self.taken:
            self.dim += 1


def _take_ones(builder: RuleBuilder, sides: list[_Side], number: int) -> bool:
    side = sides[number]
    if side.is_done or side.sizes[side.dim] != 1:
        return False
    dims: list[Dim] = [None, None]
    dims[number] = side.dim
    builder.factor(dims[:1], dims[1:], 1)
    side.dim += 1
    return True


def _add_alone(builder: RuleBuilder, sides: list[_Side], number: int, size: int) -> None:
    dims: list[Dim] = [None, None]
    dims[number] = sides[number].dim
    builder.factor(dims[:1], dims[1:], size)
    sides[number].take(size)


def _factor_to_align(behind: _Side, ahead: _Side, shared: int) -> int:
    """Return the factor of the side whose factors are behind: one that meets the other side, if there is one."""
    if ahead.taken % behind.taken == 0 and behind.left % (ahead.taken // behind.taken) == 0:
        return ahead.taken // behind.taken
    return behind.left // shared if behind.left > shared else behind.left


def slice_or_pad(instruction: HloInstruction) -> Rule:
    """Return the rule of a slice or pad: dimensions that keep their extent, and others, whose elements move between devices."""
    builder = builder_for(instruction)
    builder.pointwise_where_equal(instruction.operands[0].shape.dims, instruction.shape.dims, Kind.PERMUTE)
    return builder.build()


def reverse(instruction: HloInstruction) -> Rule:
    """Return the rule of a reverse: reversed dimensions, whose elements move between devices, and others."""
    builder = builder_for(instruction)
    reversed_dims = instruction.dimensions
    builder.pointwise(instruction.shape.dims, lambda dim: Kind.PERMUTE if dim in reversed_dims else Kind.PASS)
    return builder.build()


def concatenate(instruction: HloInstruction) -> Rule:
    """Return the rule of a concatenate: other dimensions, and the joined one, with whole operands unless these are slices."""
    builder = builder_for(instruction)
    joined = instruction.dimensions[0]
    operands = instruction.operands
    sources = {operand.operands[0] if operand.opcode == "slice" else operand for operand in operands}
    slices = [operand.opcode == "slice" for operand in operands]
    kind = Kind.PERMUTE if all(slices) or (len(sources) == 1 and any(slices)) else Kind.REPLICATE
    builder.pointwise(instruction.shape.dims, lambda dim: kind if dim == joined else Kind.PASS)
    return builder.build()


def reduce(instruction: HloInstruction) -> Rule:
    """Return the rule of a reduce: reduced dimensions and others; init values have none."""
    builder = builder_for(instruction)
    count = len(instruction.operands) // 2
    out = 0
    for dim, size in enumerate(instruction.operands[0].shape.dims):
        operands: list[Dim] = [dim] * count + [None] * count
        if dim in instruction.dimensions:
            builder.factor(operands, [None] * count, size, Kind.REDUCTION)
        else:
            builder.factor(operands, [out] * count, size)
            out += 1
    return builder.build()


def _is_untouched(instruction: HloInstruction, dim: int) -> bool:
    window = instruction.window.dims[dim]
    return (window.size, window.stride, window.pad_low, window.pad_high) == (1, 1, 0, 0)


def reduce_window(instruction: HloInstruction) -> Rule:
    """Return the rule of a reduce-window: a factor per number of windows; elements at tiles' borders move."""
    builder = builder_for(instruction)
    sizes = result_dims(instruction)[0]
    builder.pointwise(sizes, lambda dim: Kind.PASS if _is_untouched(instruction, dim) else Kind.PERMUTE)
    return builder.build()


def select_and_scatter(instruction: HloInstruction) -> Rule:
    """Return the rule of a select-and-scatter: dimensions without windows, and others, along which the source stays whole."""
    builder = builder_for(instruction)
    source = instruction.operands[1].shape.dims
    for dim, size in enumerate(instruction.shape.dims):
        if _is_untouched(instruction, dim):
            builder.everywhere(dim, size)
            continue
        builder.factor([None, dim, None], [None], source[dim], Kind.REPLICATE)
        builder.factor([dim, None, None], [dim], size, Kind.PERMUTE)
    return builder.build()


def sort(instruction: HloInstruction) -> Rule:
    """Return the rule of a sort: the sorted dimension needs whole operands; it is blocked if it is the only one."""
    builder = builder_for(instruction)
    sizes = instruction.operands[0].shape.dims
    sorted_dim = instruction.dimensions[0]
    is_alone = all(dim == sorted_dim or size == 1 for dim, size in enumerate(sizes))
    for dim, size in enumerate(sizes):
        if dim == sorted_dim:
            builder.everywhere(dim, size, Kind.REPLICATE, is_blocked=is_alone)
        else:
            builder.everywhere(dim, size)
    return builder.build()


def scan(instruction: HloInstruction) -> Rule:
    """Return the rule of a scan: the scanned dimension of inputs and outputs stays whole; inits and carries have the others.

    If the body changes shapes, its other dimensions are no factors.
    """
    builder = builder_for(instruction)
    shapes, results = [operand.shape.dims for operand in instruction.operands], result_dims(instruction)
    carried = instruction.num_carries
    inputs, outputs = len(shapes) - carried, len(results) - carried
    (scanned,) = instruction.dimensions
    whole = (shapes[:inputs] or results)[0]
    part = (*whole[:scanned], *whole[scanned + 1 :])
    keeps_shapes = [*shapes, *results] == [*[whole] * inputs, *[part] * carried] * 2
    none: list[Dim] = [None] * carried
    for dim, size in enumerate(whole):
        if dim == scanned:
            kind = Kind.PERMUTE if instruction.is_associative and keeps_shapes else Kind.REPLICATE
            builder.factor([dim] * inputs + none, [dim] * outputs + none, size, kind)
        elif keeps_shapes:
            inner = [dim - (dim > scanned)] * carried
            builder.factor([dim] * inputs + inner, [dim] * outputs + inner, size)
    return builder.build()


def bitcast_convert(instruction: HloInstruction) -> Rule:
    """Return the rule of a bitcast-convert: all dimensions except the one that elements of fewer bits have in addition."""
    builder = builder_for(instruction)
    before, after = instruction.operands[0].shape.dims, instruction.shape.dims
    for dim, size in enumerate(min(before, after, key=len)):
        builder.everywhere(dim, size)
    if len(before) < len(after):
        builder.factor([None], [len(after) - 1], after[-1], Kind.REPLICATE)
    elif len(before) > len(after):
        builder.factor([len(before) - 1], [None], before[-1], Kind.REPLICATE)
    return builder.build()


def batch_norm_inference(instruction: HloInstruction) -> Rule:
    """Return the rule of a batch-norm-inference: the dimensions of the array; the other operands have the features."""
    builder = builder_for(instruction)
    others = len(instruction.operands) - 1
    for dim, size in enumerate(instruction.shape.dims):
        feature: Dim = 0 if dim == instruction.feature_index else None
        builder.factor([dim, *[feature] * others], [dim], size)
    return builder.build()


def rng_bit_generator(instruction: HloInstruction) -> Rule:
    """Return the rule of a rng-bit-generator: the state stays whole and passes no sharding on; the bits have separate factors."""
    builder = builder_for(instruction)
    for dim, size in enumerate(instruction.operands[0].shape.dims):
        builder.factor([dim], [dim, None], size, Kind.REPLICATE, is_blocked=True)
    for dim, size in enumerate(result_dims(instruction)[1]):
        builder.factor([None], [None, dim], size)
    return builder.build()


def gathering_collective(instruction: HloInstruction) -> Rule:
    """Return the rule of gathering collectives: other dimensions; along theirs, operands and results stay whole."""
    builder = builder_for(instruction)
    before, after = instruction.operands[0].shape.dims, result_dims(instruction)[0]
    own = instruction.dimensions
    for dim, size in enumerate(before):
        if dim not in own:
            builder.everywhere(dim, size)
    for dim in own:
        builder.of_operands(dim, before[dim], Kind.REPLICATE)
        builder.of_results(dim, after[dim], Kind.REPLICATE)
    return builder.build()
