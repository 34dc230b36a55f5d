"""Helpers of all forms of scatter kernels: the start of a window, whether it fits, and the writes of its elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from xdsl.dialects import arith, tensor
from xdsl.ir import Block, SSAValue

from hlo_run.analysis.tiling.scatter_tiling import ScatterTiling
from hlo_run.codegen.elemental.builder import INDEX
from hlo_run.codegen.elemental.dynamic import add_start
from hlo_run.codegen.elemental.emission import Values
from hlo_run.codegen.elemental.function import KernelModule
from hlo_run.codegen.elemental.types import element_type
from hlo_run.codegen.emitters.kernel import EntryFunction, element_of
from hlo_run.dialects.arith_extra import IndexCastUIOp
from hlo_run.dialects.xla_gpu import AtomicRMWOp, YieldOp
from hlo_run.indexing.indexing_map import IndexingMap


class ScatterKernel(Struct, frozen=True):
    """The state of one scatter kernel's emission, and the code that all forms share."""

    tiling: ScatterTiling
    module: KernelModule
    entry: EntryFunction

    def loop(self, work: IndexingMap, outputs: Values, body: Callable[[Values, Values], Values]) -> Values:
        """Emit a loop over a map whose dimensions are ids, and return its results.

        `body` takes the map's results and the current outputs, and returns the new outputs.
        """
        loop = self.entry.loop(work, outputs, [f"dim{number}" for number in range(len(work.results))])
        with self.entry.builder.inside(loop.body.block):
            written = body(tuple(loop.map_results), tuple(loop.iteration_values))
            self.entry.builder.block.add_op(YieldOp(*written))
        return tuple(loop.res)

    def when(self, condition: SSAValue | None, outputs: Values, body: Callable[[Values], Values]) -> Values:
        """Emit an `scf.if` that runs the body if `condition` is true, and return the outputs. None is always true."""
        if condition is None:
            return body(outputs)
        b, then, otherwise = self.entry.builder, Block(), Block()
        with b.inside(then):
            b.yield_values(body(outputs))
        with b.inside(otherwise):
            b.yield_values(outputs)
        return tuple(b.if_op(condition, [output.type for output in outputs], then, otherwise))

    def update(self, index: Values, outputs: Values) -> Values:
        """Combine an update's element at `index` into the outputs, if its window fits. Returns the new outputs."""
        starts, window_fits = self.starts_of(tuple(index[dim] for dim in self.tiling.scatter_dims))
        return self.when(window_fits, outputs, lambda old: self.combine(index, starts, old))

    def starts_of(self, batch: Values) -> tuple[list[SSAValue | None], SSAValue | None]:
        """Return the start of the window of `batch` in each dimension of the operand (None is 0), and an i1: it fits.

        The i1 is None if the window always fits.
        """
        b, indices = self.entry.builder, self.tiling.indices
        sizes, windows = self.tiling.scatter.operands[0].shape.dims, self.tiling.window_sizes
        vector_dim = self.tiling.scatter.index_vector_dim
        starts: list[SSAValue | None] = [None] * len(sizes)
        fits: SSAValue | None = None
        index_map = self.tiling.scatter.scatter_dims_to_operand_dims
        batching = self.tiling.scatter.input_batching_dims
        for component, dim in enumerate(index_map):
            if dim in batching:
                continue
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
        places = self.tiling.scatter.scatter_indices_batching_dims
        for dim, indices_dim in zip(batching, places, strict=True):
            own = batch[indices_dim - (indices_dim > vector_dim)]
            starts[dim] = own
            if indices.shape.dims[indices_dim] > sizes[dim]:
                fit = b.cmpi("ult", own, b.index(sizes[dim]))
                fits = fit if fits is None else b.binary(arith.AndIOp, fits, fit)
        return starts, fits

    def combine(self, index: Values, starts: Sequence[SSAValue | None], outputs: Values) -> Values:
        """Combine the updates' elements at `index` into the outputs. Returns the new outputs."""
        updates = tuple(element_of(self.entry, self.module, update, index)[0] for update in self.tiling.updates)
        return self.write(updates, index, starts, outputs)

    def write(self, updates: Values, index: Values, starts: Sequence[SSAValue | None], outputs: Values) -> Values:
        """Combine the values `updates` into the outputs, at the target of the update's element at `index`."""
        b, tiling = self.entry.builder, self.tiling
        b.locate(tiling.scatter)
        place = [b.index(0) if start is None else start for start in starts]
        for update_dim, dim in zip(tiling.window_update_dims, tiling.window_operand_dims, strict=True):
            start = starts[dim]
            size = tiling.scatter.operands[0].shape.dims[dim]
            place[dim] = (
                index[update_dim] if start is None else add_start(b, index[update_dim], start, tiling.window_sizes[dim], size)
            )
        if tiling.writes == "atomic":
            (output,), (update,) = outputs, updates
            rmw = AtomicRMWOp(output, place)
            with b.inside(rmw.body.block):
                b.block.add_op(YieldOp(*self.reduce((rmw.current, update))))
            return tuple(b.add(rmw))
        types = [element_type(operand.shape.element_type, operand.where) for operand in tiling.scatter.operands]
        current = tuple(
            b.create(tensor.ExtractOp, (output, *place), type_) for output, type_ in zip(outputs, types, strict=False)
        )
        values = self.reduce((*current, *updates))
        return tuple(self.entry.insert(value, output, place) for value, output in zip(values, outputs, strict=True))

    def reduce(self, values: Values) -> Values:
        """Return the results of the reducer for `values`: current elements, then updates."""
        reducer = self.tiling.scatter.to_apply
        return tuple(self.module.inline_scalars(self.entry.builder, reducer, values))
