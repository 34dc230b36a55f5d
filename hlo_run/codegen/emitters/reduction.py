"""The emitter for reductions across threads: partial results in registers, then warp shuffles and a shared memory tile.

    %xla_loop = xla_gpu.loop (..)[%i, %j, %k] -> (%dim0, ..) in #map iter_args(%iter = %init) -> (f32) {
      (combine the thread's elements)
    }
    %0 = xla_gpu.shuffle_reduce(%xla_loop) to 16 combiner=@add : f32
    %inserted = xla_gpu.predicated_insert %0 into %shmem[..] if %first_lane
    %synced_tensor = xla_gpu.sync_threads %inserted
    %extracted = xla_gpu.predicated_extract %synced_tensor[..] if %has_value else %init
    %1 = xla_gpu.shuffle_reduce(%extracted) to 16 combiner=@add : f32
    scf.if %has_result { (insert the epilogue's value into the output) }

Roots other than reductions ("side outputs") are written in the loop. Groups of roots that share nothing have their own
blocks along z. Mirrors XLA's `ReductionFusion` and its four forms, which `analysis/tiling/reduction_tiling.py` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct
from xdsl.dialects import arith, func, scf, tensor, vector
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, ModuleOp, TensorType, VectorType, i64
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Block, Region, SSAValue

from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.reduction_description import ReductionDescription, judge_reduction
from hlo_run.analysis.tiling.reduction_groups import group_roots
from hlo_run.analysis.tiling.reduction_tiling import ReductionTiling, SharedTile, tile_reduction
from hlo_run.analysis.tiling.thread_map import drop_unused_ids
from hlo_run.analysis.tiling.unroll_factor import MAX_UNROLL_FACTOR
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule, Signature, pure_call, result_shapes
from hlo_run.codegen.emitters.epilogue import emit_epilogue, hero_to_root_map, used_ids
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, KindEmitter, element_of
from hlo_run.dialects.types import is_vector
from hlo_run.dialects.xla_gpu import (
    AllocateSharedOp,
    PredicatedExtractOp,
    PredicatedInsertOp,
    ShuffleReduceOp,
    SyncThreadsOp,
    YieldOp,
)
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.compose import compose
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.ops.index import bitcast_map

_DYNAMIC_POSITION = DenseArrayBase.from_list(i64, [DYNAMIC_INDEX])


class ReductionEmitter(KindEmitter):
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "reduction"

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel. Raises Unsupported for an instruction that elemental emission does not support."""
        description = analysis.description
        assert isinstance(description, ReductionDescription), "a reduction kind has a description"
        roots = _roots(analysis)
        groups = group_roots([root.instruction for root in roots], [root.hero is not None for root in roots])
        tiling = tile_reduction(description, analysis, len(groups))
        heroes = [root.hero for root in roots if root.hero is not None]
        sides = [root.instruction for root in roots if root.hero is None]
        forced = [part for root in (*heroes, *sides) for part in (root, *root.operands)]
        fused = partition(analysis.fusion.fused_computation, forced)
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, tiling.launch)
        kernel = _ReductionKernel(tiling, module, entry)
        results = kernel.emit([tuple(roots[number] for number in group) for group in groups])
        emitted = module.finish(entry.finish(kernel_name, arguments, results))
        for hero in heroes:
            _ignore_signs_of_zeros(emitted, kernel.reducer(hero).symbol)
        return EmittedKernel(emitted, tiling.launch, MAX_UNROLL_FACTOR, self.kind, tiling.vector_size)


def _ignore_signs_of_zeros(module: ModuleOp, reducer: str) -> None:
    """Set fast-math flag nsz on the additions of a reducer, so that 0 + x folds to x."""
    function = next(op for op in module.body.block.ops if isinstance(op, func.FuncOp) and op.sym_name.data == reducer)
    for op in function.walk():
        if isinstance(op, arith.AddfOp):
            op.fastmath = arith.FastMathFlagsAttr((FastMathFlag.NO_SIGNED_ZEROS,))


class _Root(Struct, frozen=True):
    """A root, the reduce that it depends on (None for a side output), and the numbers of its results in the outputs."""

    instruction: HloInstruction
    description: ReductionDescription | None
    outputs: range

    @property
    def hero(self) -> HloInstruction | None:
        return self.description.instruction if self.description else None


def _roots(analysis: FusionAnalysis) -> list[_Root]:
    roots: list[_Root] = []
    first = 0
    for root, hero in zip(analysis.roots, analysis.heroes, strict=True):
        last = first + len(result_shapes(root))
        found = judge_reduction(hero) if hero.opcode == "reduce" else None
        roots.append(_Root(root, found if isinstance(found, ReductionDescription) else None, range(first, last)))
        first = last
    return roots


