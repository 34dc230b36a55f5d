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
has several values, a variadic scatter then runs in one block, update after update. Sorted indices have a form of their
own. Mirrors XLA's `ScatterFusion`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from xdsl.ir import SSAValue

from hlo_run.analysis.buffers.in_place import in_place_operands
from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.scatter_tiling import tile_scatter
from hlo_run.analysis.tiling.thread_map import drop_unused_ids
from hlo_run.analysis.tiling.unroll_factor import MAX_UNROLL_FACTOR
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, KindEmitter
from hlo_run.codegen.emitters.scatter_kernel import ScatterKernel
from hlo_run.codegen.emitters.sorted_scatter import emit_sorted
from hlo_run.dialects.xla_gpu import SyncThreadsOp, YieldOp
from hlo_run.errors import Unsupported
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.thread_map import thread_map
from hlo_run.indexing.variable import Variable

# XLA's limit for the loops of every emitter but the loop emitter.


class ScatterEmitter(KindEmitter):
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "scatter"

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel; raises Unsupported for what has no elemental emission, or is not done in place."""
        (scatter,) = analysis.roots
        _check_in_place(analysis, arguments)
        tiling = tile_scatter(analysis)
        fused = partition(analysis.fusion.fused_computation, scatter.operands[tiling.inputs :])
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, tiling.launch)
        kernel = ScatterKernel(tiling, module, entry)
        results = entry.outputs
        if tiling.updates[0].shape.element_count:
            results = _emit(kernel)
        function = entry.finish(kernel_name, arguments, results)
        return EmittedKernel(module.finish(function), tiling.launch, MAX_UNROLL_FACTOR, self.kind, tiling.vector_size)


def _check_in_place(analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> None:
    (scatter,) = analysis.roots
    changed, first_result = in_place_operands(analysis.fusion), len(analysis.fusion.operands)
    for number in range(len(scatter.operands) // 2):
        operand = changed.get(number)
        if operand is None:
            source = scatter.operands[number]
            raise Unsupported(f"a scatter into {source.name}, which is no operand of the fusion", scatter.where)
        assert arguments[operand].slice_index == arguments[first_result + number].slice_index, "a scatter is done in place"


def _emit(kernel: ScatterKernel) -> Values:
    """Emit the form that the tiling asks for; returns the outputs."""
    if kernel.tiling.writes == "in order":
        return _emit_in_order(kernel)
    return emit_sorted(kernel) if kernel.tiling.indices_per_warp > 1 else _emit_at_once(kernel)


def _emit_at_once(kernel: ScatterKernel) -> Values:
    """Emit the kernel in which all updates run at once; returns the outputs."""
    entry, b, tiling = kernel.entry, kernel.entry.builder, kernel.tiling
    shape = tiling.updates[0].shape
    work = tiling.work_map
    entry.declare_ids(work)
    batch = [work.results[dim] for dim in tiling.scatter_dims]
    if any(expr.symbols_mask for expr in batch):
        # A thread's elements may belong to several windows.
        return kernel.loop(work, entry.outputs, lambda index, outputs: kernel.update(index, outputs))
    sizes = [shape.dims[dim] for dim in tiling.scatter_dims]
    inside = tuple((expr, Interval.of_size(size)) for expr, size in zip(batch, sizes, strict=True))
    place = IndexingMap(work.dims, (), (), tuple(batch), inside)
    known = [entry.size_of_id(variable.name) for variable in place.dims]
    ids = entry.ids(place)
    condition = b.in_bounds(place, known, ids)

    def look_up(outputs: Values) -> Values:
        starts, window_fits = kernel.starts_of(b.apply(place, ids))
        return kernel.when(window_fits, outputs, lambda old: kernel.loop(work, old, write(starts)))

    def write(starts: Sequence[SSAValue | None]) -> Callable[[Values, Values], Values]:
        return lambda index, outputs: kernel.combine(index, starts, outputs)

    return kernel.when(condition, entry.outputs, look_up)


def _emit_in_order(kernel: ScatterKernel) -> Values:
    """Emit the kernel in which one block takes the windows one after the other; returns the outputs."""
    entry, b, tiling = kernel.entry, kernel.entry.builder, kernel.tiling
    shape = tiling.updates[0].shape
    sizes = [shape.dims[dim] for dim in tiling.scatter_dims]
    names = [f"batch{number}" for number in range(len(sizes))]
    ranges = [Variable(Interval.of_size(size), name) for size, name in zip(sizes, names, strict=True)]
    window_dims = tiling.window_update_dims
    window = tuple(shape.dims[dim] for dim in window_dims)
    launch = tiling.launch
    work = drop_unused_ids(thread_map(window, tuple(reversed(range(len(window)))), launch.block, launch.grid))
    steps = IndexingMap((Variable(Interval.of_size(launch.threads_per_block), "th_x"),), tuple(ranges), (), (), ())
    entry.declare_ids(steps, work)
    loop = entry.loop(steps, entry.outputs, ())
    with b.inside(loop.body.block):
        batch = tuple(loop.induction_variables)

        def write(position: Values, outputs: Values) -> Values:
            index = [b.index(0)] * shape.rank
            for dim, value in (*zip(window_dims, position, strict=True), *zip(tiling.scatter_dims, batch, strict=True)):
                index[dim] = value
            return kernel.combine(tuple(index), starts, outputs)

        starts, window_fits = kernel.starts_of(batch)
        carried = tuple(loop.iteration_values)
        outputs = kernel.when(window_fits, carried, lambda old: kernel.loop(work, old, write))
        # The next update may change the same elements.
        b.block.add_op(YieldOp(*b.add(SyncThreadsOp(outputs))))
    return tuple(loop.res)
