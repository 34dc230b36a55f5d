"""The emitter for dynamic-update-slices in their operand's buffer: threads for the update, not for the whole result.

    %xla_loop = xla_gpu.loop (..)[%i] -> (%dim0, ..) in #map iter_args(%iter = %output) .. {
      (the update's element goes to its place plus the start)
    }

Several results, each with a buffer of its own, share the loop. Mirrors XLA's `InPlaceDynamicUpdateSliceFusion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue

from hlo_run.analysis.buffers.in_place import in_place_operands, judge_in_place_updates, updates_of
from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.launch_dimensions import calculate_launch
from hlo_run.analysis.tiling.thread_map import loop_map
from hlo_run.analysis.tiling.unroll_factor import unroll_factor
from hlo_run.codegen.elemental.dynamic import add_start, clamp_start
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, element_of
from hlo_run.hlo.graph import HloInstruction
from hlo_run.ops.index import bitcast_map, runtime_values


class InPlaceUpdateEmitter:
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "in-place dynamic-update-slice"

    def accepts(self, analysis: FusionAnalysis, arguments: Sequence[EntryArgument]) -> Decision:
        """Loop fusions whose results all live in the buffers of the operands that they change."""
        if analysis.kind != "loop":
            return no(f"the {analysis.kind} emitter takes it")
        judged = judge_in_place_updates(analysis.roots)
        if not judged:
            return judged
        first_result = len(analysis.fusion.operands)
        for result, operand in in_place_operands(analysis.fusion).items():
            if arguments[operand].slice_index != arguments[first_result + result].slice_index:
                return no(f"result {result} does not live in the buffer of operand {operand}")
        return judged

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel; raises Unsupported for what has no elemental emission."""
        updates = updates_of(analysis.roots)
        shape = updates[0].operands[1].shape
        factor = unroll_factor(analysis, shape.element_count)
        launch = calculate_launch(shape.element_count, factor, analysis.target)
        operands = [operand for update in updates for operand in update.operands[1:]]
        fused = partition(analysis.fusion.fused_computation, operands)
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, launch)

        def body(index: Values, outputs: Values) -> Values:
            return tuple(_update(analysis.roots, updates, entry, module, index, outputs))

        results = entry.loop_over_elements(loop_map(launch, factor, shape), shape, body)
        function = entry.finish(kernel_name, arguments, results)
        return EmittedKernel(module.finish(function), launch, factor, self.kind, factor)


def _update(
    roots: Sequence[HloInstruction],
    updates: Sequence[HloInstruction],
    entry: EntryFunction,
    module: KernelModule,
    index: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> Values:
    """Emit the body of the loop; all values come before any write, since one may read what another writes."""
    b = entry.builder
    targets: list[tuple[SSAValue, Values]] = []
    for root, update in zip(roots, updates, strict=True):
        (value,) = element_of(entry, module, update.operands[1], tuple(index))
        starts = _starts(update, entry, module)
        sizes = zip(update.operands[1].shape.dims, update.shape.dims, strict=True)
        place = tuple(
            position if start is None else add_start(b, position, start, *both)
            for position, start, both in zip(index, starts, sizes, strict=True)
        )
        to_root = bitcast_map(update.shape, root.shape)
        assert to_root is not None, "only bitcasts lie between an update and its root"
        targets.append((value, b.apply(to_root, place)))
    return tuple(entry.insert(value, output, place) for (value, place), output in zip(targets, outputs, strict=True))


def _starts(update: HloInstruction, entry: EntryFunction, module: KernelModule) -> list[SSAValue | None]:
    """Return the clamped start of the slice along each dimension, None where it is all of it."""
    b = entry.builder
    starts: list[SSAValue | None] = []
    sizes = zip(runtime_values(update, 1), update.shape.dims, update.operands[1].shape.dims, strict=True)
    for read, size, window_size in sizes:
        if size == window_size:
            starts.append(None)
            continue
        operand = update.operands[read.operand_number]
        (value,) = element_of(entry, module, operand, b.apply(read.index, ()))
        starts.append(clamp_start(b, value, size - window_size, operand.shape.dtype.is_signed))
    return starts
