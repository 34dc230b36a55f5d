"""The form of scatter kernels for sorted indices: a warp combines updates of one window in registers and writes it once.

    %xla_loop:4 = xla_gpu.loop (..)[%i, %j] -> (%update) in #map iter_args(%start, %fits, %sums, %output) .. {
      %changed = (the start of this update is not %start)
      scf.if (%changed and %fits) { (combine %sums into the output, atomically) }
      scf.if (this update fits) { %sums = (the update's elements if %changed, else combined with %sums) }
    }
    scf.if %fits { (combine %sums into the output) }

The lanes of the warp divide the elements of a window. The reducer must be associative. Mirrors XLA's
`ScatterWithDistributedIndices`.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, VectorType, i1, i64
from xdsl.ir import Block, SSAValue

from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.types import element_type
from hlo_run.codegen.emitters.kernel import element_of
from hlo_run.codegen.emitters.scatter_kernel import ScatterKernel
from hlo_run.dialects.xla_gpu import YieldOp
from hlo_run.indexing.indexing_map import IndexingMap

_DYNAMIC_POSITIONS = {"static_position": DenseArrayBase.from_list(i64, [DYNAMIC_INDEX, DYNAMIC_INDEX])}


def emit_sorted(kernel: ScatterKernel) -> Values:
    """Emit the kernel, and return the outputs."""
    return _SortedScatter(kernel).emit()


class _SortedScatter:
    def __init__(self, kernel: ScatterKernel) -> None:
        self._kernel, self._entry, self._b = kernel, kernel.entry, kernel.entry.builder
        (self._update,) = kernel.tiling.updates
        self._element = element_type(self._update.shape.element_type, self._update.where)
        self._window: IndexingMap = kernel.tiling.window_map

    def emit(self) -> Values:
        entry, b, tiling = self._entry, self._b, self._kernel.tiling
        index_map = tiling.index_map
        entry.declare_ids(index_map, self._window)
        moved: Sequence[int] = tiling.scatter.scatter_dims_to_operand_dims
        nowhere = [b.index(-1)] * len(moved)
        sums = b.zeros(VectorType(self._element, [variable.bounds.upper + 1 for variable in self._window.ranges]))
        loop = entry.loop(index_map, (*nowhere, b.constant(i1, 0), sums, *entry.outputs), ("update",))
        with b.inside(loop.body.block):
            *previous, fitted, sums, output = loop.iteration_values
            starts, fits = self._kernel.starts_of(tuple(loop.map_results))
            assert fits is not None, "an index vector has a component"
            found = [start for start in starts if start is not None]
            changed = self._differ(previous, found)
            output = self._flush(b.binary(arith.AndIOp, changed, fitted), previous, sums, output)
            sums = self._accumulate(changed, fits, loop.map_results[0], sums)
            b.block.add_op(YieldOp(*found, fits, sums, output))
        *last, fitted, sums, output = loop.res
        return (self._flush(fitted, last, sums, output),)

    def _differ(self, previous: Sequence[SSAValue], found: Sequence[SSAValue]) -> SSAValue:
        b = self._b
        changes = [b.cmpi("ne", old, new) for old, new in zip(previous, found, strict=True)]
        changed = changes[0]
        for change in changes[1:]:
            changed = b.binary(arith.OrIOp, changed, change)
        return changed

    def _flush(self, condition: SSAValue, found: Sequence[SSAValue], sums: SSAValue, output: SSAValue) -> SSAValue:
        """Combine the sums into the window that starts at `found`, if `condition` is true. Returns the new output."""
        kernel, b = self._kernel, self._b
        moved: Sequence[int] = kernel.tiling.scatter.scatter_dims_to_operand_dims
        starts: list[SSAValue | None] = [None] * kernel.tiling.scatter.operands[0].shape.rank
        for dim, start in zip(moved, found, strict=True):
            starts[dim] = start

        def write(outputs: Values) -> Values:
            loop = self._entry.loop(self._window, outputs, self._names())
            with b.inside(loop.body.block):
                value = self._get(sums, tuple(loop.induction_variables))
                index = (b.index(0), *loop.map_results)
                b.block.add_op(YieldOp(*kernel.write((value,), index, starts, tuple(loop.iteration_values))))
            return tuple(loop.res)

        return kernel.when(condition, (output,), write)[0]

    def _accumulate(self, changed: SSAValue, fits: SSAValue, update: SSAValue, sums: SSAValue) -> SSAValue:
        """Return the sums after an update: the update's elements if a new window begins (`changed`), else combined."""
        b, then, otherwise = self._b, Block(), Block()
        with b.inside(then):
            b.yield_values([self._add(update, sums, begins=True)])
        with b.inside(otherwise):
            b.yield_values([self._add(update, sums, begins=False)])

        def read(_: Values) -> Values:
            return tuple(b.if_op(changed, [sums.type], then, otherwise))

        return self._kernel.when(fits, (sums,), read)[0]

    def _add(self, update: SSAValue, sums: SSAValue, *, begins: bool) -> SSAValue:
        b = self._b
        loop = self._entry.loop(self._window, (sums,), self._names())
        with b.inside(loop.body.block):
            place = tuple(loop.induction_variables)
            (value,) = element_of(self._entry, self._kernel.module, self._update, (update, *loop.map_results))
            b.locate(self._kernel.tiling.scatter)
            (old,) = loop.iteration_values
            if not begins:
                (value,) = self._kernel.reduce((self._get(old, place), value))
            b.block.add_op(YieldOp(b.create(vector.InsertOp, (value, old, *place), old.type, _DYNAMIC_POSITIONS)))
        return loop.res[0]

    def _get(self, sums: SSAValue, place: Values) -> SSAValue:
        return self._b.create(vector.ExtractOp, (sums, *place), self._element, _DYNAMIC_POSITIONS)

    def _names(self) -> list[str]:
        return [f"window{number}" for number in range(len(self._window.results))]
