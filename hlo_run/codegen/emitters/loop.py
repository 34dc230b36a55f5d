"""The default emitter, loop: every thread computes neighbouring elements of all roots.

    %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%vector_index] -> (%dim0, %dim1, %dim2)
        in #map iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
      %pure_call = xla_gpu.pure_call @gelu_multiply_0(%input, %dim0, %dim1, %dim2) : (..) -> bf16
      %inserted = tensor.insert %pure_call into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
      xla_gpu.yield %inserted : tensor<6x512x4096xbf16>
    }

Further roots are written at the linear offset that the first root's element has. Roots with another element count, which
XLA's `LoopFusion` cannot have, get their own loop in the same kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import ClassVar

from xdsl.ir import SSAValue

from hlo_run.analysis.decision import Decision, yes
from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.launch_dimensions import calculate_launch
from hlo_run.analysis.tiling.thread_map import loop_map
from hlo_run.analysis.tiling.unroll_factor import unroll_factor
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule, pure_call, result_shapes
from hlo_run.codegen.elemental.shaping import tuple_leaves
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, element_of, numbered
from hlo_run.dialects.xla_gpu import YieldOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.ops.index import bitcast_map


class LoopEmitter:
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "loop"

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        """Accept every fusion."""
        del analysis, arguments
        return yes("takes every fusion")

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel. Raises Unsupported for an instruction that elemental emission does not support."""
        fusion = analysis.fusion
        computation = fusion.fused_computation
        shapes = result_shapes(computation.root)
        if len({shape.element_count for shape in shapes}) > 1:
            return _emit_several(analysis, kernel_name, arguments)
        shape = shapes[0]
        factor = unroll_factor(analysis, shape.element_count)
        launch = calculate_launch(shape.element_count, factor, analysis.target)
        module = KernelModule(partition(computation), index_width_bits(fusion), kernel_name)
        entry = EntryFunction(analysis, module, launch)
        body = partial(_write_elements, analysis, entry, module)
        results = entry.loop_over_elements(loop_map(launch, factor, shape), shape, body)
        function = entry.finish(kernel_name, arguments, results)
        return EmittedKernel(module.finish(function), launch, factor, self.kind, factor)


def _write_elements(
    analysis: FusionAnalysis, entry: EntryFunction, module: KernelModule, index: Values, outputs: Values
) -> Values:
    """Compute the fusion's results at one index and insert them into the outputs."""
    b, root = entry.builder, analysis.fusion.fused_computation.root
    signature = module.signature(module.fused, module.fused.subgraph_of[root])
    values = pure_call(b, signature, (*entry.parameters, *index))
    written: Values = ()
    for value, target, shape in zip(values, outputs, entry.shapes, strict=True):
        to_shape = bitcast_map(entry.shapes[0], shape)
        assert to_shape is not None, "the element counts are equal"
        written = (*written, entry.insert(value, target, b.apply(to_shape, index)))
    return written


def _emit_several(analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
    """Return a kernel with one loop per element count.

    Within a loop, a thread may overwrite inputs after it has read them; other loops must not read those inputs.
    """
    fusion = analysis.fusion
    leaves = tuple_leaves(fusion.fused_computation.root)
    factor = -(-8 // analysis.smallest_output_bits)
    largest = max(shape.element_count for shape in result_shapes(fusion.fused_computation.root))
    launch = calculate_launch(largest, factor, analysis.target)
    module = KernelModule(partition(fusion.fused_computation, leaves), index_width_bits(fusion), kernel_name)
    entry = EntryFunction(analysis, module, launch)
    results = [*entry.outputs]
    positions = count()
    groups: defaultdict[int, list[tuple[HloInstruction, list[int]]]] = defaultdict(list)
    for leaf in leaves:
        shapes = [shape for _, shape in leaf.shape.leaves()]
        groups[shapes[0].element_count].append((leaf, [next(positions) for _ in shapes]))
    maps = {number: loop_map(launch, factor, entry.shapes[group[0][1][0]]) for number, group in groups.items() if number}
    entry.declare_ids(*maps.values())
    for number, indexing_map in maps.items():
        _emit_group(entry, module, indexing_map, groups[number], results)
    function = entry.finish(kernel_name, arguments, results)
    return EmittedKernel(module.finish(function), launch, factor, LoopEmitter.kind, factor)


def _emit_group(
    entry: EntryFunction,
    module: KernelModule,
    indexing_map: IndexingMap,
    group: Sequence[tuple[HloInstruction, list[int]]],
    results: list[SSAValue],
) -> None:
    """Append the loop over the roots of one element count, each with the numbers of its results. Updates `results`."""
    b = entry.builder
    numbers = [number for _, positions in group for number in positions]
    first = entry.shapes[numbers[0]]
    loop = entry.loop(indexing_map, tuple(results[number] for number in numbers), numbered("dim", first))
    with b.inside(loop.body.block):
        places: list[Values] = []
        values: list[SSAValue] = []
        for leaf, positions in group:
            to_shape = bitcast_map(first, entry.shapes[positions[0]])
            assert to_shape is not None, "the element counts are equal"
            index = b.apply(to_shape, tuple(loop.map_results))
            values += element_of(entry, module, leaf, index)
            places += [index] * len(positions)
        targets = zip(values, loop.iteration_values, places, strict=True)
        b.block.add_op(YieldOp(*[entry.insert(value, target, place) for value, target, place in targets]))
    for number, result in zip(numbers, loop.res, strict=True):
        results[number] = result
