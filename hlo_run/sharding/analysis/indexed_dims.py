"""The dimensions of gathers and scatters: which of the operand, the indices and the slices run in parallel or pass through.

A scatter is described as a gather: its updates are the slices, and its inserted dimensions the collapsed ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.sharding import SingleSharding
from hlo_run.hlo.views import indexed as views
from hlo_run.sharding.values.make import elements_of
from hlo_run.sharding.values.merge import merge
from hlo_run.sharding.values.moves import along_dims


class MatchingDims(Struct, frozen=True):
    """Dimensions of the operand, the indices and the slices that belong together; () where the kind has none."""

    operand: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    slices: tuple[int, ...] = ()


class Indexed(views.Indexed, frozen=True):
    """The view of a gather or scatter, with the dimensions that belong together."""

    def slices_of_indices(self, indices_dims: Sequence[int]) -> tuple[int, ...]:
        """Return the dimensions of the slices that dimensions of the indices become."""
        batch = self.batch_dims
        return tuple(batch[dim if dim < self.index_vector_dim else dim - 1] for dim in indices_dims)

    def passthrough(self) -> MatchingDims:
        """Return the operand's dimensions that every slice has whole, and their dimensions in the slices."""
        sizes = self.operand.shape.dims
        pairs = [
            (dim, window)
            for dim, window in zip(self.kept_dims, self.window_dims, strict=True)
            if self.slice_sizes[dim] == sizes[dim]
        ]
        return MatchingDims(operand=tuple(a for a, _ in pairs), slices=tuple(b for _, b in pairs))

    def connected(self, without: Sequence[int] = ()) -> MatchingDims:
        """Return the dimensions of the indices, except the ones in `without`, and their dimensions in the slices."""
        dims = [d for d in self.row_dims if d not in without]
        return MatchingDims(indices=tuple(dims), slices=self.slices_of_indices(dims))

    def free(self) -> MatchingDims:
        """Return the dimensions of the indices that no dimension of the operand matches, and their dimensions in the slices."""
        parallel = self.parallel()
        return self.connected((*self.indices_batching, *(parallel.indices if parallel is not None else ())))

    def batching(self) -> MatchingDims | None:
        """Return the explicit batching dimensions, or None."""
        if not self.operand_batching:
            return None
        return MatchingDims(self.operand_batching, self.indices_batching, self.slices_of_indices(self.indices_batching))

    def parallel(self) -> MatchingDims | None:
        """Return dimensions along which index i only reads place i of the operand, because the indices are an iota there."""
        along = self._iota_of_index_components()
        pairs: list[tuple[int, int]] = []
        for component, indices_dim in enumerate(along):
            operand_dim = self.index_map[component] if component < len(self.index_map) else -1
            if indices_dim < 0:
                continue
            if any(indices_dim == other for other, _ in pairs):
                return None
            if self.slice_sizes[operand_dim] == 1 and indices_dim not in self.indices_batching:
                if self.operand.shape.dims[operand_dim] != self.indices.shape.dims[indices_dim]:
                    return None
                pairs.append((indices_dim, operand_dim))
        if not pairs:
            return None
        indices_dims = tuple(a for a, _ in pairs)
        return MatchingDims(tuple(b for _, b in pairs), indices_dims, self.slices_of_indices(indices_dims))

    def _iota_of_index_components(self) -> list[int]:
        """Return per component of an index the dimension of the indices along which it is an iota, or -1."""
        indices = self.indices
        while indices.opcode == "copy":
            indices = indices.operands[0]
        parts = [indices]
        if indices.opcode == "concatenate" and indices.dimensions[0] == self.index_vector_dim:
            parts = list(indices.operands)
        along: list[int] = []
        for part in parts:
            count = part.shape.dims[self.index_vector_dim] if part.shape.rank > self.index_vector_dim else 1
            dim = iota_dim(part)
            along += [-1 if dim is None or dim == self.index_vector_dim else dim] * count
        return along


