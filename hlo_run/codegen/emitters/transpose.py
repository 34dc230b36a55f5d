"""The emitter for transposes that exchange elements through a tile of shared memory.

    %shmem = xla_gpu.allocate_shared : tensor<32x1x33xf32>
    %xla_loop = xla_gpu.loop (..)[%i, %j] -> (%input_dim0, .., %shmem_dim0, ..) in #map iter_args(%iter = %shmem) .. {
      (insert the hero's operand at the input index into the tile)
    }
    %synced_tensor = xla_gpu.sync_threads %xla_loop
    %xla_loop_0 = xla_gpu.loop (..)[%i, %j] -> (%dim0, ..) in #map1 iter_args(%iter = %output) .. {
      (insert the epilogue of the tile's element into the output)
    }

Both loops access global memory in coalesced order. The first loop writes the roots without a transpose ("side outputs").
Narrow elements are exchanged in whole words: a step of the second loop reads a square of elements from the tile, and an
inner loop writes the square transposed. Mirrors XLA's `TransposeFusion` and `PackedTranspose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from xdsl.dialects import arith, tensor, vector
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    TensorType,
    VectorType,
    i32,
    i64,
)
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.packed_transpose import PackedTranspose
from hlo_run.analysis.tiling.thread_map import drop_unused_ids
from hlo_run.analysis.tiling.transpose_description import TransposeDescription, describe_transpose
from hlo_run.analysis.tiling.transpose_tiling import TransposeTiling, tiling_of_heroes
from hlo_run.analysis.tiling.unroll_factor import MAX_UNROLL_FACTOR
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule, pure_call
from hlo_run.codegen.elemental.types import element_type
from hlo_run.codegen.emitters.epilogue import emit_epilogue, hero_to_root_map, used_ids
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, KindEmitter, element_of, numbered
from hlo_run.dialects.types import is_tensor, is_vector
from hlo_run.dialects.xla_gpu import AllocateSharedOp, SyncThreadsOp, YieldOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.compose import compose
from hlo_run.indexing.indexing_map import IndexingMap

_DYNAMIC_POSITIONS = {"static_position": DenseArrayBase.from_list(i64, [DYNAMIC_INDEX, DYNAMIC_INDEX])}
# Reads a vector along the last of two dimensions.
_TRANSFER = {
    "in_bounds": ArrayAttr([BoolAttr.from_bool(True)]),
    "permutation_map": AffineMapAttr(AffineMap.minor_identity(2, 1)),
    "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, 2, 1, 0]),
}


class TransposeEmitter(KindEmitter):
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "transpose"

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        """Accept fusions for which the analysis found a transpose, if their tiles fit."""
        decision = super().accepts(analysis, arguments)
        if not decision:
            return decision
        needed, available = _shared_bytes(analysis), analysis.target.shared_memory_per_block_bytes
        return decision if needed <= available else no(f"tiles of {needed} bytes do not fit into {available} of shared memory")

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel. Raises Unsupported for an instruction that elemental emission does not support."""
        description = analysis.description
        assert isinstance(description, TransposeDescription), "a transpose kind has a description"
        transposed = _transposed(analysis)
        heroes = tuple(dict.fromkeys(transposed.values()))
        side_outputs = tuple(root for root in analysis.roots if root not in transposed)
        tiling = tiling_of_heroes(description, heroes, analysis.target)
        sources = tuple(hero.operands[0] for hero in heroes)
        sides = (part for root in side_outputs for part in (root, *root.operands))
        fused = partition(analysis.fusion.fused_computation, (*heroes, *sources, *sides))
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, tiling.launch)
        kernel = _TransposeKernel(analysis.roots, transposed, heroes, tiling, module, entry)
        function = entry.finish(kernel_name, arguments, kernel.emit())
        return EmittedKernel(module.finish(function), tiling.launch, MAX_UNROLL_FACTOR, self.kind, tiling.vector_size)


def _transposed(analysis: FusionAnalysis) -> dict[HloInstruction, HloInstruction]:
    """Return the hero of each root that has a transpose."""
    roots = zip(analysis.roots, analysis.heroes, strict=True)
    return {root: hero for root, hero in roots if hero.opcode == "transpose" and describe_transpose(hero)}


def _shared_bytes(analysis: FusionAnalysis) -> int:
    descriptions = map(describe_transpose, dict.fromkeys(_transposed(analysis).values()))
    return sum(description.shared_memory_bytes for description in descriptions if description is not None)


