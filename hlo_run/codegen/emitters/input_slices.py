"""The emitter for several slices of equally shaped arrays: threads for the arrays, which hand their element to each slice.

    %xla_loop:2 = xla_gpu.loop (..)[%i] -> (%dim0, ..) in #map iter_args(%iter = %output0, %iter_1 = %output1) .. {
      (the element of each array that is cut, once)
      scf.if (the first slice has the element) { (it goes there) }
      scf.if (the second slice has the element) { (it goes there) }
    }

Mirrors the `InputSlicesFusion` that XLA had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import Block, SSAValue

from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.launch_dimensions import calculate_launch
from hlo_run.analysis.tiling.thread_map import loop_map
from hlo_run.analysis.tiling.unroll_factor import MAX_UNROLL_FACTOR
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, KindEmitter, element_of
from hlo_run.hlo.graph import HloInstruction
from hlo_run.ops.index import user_map

# XLA's limit for the loops of every emitter but the loop emitter.


class InputSlicesEmitter(KindEmitter):
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "input slices"

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel; raises Unsupported for what has no elemental emission."""
        sources = tuple(dict.fromkeys(root.operands[0] for root in analysis.roots))
        shape = sources[0].shape
        factor = -(-8 // analysis.smallest_output_bits)  # one thread writes whole bytes where the slice allows it
        launch = calculate_launch(shape.element_count, factor, analysis.target)
        fused = partition(analysis.fusion.fused_computation, sources)
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, launch)

        def body(index: Values, outputs: Values) -> Values:
            elements = {source: element_of(entry, module, source, index)[0] for source in sources}
            roots = zip(analysis.roots, outputs, strict=True)
            return tuple(_insert(entry, root, elements[root.operands[0]], index, output) for root, output in roots)

        results = entry.loop_over_elements(loop_map(launch, factor, shape), shape, body)
        function = entry.finish(kernel_name, arguments, results)
        return EmittedKernel(module.finish(function), launch, MAX_UNROLL_FACTOR, self.kind, factor)


def _insert(entry: EntryFunction, root: HloInstruction, value: SSAValue, index: Values, output: SSAValue) -> SSAValue:
    """Write the element at `index` of what is cut to the slice, if it is there; returns the new output."""
    b = entry.builder
    b.locate(root)
    place = user_map(root, 0)
    assert place is not None, "a slice has a map to its result"
    sizes = root.operands[0].shape.dims
    condition, then, otherwise = b.in_bounds(place, sizes, index), Block(), Block()
    with b.inside(then):
        b.yield_values([entry.insert(value, output, b.apply(place, index))])
    with b.inside(otherwise):
        b.yield_values([output])
    return b.if_op(condition, [output.type], then, otherwise)[0]
