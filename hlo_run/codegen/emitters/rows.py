"""The emitter for dependent reductions along rows, as in a softmax: all threads of a row get a result before the next one.

    %xla_loop = xla_gpu.loop (..)[%i, %j] -> (%row, %column) in #map iter_args(%iter = %init) -> (f32) {
      (combine the thread's elements of the row, which may depend on earlier reduces)
    }
    %0 = xla_gpu.shuffle_reduce(%xla_loop) to 16 combiner=@max : f32
    %inserted = xla_gpu.predicated_insert %0 into %shmem[..] if %first_lane
    %synced_tensor = xla_gpu.sync_threads %inserted
    %max = xla_gpu.loop (..)[%w] -> (..) in #map iter_args(..) { (combine the partial results of the row's warps) }
    (the same for the next reduce; at the end a loop writes the elements of all roots)

The emitter handles fusions that XLA compiles with Triton, such as softmax and normalisation. Every step reads the row again
and recomputes the elements that it needs; a thread keeps only the results of reduces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from xdsl.dialects import tensor
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.row_fusion import RowFusion
from hlo_run.analysis.tiling.row_tiling import RowTiling, tile_rows
from hlo_run.analysis.tiling.thread_map import drop_unused_ids
from hlo_run.analysis.tiling.unroll_factor import MAX_UNROLL_FACTOR
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule, Signature, pure_call
from hlo_run.codegen.emitters.epilogue import emit_epilogue, used_ids
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, KindEmitter, element_of
from hlo_run.dialects.xla_gpu import AllocateSharedOp, PredicatedInsertOp, ShuffleReduceOp, SyncThreadsOp, YieldOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.compose import compose
from hlo_run.indexing.indexing_map import IndexingMap


class RowsEmitter(KindEmitter):
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "rows"

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel. Raises Unsupported for an instruction that elemental emission does not support."""
        rows = analysis.description
        assert isinstance(rows, RowFusion), "a fusion along rows has a description"
        computation = analysis.fusion.fused_computation
        tiling = tile_rows(rows, (*computation.parameters, *analysis.roots))
        forced = (*rows.reductions, *(operand for reduce in rows.reductions for operand in reduce.operands), *analysis.roots)
        module = KernelModule(partition(computation, forced), index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, tiling.launch)
        kernel = _RowsKernel(rows, tiling, module, entry)
        results = kernel.emit(analysis.roots)
        emitted = module.finish(entry.finish(kernel_name, arguments, results))
        return EmittedKernel(emitted, tiling.launch, MAX_UNROLL_FACTOR, self.kind, tiling.vector)


