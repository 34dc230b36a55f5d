"""The emitter for scatters: threads for the updates, which they combine into the operand's buffer.

    scf.if (this thread has an update) {
      (the index vector of the update is read)
      scf.if (the window is within the operand) {
        %xla_loop = xla_gpu.loop (..)[%i] -> (%dim0, ..) in #map iter_args(%iter = %output) .. {
          %atomic_rmw = xla_gpu.atomic_rmw %iter[..] : tensor<..> { (the combiner) }
        }
      }
    }

A window that is not wholly within the operand is dropped. Without `unique_indices` each write is atomic; since no atomic
has several values, a variadic scatter then runs in one block, update after update. Mirrors XLA's `ScatterFusion`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects import arith, tensor
from xdsl.ir import Block, SSAValue

from hlo_run.analysis.computation_partitioner import partition
from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.fusion_analysis import FusionAnalysis
from hlo_run.analysis.in_place import in_place_operands
from hlo_run.analysis.index_width import index_width_bits
from hlo_run.analysis.scatter_tiling import ScatterTiling, tile_scatter
from hlo_run.analysis.thread_map import drop_unused_ids, loop_map
from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.dialects.xla_gpu import AtomicRMWOp, SyncThreadsOp, YieldOp
from hlo_run.errors import Unsupported
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.thread_map import thread_map
from hlo_run.indexing.variable import Variable
from hlo_run.pipeline.elemental.builder import INDEX
from hlo_run.pipeline.elemental.dynamic import add_start
from hlo_run.pipeline.elemental.emission import Values
from hlo_run.pipeline.elemental.function import KernelModule
from hlo_run.pipeline.elemental.types import element_type
from hlo_run.pipeline.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, element_of

# XLA's limit for the loops of every emitter but the loop emitter.
_MAX_UNROLL = 4


class ScatterEmitter:
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "scatter"

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        """Fusions whose root is a scatter."""
        del arguments
        return analysis.decision(self.kind) or no("the root is no scatter")

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel; raises Unsupported for what has no elemental emission, or is not done in place."""
        (scatter,) = analysis.roots
        _check_in_place(analysis, arguments)
        tiling = tile_scatter(analysis)
        fused = partition(analysis.fusion.fused_computation, scatter.operands[tiling.inputs :])
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, tiling.launch)
        kernel = _ScatterKernel(tiling, module, entry)
        results = entry.outputs
        if tiling.updates[0].shape.element_count:
            results = kernel.emit_in_order() if tiling.writes == "in order" else kernel.emit()
        function = entry.finish(kernel_name, arguments, results)
        return EmittedKernel(module.finish(function), tiling.launch, _MAX_UNROLL, self.kind, tiling.vector_size)


