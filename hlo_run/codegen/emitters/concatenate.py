"""The emitter for concatenations: one loop per operand, so that threads need no branch to find their operand.

    %xla_loop = xla_gpu.loop (..)[%i] -> (%dim0, ..) in #map iter_args(%iter = %output) .. {
      (insert the epilogue of an element of the first operand)
    }
    %xla_loop_0 = xla_gpu.loop (..)[%i] -> (%dim0, ..) in #map1 iter_args(%iter = %xla_loop) .. {
      (insert the epilogue of an element of the second operand)
    }

The launch covers the longest operand. In the other loops the maps disable the threads without elements. Mirrors XLA's
`ConcatenateFusion`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from xdsl.ir import SSAValue

from hlo_run.analysis.tiling.computation_partitioner import partition
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.analysis.tiling.index_width import index_width_bits
from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions, calculate_launch
from hlo_run.analysis.tiling.thread_map import drop_unused_ids, loop_map
from hlo_run.analysis.tiling.unroll_factor import unroll_factor
from hlo_run.codegen.elemental.function import KernelModule, Signature, pure_call
from hlo_run.codegen.emitters.epilogue import emit_epilogue, hero_to_root_map
from hlo_run.codegen.emitters.kernel import EmittedKernel, EntryArgument, EntryFunction, KindEmitter, element_of, numbered
from hlo_run.dialects.xla_gpu import YieldOp
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing.compose import compose
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.variable import Variable
from hlo_run.ops.index import user_map


class ConcatenateEmitter(KindEmitter):
    """The emitter; see the module's docstring."""

    kind: ClassVar[str] = "concatenate"

    def emit(self, analysis: FusionAnalysis, kernel_name: str, arguments: Sequence[EntryArgument]) -> EmittedKernel:
        """Return the kernel. Raises Unsupported for an instruction that elemental emission does not support."""
        (root,), (hero,) = analysis.roots, analysis.heroes
        axis: int = hero.dimensions[0]
        longest = max(hero.operands, key=lambda operand: operand.shape.dims[axis])
        factor = unroll_factor(analysis, longest.shape.element_count)
        factor = math.gcd(factor, *(operand.shape.dims[axis] for operand in hero.operands))
        launch = calculate_launch(longest.shape.element_count, factor, analysis.target)
        fused = partition(analysis.fusion.fused_computation, (hero, *hero.operands))
        module = KernelModule(fused, index_width_bits(analysis.fusion), kernel_name)
        entry = EntryFunction(analysis, module, launch)
        kernel = _ConcatenateKernel(root, hero, module, entry, launch)
        output = kernel.emit(loop_map(launch, factor, longest.shape))
        function = entry.finish(kernel_name, arguments, (output,))
        return EmittedKernel(module.finish(function), launch, factor, self.kind, factor)


class _ConcatenateKernel(Struct, frozen=True):
    """The state of one kernel's emission."""

    root: HloInstruction
    hero: HloInstruction
    module: KernelModule
    entry: EntryFunction
    launch: LaunchDimensions

    def emit(self, work: IndexingMap) -> SSAValue:
        """Emit a loop for each operand with elements, and return the output. `work` maps ids to an index of the longest."""
        to_root = hero_to_root_map(self.hero, self.root)
        places: list[tuple[HloInstruction, IndexingMap]] = []
        for number, operand in enumerate(self.hero.operands):
            step = user_map(self.hero, number)
            assert step is not None, "a concatenate has maps to its users"
            place = compose(compose(work, step).simplify(), to_root).simplify()
            if operand.shape.element_count and not place.is_known_empty:
                places.append((operand, drop_unused_ids(place, self.launch)))
        index_of_operand = drop_unused_ids(work)
        self.entry.declare_ids(index_of_operand, *(place for _, place in places))
        epilogue = self._emit_epilogue()
        (output,) = self.entry.outputs
        for operand, place in places:
            output = self._loop(operand, index_of_operand, place, epilogue, output)
        return output

    def _loop(
        self,
        operand: HloInstruction,
        index_of_operand: IndexingMap,
        place: IndexingMap,
        epilogue: Signature,
        output: SSAValue,
    ) -> SSAValue:
        entry, b = self.entry, self.entry.builder
        loop = entry.loop(place, (output,), numbered("dim", self.root.shape))
        with b.inside(loop.body.block):
            index = b.apply(index_of_operand, (*entry.ids(index_of_operand), *loop.induction_variables))
            (value,) = element_of(entry, self.module, operand, index)
            target = tuple(loop.map_results)
            b.locate(self.root)
            (value,) = pure_call(b, epilogue, (*entry.parameters, *target, value))
            b.block.add_op(YieldOp(entry.insert(value, loop.iteration_values[0], target)))
        return loop.res[0]

    def _emit_epilogue(self) -> Signature:
        """Emit the function that computes the root's element from its index and from the hero's element."""
        dims = self.root.shape.dims
        names = numbered("dim", self.root.shape)
        variables = [Variable(Interval.of_size(size), name) for size, name in zip(dims, names, strict=True)]
        identity = IndexingMap(tuple(variables), (), (), IndexingMap.identity(dims).results)
        return emit_epilogue(self.module, {self.root: identity}, (self.hero,), variables, ())