class _ReductionKernel(Struct, frozen=True):
    """The state of one kernel's emission."""

    tiling: ReductionTiling
    module: KernelModule
    entry: EntryFunction

    def reducer(self, hero: HloInstruction) -> Signature:
        """Return the signature of the reducer of a reduce."""
        computation = hero.to_apply
        partitioned = self.module.partition_of(computation)
        return self.module.signature(partitioned, partitioned.subgraph_of[computation.root])

    def emit(self, groups: Sequence[Sequence[_Root]]) -> Values:
        """Emit all groups and return the outputs."""
        tile = self.tiling.tile
        maps = [self.tiling.input_map, self.tiling.output_map(), *((tile.write, tile.read) if tile else ())]
        self.entry.declare_ids(*(drop_unused_ids(indexing_map, self.tiling.launch) for indexing_map in maps))
        if len(groups) == 1:
            return _GroupEmitter(self, groups[0]).emit()
        return self._switch(groups)

    def _switch(self, groups: Sequence[Sequence[_Root]]) -> Values:
        """Emit an `scf.index_switch` over the block's z with one region per group. The first group is the default."""
        b = self.entry.builder
        block_id = self.entry.read_id("bl_z")
        regions: list[Region] = []
        for group in groups:
            block = Block()
            with b.inside(block):
                b.yield_values(_GroupEmitter(self, group).emit())
            regions.append(Region(block))
        cases = DenseArrayBase.from_list(i64, list(range(1, len(groups))))
        types = [output.type for output in self.entry.outputs]
        return tuple(b.add(scf.IndexSwitchOp(block_id, cases, regions[0], regions[1:], types)))


class _Hero(Struct, frozen=True):
    """A reduce of the group, its reducer, and the init value of each result."""

    instruction: HloInstruction
    reducer: Signature
    inits: Values

    @property
    def inputs(self) -> Sequence[HloInstruction]:
        return self.instruction.operands[: len(self.inits)]