def iota_dim(value: HloInstruction) -> int | None:
    """Return the dimension along which a value counts 0, 1, 2, .. and is constant along the others, or None."""
    if value.opcode == "iota":
        return value.iota_dimension
    if value.shape.element_type != "s32":
        return None
    if value.opcode == "constant":
        array: Array = np.asarray(value.constant_array)
        for dim, size in enumerate(array.shape):
            counted: Array = np.moveaxis(array, dim, -1)
            if size > 1 and np.array_equal(counted, np.broadcast_to(np.arange(int(size)), counted.shape)):
                return dim
        return None
    if value.opcode == "broadcast":
        inner = iota_dim(value.operands[0])
        return None if inner is None else value.dimensions[inner]
    if value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter":
        return _iota_from_caller(value)
    return None


def _iota_from_caller(element: HloInstruction) -> int | None:
    computation = element.parent
    if computation is None or computation.is_entry or len(computation.callers) != 1:
        return None
    (caller,) = computation.callers
    if caller.opcode == "while" and caller.operands[0].opcode == "tuple":
        root = computation.root
        if root.opcode == "tuple" and root.operands[element.tuple_index] is element:
            return iota_dim(caller.operands[0].operands[element.tuple_index])
    if caller.opcode == "conditional":
        argument = caller.operands[1 + caller.called_computations.index(computation)]
        if argument.opcode == "tuple":
            return iota_dim(argument.operands[element.tuple_index])
    return None


def _along(sharding: SingleSharding, source: Sequence[int], target: Sequence[int], rank: int) -> SingleSharding | None:
    """Return the sharding moved along dimensions, or None if it divides none of them."""
    if sharding.tiles is None:
        return None
    moved = along_dims(sharding, source, target, rank)
    return None if moved.is_whole else moved


def slices_from_indices(sharding: SingleSharding, what: Indexed) -> SingleSharding:
    """Return the sharding of the slices that the indices' sharding suggests."""
    dims = what.connected()
    return along_dims(sharding, dims.indices, dims.slices, what.slices.rank)


def indices_from_slices(sharding: SingleSharding, what: Indexed) -> SingleSharding:
    """Return the sharding of the indices that the slices' sharding suggests."""
    dims = what.connected()
    return along_dims(sharding, dims.slices, dims.indices, what.indices.shape.rank)


def slices_from_operand(sharding: SingleSharding, what: Indexed) -> SingleSharding | None:
    """Return the sharding of the slices from the operand's dimensions that pass through, or None if it divides none."""
    dims = what.passthrough()
    return _along(sharding, dims.operand, dims.slices, what.slices.rank)


def operand_from_slices(sharding: SingleSharding, what: Indexed) -> SingleSharding | None:
    """Return the operand's sharding from the slices' dimensions that pass through, or None if it divides none."""
    if sharding.tiles is None:
        return sharding
    dims = what.passthrough()
    return _along(sharding, dims.slices, dims.operand, what.operand.shape.rank)


def parallel_sharding(sharding: SingleSharding, what: Indexed, to_operand: bool) -> SingleSharding | None:
    """Move a sharding along batching and parallel dimensions, from slices to operand or back; None if the op has none."""
    if sharding.tiles is None:
        return sharding
    found = [dims for dims in (what.batching(), what.parallel()) if dims is not None]
    if not found:
        return None
    operand = [d for dims in found for d in dims.operand]
    slices = [d for dims in found for d in dims.slices]
    if to_operand:
        return along_dims(sharding, slices, operand, what.operand.shape.rank)
    return along_dims(sharding, operand, slices, what.slices.rank)


def operand_from_result(sharding: SingleSharding, what: Indexed) -> SingleSharding | None:
    """Return the sharding of a gather's operand that its result suggests: parallel dimensions first, then those that pass."""
    return _joined(parallel_sharding(sharding, what, to_operand=True), operand_from_slices(sharding, what))


def updates_from_result(sharding: SingleSharding, what: Indexed) -> SingleSharding | None:
    """Return the sharding of a scatter's updates that its result suggests."""
    return _joined(parallel_sharding(sharding, what, to_operand=False), slices_from_operand(sharding, what))


def _joined(parallel: SingleSharding | None, passing: SingleSharding | None) -> SingleSharding | None:
    if passing is None or parallel is None:
        return parallel if passing is None else passing
    for old, new in ((parallel, passing), (passing, parallel)):
        better, joined = merge(old, new, may_combine=True)
        if better:
            return elements_of(joined)[0]
    return parallel