class _RowsKernel(Struct, frozen=True):
    """The state of one kernel's emission."""

    rows: RowFusion
    tiling: RowTiling
    module: KernelModule
    entry: EntryFunction

    def emit(self, roots: Sequence[HloInstruction]) -> Values:
        """Emit the reduces and the writes, and return the outputs."""
        maps = (self.tiling.elements, self.tiling.leaders, self.tiling.partial, self.tiling.partials)
        self.entry.declare_ids(*(drop_unused_ids(indexing_map) for indexing_map in maps))
        known: dict[HloInstruction, SSAValue] = {}
        for reduce in self.rows.reductions:
            known[reduce] = self._reduce(reduce, known)
        outputs = list(self.entry.outputs)
        self._write(roots, known, outputs, per_row=False)
        self._write(roots, known, outputs, per_row=True)
        return tuple(outputs)

    def _reduce(self, reduce: HloInstruction, known: dict[HloInstruction, SSAValue]) -> SSAValue:
        """Emit the reduce of the thread's row, and return its value, which is the same in all threads of the row."""
        b, entry = self.entry.builder, self.entry
        init = element_of(entry, self.module, reduce.operands[1], ())[0]
        combiner = self._reducer(reduce)
        loop = entry.loop(drop_unused_ids(self.tiling.elements), (init,), ("row", "column"))
        with b.inside(loop.body.block):
            (element,) = self._elements((reduce.operands[0],), self.tiling.elements, tuple(loop.induction_variables), known)
            b.locate(reduce)
            b.block.add_op(YieldOp(*pure_call(b, combiner, (loop.iteration_values[0], element))))
        b.locate(reduce)
        value = loop.res[0]
        if self.tiling.lanes_in_warp > 1:
            (value,) = b.add(ShuffleReduceOp(combiner.callee, (value,), self.tiling.lanes_in_warp // 2))
        return self._agree(value, init, combiner) if self.tiling.lanes > 1 else value

    def _agree(self, value: SSAValue, init: SSAValue, combiner: Signature) -> SSAValue:
        """Combine the partial results of the row's warps through shared memory, in all threads of the row."""
        b, entry, tiling = self.entry.builder, self.entry, self.tiling
        shared = b.add(AllocateSharedOp(TensorType(value.type, (tiling.rows_per_block, tiling.warps))))[0]
        place = drop_unused_ids(tiling.partial)
        sizes = [entry.size_of_id(variable.name) for variable in place.dims]
        ids = entry.ids(place)
        first = b.in_bounds(place, sizes, ids)
        filled = b.add(PredicatedInsertOp(value, shared, b.apply(place, ids), first))
        (synced,) = b.add(SyncThreadsOp(tuple(filled)))
        everywhere = drop_unused_ids(tiling.partials)
        loop = entry.loop(everywhere, (init,), ("row", "warp"))
        with b.inside(loop.body.block):
            partial = b.create(tensor.ExtractOp, (synced, *loop.map_results), value.type)
            b.block.add_op(YieldOp(*pure_call(b, combiner, (loop.iteration_values[0], partial))))
        return loop.res[0]

    def _reducer(self, reduce: HloInstruction) -> Signature:
        computation = reduce.to_apply
        partitioned = self.module.partition_of(computation)
        return self.module.signature(partitioned, partitioned.subgraph_of[computation.root])

    def _elements(
        self,
        targets: Sequence[HloInstruction],
        places: IndexingMap,
        symbols: Values,
        known: dict[HloInstruction, SSAValue],
    ) -> Values:
        """Return the elements of `targets` at the (row, column) of `places`, computed from the reduces in `known`."""
        computed = [target for target in targets if target not in known]
        maps = {target: drop_unused_ids(compose(places, self.rows.index_map(target.shape)).simplify()) for target in computed}
        values = dict(known)
        if computed:
            ids = used_ids(maps.values())
            signature = emit_epilogue(self.module, maps, tuple(known), ids, places.ranges)
            names = self.entry.ids_by_name
            arguments = (*self.entry.parameters, *(names[id_.name] for id_ in ids), *symbols, *known.values())
            values.update(zip(computed, pure_call(self.entry.builder, signature, arguments), strict=True))
        return tuple(values[target] for target in targets)

    def _write(
        self, roots: Sequence[HloInstruction], known: dict[HloInstruction, SSAValue], outputs: list[SSAValue], per_row: bool
    ) -> None:
        """Emit the loop that writes the roots with one element per row (`per_row`), or those with one per row and column."""
        numbers = [n for n, root in enumerate(roots) if self.rows.is_per_row(root.shape) is per_row]
        if not numbers:
            return
        b, entry = self.entry.builder, self.entry
        places = self.tiling.leaders if per_row else self.tiling.elements
        loop = entry.loop(drop_unused_ids(places), tuple(outputs[n] for n in numbers), ("row", "column"))
        with b.inside(loop.body.block):
            targets = [roots[n] for n in numbers]
            # Compute all values before any write: an output may share memory with an input.
            values = self._elements(list(dict.fromkeys(targets)), places, tuple(loop.induction_variables), known)
            by_root = dict(zip(dict.fromkeys(targets), values, strict=True))
            written: list[SSAValue] = []
            for target, output in zip(targets, loop.iteration_values, strict=True):
                index = b.apply(self.rows.index_map(target.shape), tuple(loop.map_results))
                written.append(entry.insert(by_root[target], output, index))
            b.block.add_op(YieldOp(*written))
        for n, result in zip(numbers, loop.res, strict=True):
            outputs[n] = result