class _GroupEmitter:
    """Emits the code of one group's blocks. A hero has one accumulator per result; in the column forms it is a vector."""

    def __init__(self, kernel: _ReductionKernel, roots: Sequence[_Root]) -> None:
        self._kernel, self._tiling, self._module, self._entry = kernel, kernel.tiling, kernel.module, kernel.entry
        self._b = kernel.entry.builder
        self._reductions = [root for root in roots if root.hero is not None]
        self._sides = [root for root in roots if root.hero is None]
        self._outputs = list(kernel.entry.outputs)
        instructions = dict.fromkeys(root.hero for root in self._reductions if root.hero is not None)
        self._heroes = [self._hero(instruction) for instruction in instructions]

    def _hero(self, instruction: HloInstruction) -> _Hero:
        operands = instruction.operands[len(instruction.operands) // 2 :]
        inits = tuple(element_of(self._entry, self._module, operand, ())[0] for operand in operands)
        return _Hero(instruction, self._kernel.reducer(instruction), inits)

    def emit(self) -> Values:
        """Emit the group and return all outputs. The outputs of other groups do not change."""
        values = self._accumulate()
        if not self._heroes:
            return tuple(self._outputs)
        self._b.locate(self._heroes[0].instruction)
        tile = self._tiling.tile
        if self._tiling.first_distance:
            values = self._shuffle(values, self._tiling.first_distance)
        if tile is None:
            self._set_outputs(self._write(values, (), self._written()))
            return tuple(self._outputs)
        shared = tuple(self._b.add(SyncThreadsOp(self._fill_tiles(tile, values))))

        def finish(symbols: Values, outputs: Values) -> Values:
            return self._write(self._shuffle(self._read_tiles(tile, shared, symbols), tile.distance), symbols, outputs)

        self._set_outputs(self._for_each_accumulator(tile.read, self._written(), finish))
        return tuple(self._outputs)

    # The elements of one thread.

    def _accumulate(self) -> list[SSAValue]:
        """Emit the loop over the thread's elements. Updates side outputs and returns the partial results."""
        entry, b = self._entry, self._b
        sides = [number for root in self._sides for number in root.outputs]
        inits = [self._accumulator(init) for hero in self._heroes for init in hero.inits]
        indexing_map = drop_unused_ids(self._tiling.input_map, self._tiling.launch)
        names = [f"dim{number}" for number in range(len(indexing_map.results))]
        loop = entry.loop(indexing_map, (*(self._outputs[number] for number in sides), *inits), names)
        with b.inside(loop.body.block):
            place, symbols = tuple(loop.map_results), tuple(loop.induction_variables)
            carried = tuple(loop.iteration_values)
            results = self._combine(carried[len(sides) :], place, symbols)
            # Compute all values before any write: an output may share memory with an input.
            written: list[tuple[SSAValue, Values]] = []
            for root in self._sides:
                index = self._index_of(root.instruction, place)
                written.append((element_of(entry, self._module, root.instruction, index)[0], index))
            stored = [entry.insert(value, target, index) for (value, index), target in zip(written, carried, strict=False)]
            b.block.add_op(YieldOp(*stored, *results))
        for number, result in zip(sides, loop.res, strict=False):
            self._outputs[number] = result
        return list(loop.res[len(sides) :])

    def _accumulator(self, init: SSAValue) -> SSAValue:
        if self._tiling.accumulators == 1:
            return init
        type_ = VectorType(init.type, (self._tiling.accumulators,))
        return self._b.create(vector.BroadcastOp, (init,), type_)

    def _combine(self, accumulators: Values, place: Values, symbols: Values) -> list[SSAValue]:
        b, results, first = self._b, list[SSAValue](), 0
        for hero in self._heroes:
            mine = accumulators[first : first + len(hero.inits)]
            first += len(hero.inits)
            elements = [
                element_of(self._entry, self._module, operand, self._index_of(operand, place))[0] for operand in hero.inputs
            ]
            b.locate(hero.instruction)
            values = [self._get(accumulator, symbols[-1:]) for accumulator in mine]
            combined = pure_call(b, hero.reducer, (*values, *elements))
            results += [self._set(value, mine[n], symbols[-1:]) for n, value in enumerate(combined)]
        return results

    def _index_of(self, instruction: HloInstruction, place: Values) -> Values:
        return self._b.apply(self._tiling.to_operand(instruction.shape), place)

    def _get(self, accumulator: SSAValue, position: Values) -> SSAValue:
        """Return the partial result at `position`; a scalar accumulator is the partial result."""
        if self._tiling.accumulators == 1:
            return accumulator
        type_ = accumulator.type
        assert is_vector(type_), "several partial results are a vector"
        properties = {"static_position": _DYNAMIC_POSITION}
        return self._b.create(vector.ExtractOp, (accumulator, *position), type_.get_element_type(), properties)

    def _set(self, value: SSAValue, accumulator: SSAValue, position: Values) -> SSAValue:
        if self._tiling.accumulators == 1:
            return value
        properties = {"static_position": _DYNAMIC_POSITION}
        return self._b.create(vector.InsertOp, (value, accumulator, *position), accumulator.type, properties)

    # Communication between threads.

    def _shuffle(self, values: Sequence[SSAValue], distance: int) -> list[SSAValue]:
        results: list[SSAValue] = []
        for hero in self._heroes:
            mine = values[len(results) : len(results) + len(hero.inits)]
            results += self._b.add(ShuffleReduceOp(hero.reducer.callee, mine, distance))
        return results

    def _for_each_accumulator(self, indexing_map: IndexingMap, inits: Values, body: Callable[[Values, Values], Values]) -> Values:
        """Emit `body` in a loop over the map's symbols, one step per partial result of a thread. Returns its results."""
        if not indexing_map.ranges:
            return body((), inits)
        # Without constraints, because all threads of a warp must run a shuffle.
        steps = drop_unused_ids(IndexingMap(indexing_map.dims, indexing_map.ranges, (), (), ()))
        loop = self._entry.loop(steps, inits, ())
        with self._b.inside(loop.body.block):
            results = body(tuple(loop.induction_variables), tuple(loop.iteration_values))
            self._b.block.add_op(YieldOp(*results))
        return tuple(loop.res)

    def _fill_tiles(self, tile: SharedTile, values: Sequence[SSAValue]) -> Values:
        b = self._b
        inits = [init for hero in self._heroes for init in hero.inits]
        tiles = tuple(b.add(AllocateSharedOp(TensorType(init.type, tile.dims)))[0] for init in inits)

        def write(symbols: Values, targets: Values) -> Values:
            condition, index = self._condition(tile.write, symbols), self._apply(tile.write, symbols)
            written: list[SSAValue] = []
            for value, target in zip(values, targets, strict=True):
                element = self._get(value, symbols)
                if condition is None:
                    written.append(self._entry.insert(element, target, index))
                else:
                    written += b.add(PredicatedInsertOp(element, target, index, condition))
            return tuple(written)

        return self._for_each_accumulator(tile.write, tiles, write)

    def _read_tiles(self, tile: SharedTile, shared: Values, symbols: Values) -> list[SSAValue]:
        b = self._b
        condition, index = self._condition(tile.read, symbols), self._apply(tile.read, symbols)
        inits = [init for hero in self._heroes for init in hero.inits]
        values: list[SSAValue] = []
        for source, init in zip(shared, inits, strict=True):
            if condition is None:
                values.append(b.create(tensor.ExtractOp, (source, *index), init.type))
            else:
                values += b.add(PredicatedExtractOp(source, index, condition, init))
        return values

    def _apply(self, indexing_map: IndexingMap, symbols: Values) -> Values:
        used = drop_unused_ids(indexing_map)
        return self._b.apply(used, (*self._entry.ids(used), *symbols))

    def _condition(self, indexing_map: IndexingMap, symbols: Values) -> SSAValue | None:
        """Return an i1: the thread is in the map's domain. None if all threads are."""
        used = drop_unused_ids(indexing_map, self._tiling.launch)
        sizes = [self._entry.size_of_id(variable.name) for variable in used.dims]
        encloses = all(v.bounds.upper >= size - 1 for v, size in zip(used.dims, sizes, strict=True))
        if not used.constraints and encloses:
            return None
        return self._b.in_bounds(used, sizes, (*self._entry.ids(used), *symbols))

    # Results.

    def _written(self) -> Values:
        return tuple(self._outputs[number] for root in self._reductions for number in root.outputs)

    def _set_outputs(self, values: Values) -> None:
        numbers = [number for root in self._reductions for number in root.outputs]
        for number, value in zip(numbers, values, strict=True):
            self._outputs[number] = value

    def _write(self, values: Sequence[SSAValue], symbols: Values, outputs: Values) -> Values:
        """Let the threads that hold a result write the roots. Returns the new outputs."""
        output_map = self._tiling.output_map()
        condition = self._condition(output_map, symbols)
        if condition is None:
            return self._insert(output_map, values, symbols, outputs)
        b, then, otherwise = self._b, Block(), Block()
        with b.inside(then):
            b.yield_values(self._insert(output_map, values, symbols, outputs))
        with b.inside(otherwise):
            b.yield_values(outputs)
        return tuple(b.if_op(condition, _types(outputs), then, otherwise))

    def _insert(self, output_map: IndexingMap, values: Sequence[SSAValue], symbols: Values, outputs: Values) -> Values:
        by_hero: dict[HloInstruction, Values] = {}
        first = 0
        for hero in self._heroes:
            by_hero[hero.instruction] = tuple(values[first : first + len(hero.inits)])
            first += len(hero.inits)
        maps = {root.instruction: self._root_map(output_map, root) for root in self._reductions}
        elements = self._epilogue(output_map, maps, by_hero, symbols)
        written: list[SSAValue] = []
        for root in self._reductions:
            index = self._apply(maps[root.instruction], symbols)
            for value in elements[root.instruction]:
                written.append(self._entry.insert(value, outputs[len(written)], index))
        return tuple(written)

    def _root_map(self, output_map: IndexingMap, root: _Root) -> IndexingMap:
        assert root.description is not None, "a reduction has a description"
        hero = root.description.instruction
        # Reductions agree in the physical order of elements, not in rank or layout: one may be of [2,6,16], one of [12,16].
        to_hero = bitcast_map(self._tiling.description.kept_shape, root.description.kept_shape)
        assert to_hero is not None, "equivalent reductions keep equal numbers of elements"
        to_root = to_hero if root.instruction is hero else compose(to_hero, hero_to_root_map(hero, root.instruction))
        return drop_unused_ids(compose(output_map, to_root).simplify())

    def _epilogue(
        self,
        output_map: IndexingMap,
        maps: dict[HloInstruction, IndexingMap],
        by_hero: dict[HloInstruction, Values],
        symbols: Values,
    ) -> dict[HloInstruction, Values]:
        """Emit the epilogue, and return the values of the roots."""
        heroes = dict.fromkeys(root.hero for root in self._reductions if root.hero is not None)
        ids = used_ids(maps.values())
        signature = emit_epilogue(self._module, maps, tuple(heroes), ids, output_map.ranges)
        by_name = self._entry.ids_by_name
        injected = [value for hero in heroes for value in by_hero[hero]]
        arguments = (*self._entry.parameters, *(by_name[id_.name] for id_ in ids), *symbols, *injected)
        values = pure_call(self._b, signature, arguments)
        elements, rest = dict[HloInstruction, Values](), values
        for root in maps:
            count = len(result_shapes(root))
            elements[root], rest = rest[:count], rest[count:]
        return elements


def _types(values: Values) -> list[Attribute]:
    return [value.type for value in values]