class _TransposeKernel(Struct, frozen=True):
    """The state of one kernel's emission. `transposed` has the hero of every root with a transpose."""

    roots: tuple[HloInstruction, ...]
    transposed: dict[HloInstruction, HloInstruction]
    heroes: tuple[HloInstruction, ...]
    tiling: TransposeTiling | PackedTranspose
    module: KernelModule
    entry: EntryFunction

    def emit(self) -> Values:
        """Emit both loops, and return the outputs in the order of the roots."""
        input_map, output_map = self._input_map(), drop_unused_ids(self.tiling.output_map(self.heroes[0].shape))
        root_maps = {root: self._root_map(root) for root in self.transposed}
        self.entry.declare_ids(input_map, output_map)
        outputs = dict(enumerate(self.entry.outputs))
        tiles = self._fill_tiles(input_map, outputs)
        synced = tuple(self.entry.builder.add(SyncThreadsOp(tiles)))
        self._write_outputs(output_map, root_maps, synced, outputs)
        return tuple(outputs.values())

    def _input_map(self) -> IndexingMap:
        """Return the map of the first loop: index into the first hero's operand, then into the tile."""
        read = self.tiling.input_map(self.heroes[0].operands[0].shape)
        write = self.tiling.shared_write_map()
        joined = IndexingMap(read.dims, read.ranges, (), (*read.results, *write.results), read.constraints)
        return drop_unused_ids(joined.simplify())

    def _operand_map(self, instruction: HloInstruction) -> IndexingMap:
        return drop_unused_ids(self.tiling.input_map(instruction.shape))

    def _root_map(self, root: HloInstruction) -> IndexingMap:
        hero = self.transposed[root]
        return drop_unused_ids(compose(self.tiling.output_map(hero.shape), hero_to_root_map(hero, root)).simplify())

    def _fill_tiles(self, input_map: IndexingMap, outputs: dict[int, SSAValue]) -> Values:
        """Emit the first loop. Updates the side outputs in `outputs`, and returns the tiles."""
        entry, b = self.entry, self.entry.builder
        sides = [number for number, root in enumerate(self.roots) if root not in self.transposed]
        tiles = tuple(b.add(AllocateSharedOp(self._tile_type(hero)))[0] for hero in self.heroes)
        first = self.heroes[0].operands[0].shape
        names = [*numbered("input_dim", first), *(f"shmem_dim{number}" for number in range(len(self.tiling.shared_dims)))]
        loop = entry.loop(input_map, (*tiles, *(outputs[number] for number in sides)), names)
        with b.inside(loop.body.block):
            place, symbols = tuple(loop.map_results), tuple(loop.induction_variables)
            sources = [hero.operands[0] for hero in self.heroes]
            wanted = [*sources, *(self.roots[number] for number in sides)]
            # Compute all values before any write: an output may share memory with an input.
            targets: list[tuple[SSAValue, Values]] = []
            for instruction in wanted:
                index = place[: first.rank] if instruction.shape.dims == first.dims else self._index_of(instruction, symbols)
                targets.append((element_of(entry, self.module, instruction, index)[0], index))
            written: Values = ()
            for number, ((value, index), target) in enumerate(zip(targets, loop.iteration_values, strict=True)):
                index = place[first.rank :] if number < len(tiles) else index
                written = (*written, entry.insert(value, target, index))
            b.block.add_op(YieldOp(*written))
        results = tuple(loop.res)
        outputs.update(zip(sides, results[len(tiles) :], strict=True))
        return results[: len(tiles)]

    def _tile_type(self, hero: HloInstruction) -> TensorType:
        return TensorType(element_type(hero.shape.element_type, hero.where), self.tiling.shared_dims)

    def _index_of(self, instruction: HloInstruction, symbols: Values) -> Values:
        indexing_map = self._operand_map(instruction)
        return self.entry.builder.apply(indexing_map, (*self.entry.ids(indexing_map), *symbols))

    def _write_outputs(
        self,
        output_map: IndexingMap,
        root_maps: dict[HloInstruction, IndexingMap],
        tiles: Values,
        outputs: dict[int, SSAValue],
    ) -> None:
        """Emit the second loop. Updates the outputs of transposed roots in `outputs`."""
        entry, b = self.entry, self.entry.builder
        numbers = [number for number, root in enumerate(self.roots) if root in self.transposed]
        inits = tuple(outputs[number] for number in numbers)
        read = drop_unused_ids(self.tiling.shared_read_map())
        if isinstance(self.tiling, PackedTranspose):
            results = self._turn_squares(self.tiling, read, output_map, root_maps, tiles, inits)
            outputs.update(zip(numbers, results, strict=True))
            return
        loop = entry.loop(output_map, inits, numbered("dim", self.heroes[0].shape))
        with b.inside(loop.body.block):
            symbols = tuple(loop.induction_variables)
            place = b.apply(read, (*entry.ids(read), *symbols))
            heroes = dict(zip(self.heroes, self._read_elements(tiles, place), strict=True))
            b.block.add_op(YieldOp(*self._insert(output_map, root_maps, heroes, symbols, tuple(loop.iteration_values))))
        outputs.update(zip(numbers, loop.res, strict=True))

    def _insert(
        self,
        output_map: IndexingMap,
        root_maps: dict[HloInstruction, IndexingMap],
        heroes: dict[HloInstruction, SSAValue],
        symbols: Values,
        outputs: Values,
    ) -> Values:
        """Write each transposed root. Returns the new outputs."""
        entry, values = self.entry, self._epilogue(root_maps, heroes, output_map, symbols)
        written: Values = ()
        # A fusion may return the same root twice.
        for root, output in zip((root for root in self.roots if root in self.transposed), outputs, strict=True):
            root_map = root_maps[root]
            index = entry.builder.apply(root_map, (*entry.ids(root_map), *symbols))
            written = (*written, entry.insert(values[root], output, index))
        return written

    def _turn_squares(
        self,
        tiling: PackedTranspose,
        read: IndexingMap,
        output_map: IndexingMap,
        root_maps: dict[HloInstruction, IndexingMap],
        tiles: Values,
        inits: Values,
    ) -> Values:
        """Emit the second loop for whole words: read a square of elements, then write it transposed in an inner loop."""
        entry, b = self.entry, self.entry.builder
        inner_map = drop_unused_ids(output_map.ranges_to_dims((0,)))
        steps = entry.loop(read, inits, ("row", "column"))
        with b.inside(steps.body.block):
            place, size = tuple(steps.map_results), tiling.vector_size
            squares = [self._read_square(tile, place, size) for tile in tiles] if tiling.fills_words else None
            (step,) = steps.induction_variables
            dims = (*(step if variable.name == "i" else entry.ids_by_name[variable.name] for variable in inner_map.dims),)
            loop = entry.loop(inner_map, tuple(steps.iteration_values), numbered("dim", self.heroes[0].shape), dims)
            with b.inside(loop.body.block):
                which = tuple(loop.induction_variables)
                if squares is None:
                    single = drop_unused_ids(tiling.shared_element_map())
                    values = self._read_elements(tiles, b.apply(single, (*entry.ids(single), step, *which)))
                else:
                    values = [self._element_of(square, which) for square in squares]
                heroes = dict(zip(self.heroes, values, strict=True))
                written = self._insert(output_map, root_maps, heroes, (step, *which), tuple(loop.iteration_values))
                b.block.add_op(YieldOp(*written))
            b.block.add_op(YieldOp(*loop.res))
        return tuple(steps.res)

    def _read_elements(self, tiles: Values, place: Values) -> list[SSAValue]:
        types = [self._tile_type(hero).element_type for hero in self.heroes]
        return [
            self.entry.builder.create(tensor.ExtractOp, (tile, *place), type_) for tile, type_ in zip(tiles, types, strict=True)
        ]

    def _element_of(self, square: SSAValue, which: Values) -> SSAValue:
        assert is_vector(square.type), "a square is a vector"
        operands = (square, *which)
        return self.entry.builder.create(vector.ExtractOp, operands, square.type.get_element_type(), _DYNAMIC_POSITIONS)

    def _read_square(self, tile: SSAValue, place: Values, size: int) -> SSAValue:
        """Return a square of elements: a word of each of `size` rows, beginning at `place`.

        Element [c, r] of the result is column c of row r.
        """
        b = self.entry.builder
        assert is_tensor(tile.type), "tiles are tensors"
        element = tile.type.get_element_type()
        padding = b.constant(element, 0)
        row, column = place
        square = b.zeros(VectorType(element, (size, size)))
        for number in range(size):
            operands = (tile, row if number == 0 else b.binary(arith.AddiOp, row, b.index(number)), column, padding)
            word = b.create(vector.TransferReadOp, operands, VectorType(element, (size,)), _TRANSFER)
            for which in range(size):
                properties = {"static_position": DenseArrayBase.from_list(i64, [which])}
                value = b.create(vector.ExtractOp, (word,), element, properties)
                properties = {"static_position": DenseArrayBase.from_list(i64, [which, number])}
                square = b.create(vector.InsertOp, (value, square), square.type, properties)
        return square

    def _epilogue(
        self,
        root_maps: dict[HloInstruction, IndexingMap],
        heroes: dict[HloInstruction, SSAValue],
        output_map: IndexingMap,
        symbols: Values,
    ) -> dict[HloInstruction, SSAValue]:
        """Emit the epilogue, and return the value of each transposed root. `heroes` has the values of heroes."""
        ids = used_ids(root_maps.values())
        signature = emit_epilogue(self.module, root_maps, self.heroes, ids, output_map.ranges)
        by_name = self.entry.ids_by_name
        arguments = (*self.entry.parameters, *(by_name[id_.name] for id_ in ids), *symbols, *heroes.values())
        values = pure_call(self.entry.builder, signature, arguments)
        return dict(zip(root_maps, values, strict=True))