def _check_in_place(analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> None:
    (scatter,) = analysis.roots
    changed, first_result = in_place_operands(analysis.fusion), len(analysis.fusion.operands)
    for number in range(len(scatter.operands) // 2):
        operand = changed.get(number)
        if operand is None:
            source = scatter.operands[number]
            raise Unsupported(f"a scatter into {source.name}, which is no operand of the fusion", scatter.where)
        assert arguments[operand].slice_index == arguments[first_result + number].slice_index, "a scatter is done in place"


@dataclass(frozen=True)
class _ScatterKernel:
    """One kernel while it is emitted."""

    tiling: ScatterTiling
    module: KernelModule
    entry: EntryFunction

    def emit(self) -> Values:
        """Emit the kernel in which all updates run at once; returns the outputs."""
        entry, b, shape = self.entry, self.entry.builder, self.tiling.updates[0].shape
        work = loop_map(self.tiling.launch, self.tiling.vector_size, shape)
        entry.declare_ids(work)
        batch = [work.results[dim] for dim in self.tiling.scatter_dims]
        if any(expr.symbols_mask for expr in batch):
            # A thread's elements may belong to several windows.
            return self._loop(work, entry.outputs, lambda index, outputs: self._update(index, outputs))
        sizes = [shape.dims[dim] for dim in self.tiling.scatter_dims]
        inside = tuple((expr, Interval.of_size(size)) for expr, size in zip(batch, sizes, strict=True))
        place = IndexingMap(work.dims, (), (), tuple(batch), inside)
        known = [entry.size_of_id(variable.name) for variable in place.dims]
        ids = entry.ids(place)
        condition = b.in_bounds(place, known, ids)

        def look_up(outputs: Values) -> Values:
            starts, window_fits = self._starts(b.apply(place, ids))
            return self._if(window_fits, outputs, lambda old: self._loop(work, old, write(starts)))

        def write(starts: Sequence[SSAValue | None]) -> Callable[[Values, Values], Values]:
            return lambda index, outputs: self._combine(index, starts, outputs)

        return self._if(condition, entry.outputs, look_up)

    def emit_in_order(self) -> Values:
        """Emit the kernel in which one block takes the windows one after the other; returns the outputs."""
        entry, b, shape = self.entry, self.entry.builder, self.tiling.updates[0].shape
        sizes = [shape.dims[dim] for dim in self.tiling.scatter_dims]
        names = [f"batch{number}" for number in range(len(sizes))]
        ranges = [Variable(Interval.of_size(size), name) for size, name in zip(sizes, names, strict=True)]
        window_dims = self.tiling.window_update_dims
        window = tuple(shape.dims[dim] for dim in window_dims)
        launch = self.tiling.launch
        work = drop_unused_ids(thread_map(window, tuple(reversed(range(len(window)))), launch.block, launch.grid))
        steps = IndexingMap((Variable(Interval.of_size(launch.threads_per_block), "th_x"),), tuple(ranges), (), (), ())
        entry.declare_ids(steps, work)
        loop = entry.loop(steps, entry.outputs, ())
        with b.inside(loop.body.block):
            batch = tuple(loop.induction_variables)

            def write(position: Values, outputs: Values) -> Values:
                index = [b.index(0)] * shape.rank
                for dim, value in (*zip(window_dims, position, strict=True), *zip(self.tiling.scatter_dims, batch, strict=True)):
                    index[dim] = value
                return self._combine(tuple(index), starts, outputs)

            starts, window_fits = self._starts(batch)
            carried = tuple(loop.iteration_values)
            outputs = self._if(window_fits, carried, lambda old: self._loop(work, old, write))
            # The next update may change the same elements.
            b.block.add_op(YieldOp(*b.add(SyncThreadsOp(outputs))))
        return tuple(loop.res)

    def _loop(self, work: IndexingMap, outputs: Values, body: Callable[[Values, Values], Values]) -> Values:
        loop = self.entry.loop(work, outputs, [f"dim{number}" for number in range(len(work.results))])
        with self.entry.builder.inside(loop.body.block):
            written = body(tuple(loop.map_results), tuple(loop.iteration_values))
            self.entry.builder.block.add_op(YieldOp(*written))
        return tuple(loop.res)

    def _if(self, condition: SSAValue | None, outputs: Values, body: Callable[[Values], Values]) -> Values:
        """Let threads with the condition run the body; returns the outputs."""
        if condition is None:
            return body(outputs)
        b, then, otherwise = self.entry.builder, Block(), Block()
        with b.inside(then):
            b.yield_values(body(outputs))
        with b.inside(otherwise):
            b.yield_values(outputs)
        return tuple(b.if_op(condition, [output.type for output in outputs], then, otherwise))

    def _update(self, index: Values, outputs: Values) -> Values:
        """Look up where an update's element goes, and combine it there."""
        starts, window_fits = self._starts(tuple(index[dim] for dim in self.tiling.scatter_dims))
        return self._if(window_fits, outputs, lambda old: self._combine(index, starts, old))

    def _starts(self, batch: Values) -> tuple[list[SSAValue | None], SSAValue | None]:
        """Return where the window of `batch` starts along each dimension of the operand (None: at 0), and whether it fits.

        No condition means that it always fits.
        """
        b, attrs, indices = self.entry.builder, self.tiling.scatter.attrs, self.tiling.indices
        sizes, windows = self.tiling.scatter.operands[0].shape.dims, self.tiling.window_sizes
        vector_dim: int = attrs["index_vector_dim"]
        starts: list[SSAValue | None] = [None] * len(sizes)
        fits: SSAValue | None = None
        index_map: Sequence[int] = attrs["scatter_dims_to_operand_dims"]
        for component, dim in enumerate(index_map):
            place = list(batch)
            if vector_dim < indices.shape.rank:
                place.insert(vector_dim, b.index(component))
            (value,) = element_of(self.entry, self.module, indices, tuple(place))
            b.locate(self.tiling.scatter)
            signed = indices.shape.dtype.is_signed
            start = starts[dim] = b.cast(arith.IndexCastOp if signed else IndexCastUIOp, value, INDEX)
            # An unsigned comparison covers negative starts too.
            fit = b.cmpi("ule", start, b.index(sizes[dim] - windows[dim]))
            fits = fit if fits is None else b.binary(arith.AndIOp, fits, fit)
        batching: Sequence[int] = attrs.get("input_batching_dims", ())
        for dim, indices_dim in zip(batching, attrs.get("scatter_indices_batching_dims", ()), strict=True):
            starts[dim] = batch[indices_dim - (indices_dim > vector_dim)]
        return starts, fits

    def _combine(self, index: Values, starts: Sequence[SSAValue | None], outputs: Values) -> Values:
        """Combine the updates' elements at `index` into the outputs."""
        b, tiling = self.entry.builder, self.tiling
        updates = tuple(element_of(self.entry, self.module, update, index)[0] for update in tiling.updates)
        b.locate(tiling.scatter)
        place = [b.index(0) if start is None else start for start in starts]
        for update_dim, dim in zip(tiling.window_update_dims, tiling.window_operand_dims, strict=True):
            start = starts[dim]
            size = tiling.scatter.operands[0].shape.dims[dim]
            place[dim] = (
                index[update_dim] if start is None else add_start(b, index[update_dim], start, tiling.window_sizes[dim], size)
            )
        (combiner,) = tiling.scatter.called["to_apply"]
        if tiling.writes == "atomic":
            (output,), (update,) = outputs, updates
            rmw = AtomicRMWOp(output, place)
            with b.inside(rmw.body.block):
                b.block.add_op(YieldOp(*self.module.inline_scalars(b, combiner, (rmw.current, update))))
            return tuple(b.add(rmw))
        types = [element_type(operand.shape.element_type, operand.where) for operand in tiling.scatter.operands]
        current = tuple(
            b.create(tensor.ExtractOp, (output, *place), type_) for output, type_ in zip(outputs, types, strict=False)
        )
        values = self.module.inline_scalars(b, combiner, (*current, *updates))
        return tuple(self.entry.insert(value, output, place) for value, output in zip(values, outputs, strict=True))
