"""The emitter for the kernels of a sort: each runs one step of a bitonic network, see `analysis/tiling/sort_steps.py`.

A tile step loads a tile into shared memory once and exchanges pairs at all distances there:

    %tile = xla_gpu.allocate_shared : tensor<4096xf32>
    %filled = xla_gpu.loop (%th_x, %bl_x)[%i] -> (%dim0, %slot) in #map iter_args(%iter = %tile) .. { (operand to tile) }
    %sorted = scf.for %stage .. { scf.for %exponent .. {
      %synced_tensor = xla_gpu.sync_threads %iter
      xla_gpu.loop (%th_x)[%i] -> (%pair) .. { (exchange the elements of a pair if the comparator says so) }
    } }
    %xla_loop = xla_gpu.loop (%th_x, %bl_x)[%i] -> (%dim0, %slot) .. { (tile to output) }

A pair step compares pairs at one distance in global memory. XLA's `EmitSort` emits LLVM IR with all distances of a tile
unrolled. Here a loop runs over the distances, so the code size does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import TensorType, i32
from xdsl.ir import Block, Region, SSAValue

from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.analysis.tiling.sort_steps import PairStep, SortSizes, TileStep, sort_sizes, sort_steps, step_launch
from hlo_run.analysis.tiling.thread_map import drop_unused_ids
from hlo_run.analysis.tiling.unroll_factor import MAX_UNROLL_FACTOR
from hlo_run.codegen.elemental.builder import INDEX, IrBuilder
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule, pure_call
from hlo_run.codegen.elemental.types import element_type
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, KindEmitter, element_of
from hlo_run.dialects.xla_gpu import AllocateSharedOp, SyncThreadsOp, YieldOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.expr import Expr, dim, symbol
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.thread_map import grid_variables, thread_map
from hlo_run.indexing.variable import Variable

# Elements and pairs of a thread in a tile step.
_ELEMENTS, _PAIRS = 4, 2
_THREAD = dim(0)


class SortEmitter(KindEmitter):
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "sort"

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel of step `analysis.part`.

        Raises Unsupported for an instruction that elemental emission does not support.
        """
        (sort,) = analysis.roots
        sizes = sort_sizes(sort, analysis.target)
        step = sort_steps(sizes)[analysis.part]
        launch = step_launch(step, sizes, analysis.target)
        fused = partition(analysis.fusion.fused_computation, sort.operands)
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, launch)
        kernel = _SortKernel(sort, sizes, launch, module, entry, step.is_first)
        results = kernel.sort_tiles(step) if isinstance(step, TileStep) else kernel.exchange_pairs(step)
        return EmittedKernel(
            module.finish(entry.finish(kernel_name, arguments, results)), launch, MAX_UNROLL_FACTOR, self.kind, 1
        )


