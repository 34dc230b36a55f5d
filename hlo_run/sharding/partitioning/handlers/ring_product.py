"""Multiplies in a loop: tiles of an operand, or of the sum, go round the devices while each device multiplies its own.

    dot(all-gather(l), r)      =>   while: part = dot(l, r); write it where l came from; l = collective-permute(l)
    reduce-scatter(dot(l, r))  =>   while: o = collective-permute(o) + dot(slice of l, r)

So the exchange overlaps the products. XLA calls these windowed einsums, or collective matmuls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.records import replace
from hlo_run.sharding.partitioning.collectives import permute
from hlo_run.sharding.partitioning.grouping import state_in
from hlo_run.sharding.partitioning.handlers.product import Product, same_sharding, tiles_at
from hlo_run.sharding.partitioning.masks import zero_excess
from hlo_run.sharding.partitioning.offsets import partition_offsets
from hlo_run.sharding.partitioning.rings import Ring
from hlo_run.sharding.partitioning.state import Builder, Part
from hlo_run.sharding.values.make import REPLICATED, device_array, listed_tiles, shard_shape
from hlo_run.sharding.values.merge import merged

_SIDES = ("lhs", "rhs")
_VIEWS: tuple[Opcode, ...] = ("reshape", "bitcast", "transpose")


class _Plan(Struct, frozen=True):
    """Operand `index` goes round, divided along dimensions of a kind; or with `sums` the partial sums, while the operands stay.

    `dim`: the operand's only dimension that `steps` devices divide between them, where other devices have other tiles.
    """

    index: int
    kind: Literal["free", "contracting", "batch", "sums"]
    steps: int
    dim: int | None = None

    @property
    def writes(self) -> bool:
        """True if each step makes its own slice of the result, False if it adds to the whole."""
        return self.kind in ("free", "batch")


def ring_product(p: Product) -> HloInstruction | None:
    """Return the tile of a product that a loop computes; None if the options or the shardings allow none."""
    plan = _plan(p)
    return _Emitter(p, plan).emit() if plan is not None else None


def _plan(p: Product) -> _Plan | None:
    if p.lhs.state.rings.options is None or _is_excluded(p):
        return None
    d, count = p.dims, p.partitions
    output_free = [p.tiles(d.free(index), "output") for index in range(2)]
    for index, own in ((1, p.rhs), (0, p.lhs)):
        other = (p.lhs, p.rhs)[1 - index].leaf
        is_as_output = same_sharding(p.moved("output", _SIDES[1 - index]), other)
        if output_free[1 - index] == count and is_as_output and _is_large(p, own.base):
            if p.tiles(d.contracting, _SIDES[index]) == count:
                return _Plan(index, "contracting", count)
            if p.tiles(d.free(index), _SIDES[index]) == count:
                return _Plan(index, "free", count)
            if p.tiles(d.batch, _SIDES[index]) == count:
                return _Plan(index, "batch", count)
    is_split = all(p.tiles(d.contracting, side) == count for side in _SIDES)
    if is_split and count in output_free and _is_large(p, p.base):
        return _Plan(1 if output_free[0] == count else 0, "sums", count)
    return _plan_of_two_dims(p, output_free)


def _is_excluded(p: Product) -> bool:
    """True if the module excludes it, or another loop already moves one of its operands."""
    if frontend_attribute(p.whole, "_xla_collective_matmul") == "none":
        return True
    operands = {_without_view(p.lhs.hlo), _without_view(p.rhs.hlo)}
    rings = p.lhs.state.rings.made
    return any(ring.gathers and ring.loop.operands[0].operands[0] in operands for ring in rings)


def _without_view(value: HloInstruction) -> HloInstruction:
    return value.operands[0] if value.opcode in _VIEWS else value


def _is_large(p: Product, moved: Shape) -> bool:
    options = p.lhs.state.rings.options
    assert options is not None, "products are loops only with options"
    if options.most_operand_bytes is not None:
        return sum(operand.shape.size_bytes for operand in p.whole.operands[:2]) >= options.most_operand_bytes
    return moved.size_bytes >= options.most_bytes


def _plan_of_two_dims(p: Product, output_free: Sequence[int]) -> _Plan | None:
    """Let the left operand go round along one of the two free dimensions that it divides, where the result has it whole."""
    d, count, lhs = p.dims, p.partitions, p.lhs.leaf
    is_divided = p.tiles(d.lhs_free, "lhs") == count == math.prod(output_free)
    if not is_divided or p.tiles(d.rhs_free, "rhs") != output_free[1] or not _is_large(p, p.rhs.base):
        return None
    outputs = {group.lhs: group.output for group in (*d.batch, *d.lhs_free)}
    divided = [dim for dim, tiles in enumerate(lhs.dims) if tiles > 1]
    moving = [dim for dim in divided if tiles_at(p.sharding, outputs[dim]) == 1]
    kept = [dim for dim in divided if tiles_at(p.sharding, outputs[dim]) == lhs.dims[dim]]
    if len(moving) != 1 or len(kept) != 1 or not _is_ascending(lhs, kept[0], moving[0]):
        return None
    if not _are_merged(p, moving[0]):
        return None
    return _Plan(0, "free", lhs.dims[moving[0]], moving[0])


def _is_ascending(sharding: SingleSharding, outer: int, inner: int) -> bool:
    """True if the devices' numbers grow along `inner`, for one place of `outer` after the other."""
    places = np.moveaxis(device_array(sharding), (outer, inner), (0, 1)).reshape(sharding.dims[outer], sharding.dims[inner])
    last = int(places[0, 0])
    for row in places:
        for device in row[1:]:
            if int(device) < last:
                return False
            last = int(device)
    return True


