"""Fourier transforms of tiles, also along a dimension that all devices divide.

    transform of n*p elements on p devices   =>   shuffle: device d gets the elements d, d+p, d+2p, ..
                                                  y_d = transform of these n, each times a power of the (n*p)-th root of 1
                                                  sum over devices s of  y_s * (p-th root of 1) ** (d*s)

The sum is a loop in which the y move around the ring of devices. XLA's `SpmdPartitioningVisitor::HandleFft`, which reads the
operand's own tiles and takes devices for their tiles; here the operand gets the sharding of the result, in any order of devices.
"""

from __future__ import annotations

import math

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.sharding.partitioning.collectives import Groups, all_to_all, permute
from hlo_run.sharding.partitioning.halo import exchange
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.masks import zero_excess
from hlo_run.sharding.partitioning.offsets import Linear, look_up, tile_ordinals
from hlo_run.sharding.partitioning.state import Builder, Part
from hlo_run.sharding.values.make import device_array, iota_tiles

# XLA leaves transforms of fewer dimensions whole.
_LEAST_RANK = 3


def fft(v: Visit) -> Part:
    """Handle transforms of which no transformed dimension is divided, and complex ones whose last dimension all devices divide.

    Others are computed whole.
    """
    hlo, count = v.hlo, v.partitions
    if v.leaf.tiles is not None and all(
        tiles == 1 for tiles in v.leaf.dims[hlo.shape.rank - len(hlo.fft_length) : hlo.shape.rank]
    ):
        return v.made(v.clone([v.parts[0].reshard(v.leaf).hlo]))
    size = hlo.operands[0].shape.dims[-1] if hlo.shape.rank >= _LEAST_RANK else 0
    is_divided = v.leaf.tiles is not None and v.leaf.dims[hlo.shape.rank - 1] == count
    if not size or hlo.fft_type != "FFT" or size != hlo.fft_length[-1] or size % count or not is_divided:
        return v.by_default()
    part = zero_excess(v.parts[0].reshard(v.leaf))
    tile = part.hlo
    padded = _padded(v, tile)
    if padded is None:
        return v.by_default()
    shuffled = all_to_all(v.state, _shuffled(v.b, padded, count), _ring(v), tile.shape.rank - 1)
    shuffled = v.b.slice(shuffled, [0] * tile.shape.rank, tile.shape.dims)
    own_length = (*hlo.fft_length[:-1], hlo.fft_length[-1] // count)
    local = v.b.add("fft", tile.shape, [shuffled], fft_type="FFT", fft_length=own_length)
    place = _place(v, tile.shape.element_type)
    return v.made(_sum_over_devices(v, v.b.binary("multiply", local, _turns(v.b, local, place, count)), place))


def _padded(v: Visit, tile: HloInstruction) -> HloInstruction | None:
    """Return tiles whose size the number of devices divides: each takes elements from those behind it, the last ones zeros."""
    b, dim, count = v.b, tile.shape.rank - 1, v.partitions
    size = tile.shape.dims[dim]
    more = -size % count
    if not more:
        return tile
    joined = exchange(v.state, tile, Linear(0), Linear(more, 2 * more), dim, v.leaf)
    if joined is None:
        return None
    zero = b.constant(0, "s32")
    start = Linear(more).emit(b, tile_ordinals(b, v.leaf, v.state.partition_id)[dim])
    return b.dynamic_slice(joined, [zero] * dim + [start], (*tile.shape.dims[:dim], size + more))


def _shuffled(b: Builder, tile: HloInstruction, count: int) -> HloInstruction:
    """Return the tile with the elements d, d+count, .. together for every device d, by a product with a permutation."""
    size, dim = tile.shape.dims[-1], tile.shape.rank - 1
    numbers = b.reshape(b.add("iota", Shape.array("s32", (size,)), iota_dimension=0), (size // count, count))
    columns = b.add("transpose", Shape.array("s32", (count, size // count)), [numbers], dimensions=(1, 0))
    columns = b.reshape(columns, (size,))
    square = Shape.array("s32", (size, size))
    wanted = b.add("broadcast", square, [columns], dimensions=(1,))
    is_one = b.compare(wanted, b.add("iota", square, iota_dimension=0), "EQ")
    matrix = b.add("convert", square.with_element_type(tile.shape.element_type), [is_one])
    return b.add("dot", tile.shape, [tile, matrix], lhs_contracting_dims=(dim,), rhs_contracting_dims=(0,))


def _is_in_order(v: Visit) -> bool:
    return device_array(v.leaf).reshape(-1).tolist() == list(range(v.partitions))


def _ring(v: Visit) -> Groups:
    """Return the one group of all devices, in the order of their tiles."""
    if _is_in_order(v):
        return iota_tiles((1, v.partitions))
    return (tuple(int(device) for device in device_array(v.leaf).reshape(-1)),)


def _place(v: Visit, element_type: str) -> HloInstruction:
    """Return the number of the device's tile as a complex number."""
    number = v.state.partition_id
    if not _is_in_order(v):
        number = look_up(v.b, np.argsort(device_array(v.leaf).reshape(-1)).tolist(), "u32", number)
    return v.b.add("convert", Shape.array(element_type, ()), [number])


def _turns(b: Builder, local: HloInstruction, place: HloInstruction, count: int) -> HloInstruction:
    """Return by which power of the root of 1 each element of the device's own transform is multiplied."""
    shape = local.shape
    angle = b.constant(-2j * math.pi / (count * shape.dims[-1]), shape.element_type)
    angles = b.binary("multiply", b.filled(angle, shape), b.filled(place, shape))
    numbers = b.add("iota", shape, iota_dimension=shape.rank - 1)
    return b.add("exponential", shape, [b.binary("multiply", angles, numbers)])


def _sum_over_devices(v: Visit, value: HloInstruction, place: HloInstruction) -> HloInstruction:
    """Return the sum of the devices' values, each times a root of 1, by a loop that hands the values on."""
    b = v.b
    first = b.constant(0, "u32")
    init = b.tuple([b.zeros(value.shape), value, place, place, first])
    condition, body = _inner(v, "fft_collective_permute_condition"), _inner(v, "fft_collective_permute_body")
    state = condition.add("parameter", init.shape, name="param", parameter_number=0)
    limit = condition.constant(v.partitions, "u32")
    condition.computation.root = condition.compare(condition.get_tuple_element(state, 4), limit, "LT")
    _add_iteration(v, body, init.shape)
    called = {"condition": [v.state.module.add_computation(condition.computation)]}
    called["body"] = [v.state.module.add_computation(body.computation)]
    return b.get_tuple_element(b.add("while", init.shape, [init], called), 0)


def _inner(v: Visit, name: str) -> Builder:
    builder = Builder(HloComputation(name))
    builder.origin = v.b.origin
    return builder


def _add_iteration(v: Visit, b: Builder, shape: Shape) -> None:
    state = b.add("parameter", shape, name="param", parameter_number=0)
    total, value, own, source, number = (b.get_tuple_element(state, n) for n in range(5))
    angle = b.constant(-2j * math.pi / v.partitions, own.shape.element_type)
    angle = b.binary("multiply", b.binary("multiply", angle, own), source)
    factor = b.filled(b.add("exponential", angle.shape, [angle]), value.shape)
    total = b.binary("add", b.binary("multiply", factor, value), total)
    order = device_array(v.leaf).reshape(-1)
    pairs = [(int(a), int(c)) for a, c in zip(order, np.roll(order, -1), strict=True)]
    inside = replace(v.state, builder=b)
    source, value = permute(inside, source, pairs), permute(inside, value, pairs)
    number = b.binary("add", number, b.constant(1, "u32"))
    b.computation.root = b.tuple([total, value, own, source, number])
