"""The default emitter: every thread computes some neighbouring elements of the result, all roots at once.

    %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%vector_index] -> (%dim0, %dim1, %dim2)
        in #map iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
      %pure_call = xla_gpu.pure_call @gelu(%input, %dim0, %dim1, %dim2) : (..) -> bf16
      %inserted = tensor.insert %pure_call into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
      xla_gpu.yield %inserted : tensor<6x512x4096xbf16>
    }

Further roots are written where the first root's element lies in memory. Mirrors XLA's `LoopFusion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hlo_run.analysis.computation_partitioner import partition
from hlo_run.analysis.decision import Decision, yes
from hlo_run.analysis.fusion_analysis import FusionAnalysis
from hlo_run.analysis.index_width import index_width_bits
from hlo_run.analysis.launch_dimensions import calculate_launch
from hlo_run.analysis.thread_map import loop_map
from hlo_run.analysis.unroll_factor import unroll_factor
from hlo_run.dialects.xla_gpu import YieldOp
from hlo_run.errors import Unsupported
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.ops.index import bitcast_map
from hlo_run.pipeline.elemental.emission import Values
from hlo_run.pipeline.elemental.function import KernelModule, pure_call, result_shapes
from hlo_run.pipeline.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, numbered


class LoopEmitter:
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "loop"

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        """Everything."""
        del analysis, arguments
        return yes("takes every fusion")

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel; raises Unsupported for what has no elemental emission."""
        fusion = analysis.fusion
        computation = fusion.fused_computation
        shape = result_shapes(computation.root)[0]
        factor = unroll_factor(analysis, shape.element_count)
        launch = calculate_launch(shape.element_count, factor, analysis.target)
        module = KernelModule(partition(computation), index_width_bits(fusion), kernel_name)
        entry = EntryFunction(analysis, module, launch)
        results = entry.outputs
        if shape.element_count:
            results = _emit_loop(analysis, entry, module, loop_map(launch, factor, shape))
        function = entry.finish(kernel_name, arguments, results)
        return EmittedKernel(module.finish(function), launch, factor, self.kind, factor)


def _emit_loop(analysis: FusionAnalysis, entry: EntryFunction, module: KernelModule, indexing_map: IndexingMap) -> Values:
    b, root = entry.builder, analysis.fusion.fused_computation.root
    first = entry.shapes[0]
    entry.declare_ids(indexing_map)
    loop = entry.loop(indexing_map, entry.outputs, numbered("dim", first))
    with b.inside(loop.body.block):
        index = tuple(loop.map_results)
        signature = module.signature(module.fused, module.fused.subgraph_of[root])
        values = pure_call(b, signature, (*entry.parameters, *index))
        written: Values = ()
        for value, target, shape in zip(values, loop.iteration_values, entry.shapes, strict=True):
            to_shape = bitcast_map(first, shape)
            if to_shape is None:
                raise Unsupported(f"results of {first} and {shape} in one kernel: element counts differ", analysis.fusion.where)
            written = (*written, entry.insert(value, target, b.apply(to_shape, index)))
        b.block.add_op(YieldOp(*written))
    return tuple(loop.res)