class _SortKernel(Struct, frozen=True):
    """The state of one kernel's emission. If `reads_operands` is False, the results hold the elements to be sorted."""

    sort: HloInstruction
    sizes: SortSizes
    launch: LaunchDimensions
    module: KernelModule
    entry: EntryFunction
    reads_operands: bool

    @property
    def _b(self) -> IrBuilder:
        return self.entry.builder

    # Tiles.

    def sort_tiles(self, step: TileStep) -> Values:
        """Emit a tile step, and return the outputs."""
        elements = self._tile_map()
        self.entry.declare_ids(elements, self._pair_slots(), self._tile_start())
        tiles = self._fill(elements)
        last = self._b.index(step.stages - 1)
        sorted_ = self._merge(last, tiles, may_mirror=False) if step.is_merge else self._sort(last, tiles)
        return self._drain(elements, tuple(self._b.add(SyncThreadsOp(sorted_))))

    def _sort(self, last: SSAValue, tiles: Values) -> Values:
        return self._for_each(last, tiles, lambda stage, held: self._merge(stage, held, may_mirror=True))

    def _merge(self, stage: SSAValue, tiles: Values, may_mirror: bool) -> Values:
        return self._for_each(stage, tiles, lambda number, held: self._exchange(stage, number, held, may_mirror))

    def _tile_map(self) -> IndexingMap:
        """Return (ids)[step] -> index of the thread's element with the sorted dimension last, then its slot in the tile."""
        threads = self.launch.block[0]
        slot = symbol(0) * threads + _THREAD
        *row, tile = self._block_place()
        place = tile * (1 << self.sizes.tile_stages) + slot
        whole = self._grid_map((*row, place, slot), (_ELEMENTS,))
        return drop_unused_ids(whole.with_constraint(place, Interval(0, self.sizes.row_elements - 1)).simplify())

    def _block_place(self) -> tuple[Expr, ...]:
        dims = (*self.sizes.row_dims, self.sizes.tiles_per_row)
        return thread_map(dims, tuple(reversed(range(len(dims)))), (1, 1, 1), self.launch.grid).results

    def _grid_map(self, results: tuple[Expr, ...], sizes: tuple[int, ...]) -> IndexingMap:
        ranges = tuple(Variable(Interval(0, size - 1)) for size in sizes)
        return IndexingMap(grid_variables(self.launch.block, self.launch.grid), ranges, (), results)

    def _fill(self, elements: IndexingMap) -> Values:
        types = [element_type(operand.shape.element_type, operand.where) for operand in self.sort.operands]
        tile_elements = 1 << self.sizes.tile_stages
        empty = tuple(self._b.add(AllocateSharedOp(TensorType(type_, (tile_elements,))))[0] for type_ in types)
        loop = self.entry.loop(elements, empty, self._names())
        with self._b.inside(loop.body.block):
            *place, slot = loop.map_results
            values = self._values(self._index(place), self.entry.outputs)
            self._b.locate(self.sort)
            filled = [self.entry.insert(v, tile, (slot,)) for v, tile in zip(values, loop.iteration_values, strict=True)]
            self._b.block.add_op(YieldOp(*filled))
        return tuple(loop.res)

    def _drain(self, elements: IndexingMap, tiles: Values) -> Values:
        loop = self.entry.loop(elements, self.entry.outputs, self._names())
        with self._b.inside(loop.body.block):
            *place, slot = loop.map_results
            index = self._index(place)
            values = self._read(tiles, (slot,))
            written = [self.entry.insert(v, out, index) for v, out in zip(values, loop.iteration_values, strict=True)]
            self._b.block.add_op(YieldOp(*written))
        return tuple(loop.res)

    def _names(self) -> list[str]:
        return [*(f"row_dim{number}" for number in range(len(self.sizes.row_dims))), "place", "slot"]

    def _exchange(self, stage: SSAValue, number: SSAValue, tiles: Values, may_mirror: bool) -> Values:
        """Exchange the pairs of a tile at distance 2^(stage - number); with `may_mirror`, the first step mirrors pairs."""
        b = self._b
        synced = tuple(b.add(SyncThreadsOp(tiles)))
        one = b.constant(i32, 1)
        exponent = b.cast(arith.IndexCastOp, b.binary(arith.SubiOp, stage, number), i32)
        distance = b.binary(arith.ShLIOp, one, exponent)
        flip = distance
        if may_mirror:
            mirror = b.binary(arith.SubiOp, b.binary(arith.ShLIOp, distance, one), one)
            flip = b.select(b.cmpi("eq", number, b.index(0)), mirror, distance)
        loop = self.entry.loop(self._pair_slots(), synced, ("pair",))
        with b.inside(loop.body.block):
            pair = b.cast(arith.IndexCastOp, loop.map_results[0], i32)
            inside = b.binary(arith.AndIOp, pair, b.binary(arith.SubiOp, distance, one))
            lower = b.binary(arith.SubiOp, b.binary(arith.ShLIOp, pair, one), inside)
            upper = b.binary(arith.XOrIOp, lower, flip)
            places = tuple((b.cast(arith.IndexCastOp, place, INDEX),) for place in (lower, upper))
            held = tuple(loop.iteration_values)
            b.block.add_op(YieldOp(*self._if(self._is_inside(places[1][0]), held, lambda: self._swap(held, *places))))
        return tuple(loop.res)

    def _is_inside(self, slot: SSAValue) -> SSAValue | None:
        """Return an i1: the slot of the tile holds an element. None if all slots do."""
        b = self._b
        if self.sizes.row_elements % (1 << self.sizes.tile_stages) == 0:
            return None
        if self.sizes.tiles_per_row > 1:
            start = self._tile_start()
            (first,) = b.apply(start, self.entry.ids(start))
            slot = b.binary(arith.AddiOp, first, slot)
        return b.cmpi("slt", slot, b.index(self.sizes.row_elements))

    def _pair_slots(self) -> IndexingMap:
        """Return (ids)[step] -> the number of the thread's pair in the tile."""
        return drop_unused_ids(self._grid_map((symbol(0) * self.launch.block[0] + _THREAD,), (_PAIRS,)).simplify())

    def _tile_start(self) -> IndexingMap:
        """Return (ids) -> the position of the tile's first element in the sorted dimension."""
        return drop_unused_ids(self._grid_map((self._block_place()[-1] * (1 << self.sizes.tile_stages),), ()).simplify())

    def _swap(self, held: Values, lower: Values, upper: Values) -> Values:
        """Exchange two elements of each tensor if the comparator orders the upper one first."""
        first, second = self._read(held, lower), self._read(held, upper)

        def exchanged() -> Values:
            written = [self.entry.insert(value, tile, lower) for value, tile in zip(second, held, strict=True)]
            return tuple(self.entry.insert(value, tile, upper) for value, tile in zip(first, written, strict=True))

        return self._if(self._goes_before(second, first), held, exchanged)

    # Pairs.

    def exchange_pairs(self, step: PairStep) -> Values:
        """Emit a pair step, at one distance, and return the outputs."""
        pairs = self._pair_map(step)
        self.entry.declare_ids(pairs)
        loop = self.entry.loop(pairs, self.entry.outputs, [*self._names()[:-2], "lower", "upper"])
        with self._b.inside(loop.body.block):
            *row, lower, upper = loop.map_results
            held, places = tuple(loop.iteration_values), (self._index([*row, lower]), self._index([*row, upper]))
            inside = self._b.cmpi("slt", upper, self._b.index(self.sizes.row_elements))
            if self.reads_operands:
                values = self._values(places[0], held)
                alone = [self.entry.insert(v, out, places[0]) for v, out in zip(values, held, strict=True)]
                written = self._if(inside, tuple(alone), lambda: self._move(tuple(alone), values, *places))
            else:
                written = self._if(inside, held, lambda: self._swap(held, *places))
            self._b.block.add_op(YieldOp(*written))
        return tuple(loop.res)

    def _pair_map(self, step: PairStep) -> IndexingMap:
        """Return (ids)[step] -> index of the pair's lower element with the sorted dimension last, then the upper position."""
        sizes, distance = self.sizes, 1 << step.exponent
        dims = (*sizes.row_dims, sizes.pairs_per_row // sizes.pairs_per_thread)
        threads = thread_map(dims, tuple(reversed(range(len(dims)))), self.launch.block, self.launch.grid)
        *row, first = threads.results
        pair = first + symbol(0) * dims[-1]
        start, inside = pair // distance * (2 * distance), pair % distance
        upper = start + (inside * -1 + (2 * distance - 1)) if step.is_mirrored else start + inside + distance
        known = [(start + inside, Interval(0, sizes.row_elements - 1))]
        whole = self._grid_map((*row, start + inside, upper), (sizes.pairs_per_thread,))
        return drop_unused_ids(whole.with_constraints([*threads.constraints, *known]).simplify())

    def _move(self, held: Values, first: Values, lower: Values, upper: Values) -> Values:
        """Write both elements of a pair in order; `first` is the lower element, which is already read."""
        second = self._values(upper, held)
        before = self._goes_before(second, first)
        written = held
        for index, pick, other in ((lower, second, first), (upper, first, second)):
            values = [self._b.select(before, *both) for both in zip(pick, other, strict=True)]
            written = tuple(self.entry.insert(v, out, index) for v, out in zip(values, written, strict=True))
        return written

    # Both kinds of steps.

    def _index(self, place: Sequence[SSAValue]) -> Values:
        """Return the index of `place`, which has the sorted dimension last."""
        *row, last = place
        return (*row[: self.sizes.dim], last, *row[self.sizes.dim :])

    def _values(self, index: Values, results: Values) -> Values:
        """Return the elements to be sorted at `index`, from the operands or from the results."""
        if not self.reads_operands:
            return self._read(results, index)
        return tuple(element_of(self.entry, self.module, operand, index)[0] for operand in self.sort.operands)

    def _read(self, tensors: Values, index: Values) -> Values:
        types = [element_type(operand.shape.element_type, operand.where) for operand in self.sort.operands]
        return tuple(self._b.create(tensor.ExtractOp, (t, *index), type_) for t, type_ in zip(tensors, types, strict=True))

    def _goes_before(self, one: Values, other: Values) -> SSAValue:
        """Call the comparator; its parameters are an element of `one` and of `other` for every operand. Returns an i1."""
        comparator = self.sort.to_apply
        partitioned = self.module.partition_of(comparator)
        signature = self.module.signature(partitioned, partitioned.subgraph_of[comparator.root])
        self._b.locate(self.sort)
        asked = tuple(value for both in zip(one, other, strict=True) for value in both)
        (verdict,) = pure_call(self._b, signature, asked)
        return self._b.cmpi("ne", verdict, self._b.constant(verdict.type, 0))

    def _if(self, condition: SSAValue | None, held: Values, body: Callable[[], Values]) -> Values:
        """Emit an `scf.if` that gives the values of `body` if `condition` is true, else `held`. None is always true."""
        if condition is None:
            return body()
        b, then, otherwise = self._b, Block(), Block()
        with b.inside(then):
            b.yield_values(body())
        with b.inside(otherwise):
            b.yield_values(held)
        return tuple(b.if_op(condition, [value.type for value in held], then, otherwise))

    def _for_each(self, last: SSAValue, inits: Values, body: Callable[[SSAValue, Values], Values]) -> Values:
        """Emit an `scf.for` over 0, .., `last` that carries tensors, and return its results."""
        b = self._b
        block = Block(arg_types=(INDEX, *(value.type for value in inits)))
        limits = b.index(0), b.binary(arith.AddiOp, last, b.index(1)), b.index(1)
        with b.inside(block):
            induction, *carried = block.args
            b.yield_values(body(induction, tuple(carried)))
        return tuple(b.add(scf.ForOp(*limits, inits, Region(block))))