def _are_merged(p: Product, moving: int) -> bool:
    """True if the result is divided as both operands are, but for the dimension that goes round."""
    if p.rhs.leaf.tiles is None:
        return False
    lhs, rhs = device_array(p.lhs.leaf), device_array(p.rhs.leaf)
    copied = lhs if lhs.ndim > p.lhs.base.rank else lhs[..., None]
    one = copied.swapaxes(moving, -1)
    two = rhs.reshape((1,) * max(one.ndim - rhs.ndim, 0) + rhs.shape)
    first, second = (tiled(listed_tiles(places), ("replicated",)) for places in (one, two))
    if first.data_rank != second.data_rank:
        return False
    found = merged(first, second, second.tile_count + 1)
    return found is not None and found.is_same(p.sharding)


def _ring(count: int, shift: int, members: int = 0) -> list[tuple[int, int]]:
    """Return who sends to whom: each device to the one `shift` before it, in rings of `members` neighbours (default: all)."""
    size = members or count
    return [(device, (device - shift) % size + device // size * size) for device in range(count)]


class _Emitter:
    """Adds the loop of a plan, and what comes before and after it."""

    def __init__(self, p: Product, plan: _Plan) -> None:
        self.p, self.plan = p, plan
        self.state = p.lhs.state
        self.own, self.other = _SIDES[plan.index], _SIDES[1 - plan.index]
        options = self.state.rings.options
        self.is_unrolled = options is not None and options.unrolls and p.partitions % 2 == 0 and plan.steps == p.partitions
        self.body = self._builder(f"windowed_dot_general_body_{self._suffix}")
        self.inside = state_in(self.body, self.state)

    @property
    def _suffix(self) -> str:
        return "rs" if self.plan.kind == "sums" else "ag"

    def _builder(self, name: str) -> Builder:
        made = Builder(HloComputation(name))
        made.origin = self.state.builder.origin
        return made

    def emit(self) -> HloInstruction:
        """Return the tile of the product."""
        p, plan, b = self.p, self.plan, self.state.builder
        lhs, rhs = self._operands()
        tile = shard_shape(p.base, p.sharding)
        buffer_shape = self._padded(tile) if plan.writes else tile
        initial = [lhs.hlo, rhs.hlo, b.zeros(buffer_shape), b.zeros(buffer_shape), b.constant(0, "u32")]
        shape = Shape.make_tuple(tuple(value.shape for value in initial))
        self._fill_body(shape)
        called = {"condition": [self._condition(shape)], "body": [self.state.module.add_computation(self.body.computation)]}
        loop = b.add("while", shape, [b.tuple(initial)], called)
        slices = plan.kind != "free"
        self.state.rings.made.append(Ring(loop, plan.index, slices, plan.writes, plan.kind != "sums"))
        result = b.get_tuple_element(loop, 2)
        if plan.kind == "sums" and self.is_unrolled:
            moved = permute(self.state, result, _ring(p.partitions, -1))
            result = b.binary("add", moved, b.get_tuple_element(loop, 3))
        if buffer_shape != tile:
            result = b.slice(result, [0] * tile.rank, tile.dims)
        return result

    def _operands(self) -> tuple[Part, Part]:
        """Return the operands, masked where their excess would be added up, and divided alike if they were not."""
        p, kind = self.p, self.plan.kind
        sides = [p.lhs, p.rhs]
        for index in range(2):
            if kind == "sums" or (kind == "contracting" and index == self.plan.index):
                sides[index] = zero_excess(sides[index])
        counts = [(tiles_at(p.lhs.leaf, group.lhs), tiles_at(p.rhs.leaf, group.rhs)) for group in p.dims.contracting]
        divides_both = all(math.prod(pair[index] for pair in counts) > 1 for index in range(2))
        if divides_both and any(one != two for one, two in counts):
            index = 0 if sides[0].hlo.shape.size_bytes < sides[1].hlo.shape.size_bytes else 1
            wanted = p.moved(_SIDES[1 - index], _SIDES[index])
            if wanted is not None and p.moved(_SIDES[index], _SIDES[1 - index]) is not None:
                sides[index] = zero_excess(sides[index].reshard(wanted))
        return sides[0], sides[1]

    def _moved_sharding(self, source: str, target: str) -> SingleSharding:
        found = self.p.moved(source, target)
        assert found is not None, "the plan moves along dimensions that both have"
        return found

    def _padded(self, tile: Shape) -> Shape:
        counts = self._moved_sharding(self.own, "output").data_dims
        return replace(tile, dims=tuple(-(-size // count) * count for size, count in zip(tile.dims, counts, strict=True)))

    def _condition(self, shape: Shape) -> HloComputation:
        b = self._builder(f"windowed_dot_general_cond_{self._suffix}")
        counter = b.get_tuple_element(b.add("parameter", shape, name="param", parameter_number=0), 4)
        b.computation.root = b.compare(counter, b.constant(self.plan.steps, "u32"), "LT")
        return self.state.module.add_computation(b.computation)

    def _fill_body(self, shape: Shape) -> None:
        b = self.body
        parameter = b.add("parameter", shape, name="param", parameter_number=0)
        elements = [b.get_tuple_element(parameter, number) for number in range(5)]
        if not self.is_unrolled:
            results = self._one_step(elements)
        else:
            results = self._two_sums(elements) if self.plan.kind == "sums" else self._two_products(elements)
        b.computation.root = b.tuple(results)

    def _two_sums(self, elements: list[HloInstruction]) -> list[HloInstruction]:
        """Add to two sums, of the even and the odd steps, so that the exchange of one overlaps the product of the other."""
        b, pairs = self.body, _ring(self.p.partitions, 2)
        lhs, rhs, even, odd, counter = elements
        even = permute(self.inside, even, pairs)
        odd = permute(self.inside, self._step(lhs, rhs, odd, counter), pairs)
        counter = b.binary("add", counter, b.constant(2, "u32"))
        even = self._step(lhs, rhs, even, b.binary("add", counter, b.constant(1, "u32")))
        return [lhs, rhs, even, odd, counter]

    def _two_products(self, elements: list[HloInstruction]) -> list[HloInstruction]:
        b, pairs = self.body, _ring(self.p.partitions, 1)
        sides, (result, extra, counter) = elements[:2], elements[2:]
        for _ in range(2):
            following = list(sides)
            following[self.plan.index] = permute(self.inside, sides[self.plan.index], pairs)
            result = self._step(sides[0], sides[1], result, counter)
            counter = b.binary("add", counter, b.constant(1, "u32"))
            sides = following
        return [*sides, result, extra, counter]

    def _one_step(self, elements: list[HloInstruction]) -> list[HloInstruction]:
        """Do one step, and exchange values unless it is the last one."""
        b, plan = self.body, self.plan
        lhs, rhs, result, extra, counter = elements
        is_sum = plan.kind == "sums"
        result = self._step(lhs, rhs, result, b.binary("add", counter, b.constant(1, "u32")) if is_sum else counter)
        counter = b.binary("add", counter, b.constant(1, "u32"))
        has_more = b.compare(counter, b.constant(plan.steps, "u32"), "LT")
        results = [lhs, rhs, result, extra, counter]
        place = 2 if is_sum else plan.index
        window = results[place]
        branches = [self._branch("window_collective_permute", window.shape), self._branch("last_iteration_noop", window.shape)]
        branches[0].computation.root = permute(
            state_in(branches[0], self.state), branches[0].computation.root, _ring(self.p.partitions, 1, plan.steps)
        )
        called = {
            name: [self.state.module.add_computation(branch.computation)]
            for name, branch in zip(("true_computation", "false_computation"), branches, strict=True)
        }
        results[place] = b.add("conditional", window.shape, [has_more, window, window], called)
        return results

    def _branch(self, name: str, shape: Shape) -> Builder:
        b = self._builder(name)
        b.computation.root = b.add("parameter", shape, name="window", parameter_number=0)
        return b

    def _step(self, lhs: HloInstruction, rhs: HloInstruction, result: HloInstruction, counter: HloInstruction) -> HloInstruction:
        """Multiply what the device has at a step; add to the result, or write a slice of it."""
        p, plan, b = self.p, self.plan, self.body
        source = b.binary("remainder", b.binary("add", counter, self.inside.partition_id), b.constant(p.partitions, "u32"))
        values = [lhs, rhs]
        if plan.kind != "free":
            sharding = self._moved_sharding("output" if plan.kind == "sums" else self.own, self.other)
            elsewhere = replace(self.inside, partition_id=source, cache={}, group_caches={}, windows={})
            staying = values[1 - plan.index]
            values[1 - plan.index] = Part(staying, staying.shape, REPLICATED, elsewhere).reshard(sharding).hlo
        parts = [replace(side, hlo=value, state=self.inside) for side, value in zip((p.lhs, p.rhs), values, strict=True)]
        product = p.multiply(parts[0], parts[1])
        if not plan.writes:
            return b.binary("add", result, product)
        sharding = self._moved_sharding(self.own, "output")
        dims = () if plan.dim is None else (plan.dim,)
        offsets = partition_offsets(b, result.shape, sharding, source, dims)
        return b.add("dynamic-update-slice", result.shape, [result, product, *offsets])
