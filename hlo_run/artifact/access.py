"""Lists the buffer slices that a thunk reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, assert_never

from msgspec import Struct

from hlo_run.artifact.buffers import ArraySpec, ArrayTree, BufferSlice
from hlo_run.artifact.collective_thunks import CollectiveThunk
from hlo_run.artifact.executable import Executable
from hlo_run.artifact.library_thunks import (
    CholeskyThunk,
    ConvolutionThunk,
    FftThunk,
    GemmThunk,
    LibraryThunk,
    ResizeThunk,
    ScanThunk,
    SelectKThunk,
    TriangularSolveThunk,
)
from hlo_run.artifact.thunks import (
    AsyncDoneThunk,
    AsyncStartThunk,
    CommandBufferThunk,
    ConditionalThunk,
    CopyThunk,
    CustomCallThunk,
    InfeedThunk,
    KernelThunk,
    MemsetThunk,
    OutfeedThunk,
    RecvThunk,
    RngSeedThunk,
    RngStateThunk,
    SendThunk,
    SequentialThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    SortThunk,
    Thunk,
    WhileThunk,
    nested_sequences,
)


class Accesses(Struct, frozen=True):
    """Slices that are read and slices that are written. A slice that is updated in place is in both."""

    reads: tuple[BufferSlice, ...] = ()
    writes: tuple[BufferSlice, ...] = ()


def accesses(thunk: Thunk) -> Accesses:
    """Return the slices that a thunk and the thunks inside it read and write."""
    own = _own(thunk)
    if isinstance(thunk, SlicedProductThunk):
        return own
    inner = [accesses(other) for sequence in nested_sequences(thunk) for other in sequence]
    if not inner:
        return own
    reads, writes = list(own.reads), list(own.writes)
    for found in inner:
        reads += found.reads
        writes += found.writes
    return Accesses(tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes)))


def _own(thunk: Thunk) -> Accesses:
    match thunk:
        case KernelThunk():
            # An operand that is updated in place counts only as written: KernelArgument does not record reads.
            return Accesses(
                tuple(a.slice for a in thunk.arguments if not a.written), tuple(a.slice for a in thunk.arguments if a.written)
            )
        case CopyThunk() | SliceCopyThunk():
            return Accesses((thunk.source,), (thunk.destination,))
        case MemsetThunk():
            return Accesses((), (thunk.destination,))
        case RngStateThunk():
            return Accesses((), (thunk.result,))
        case WhileThunk():
            return Accesses((thunk.predicate,), ())
        case ConditionalThunk():
            return Accesses((thunk.selector,), ())
        case SlicedProductThunk():
            return _accesses_of_product(thunk)
        case SequentialThunk() | CommandBufferThunk() | AsyncStartThunk() | AsyncDoneThunk():
            return Accesses()
        case _:
            sources, results = _arrays(thunk)
            return Accesses(_slices(sources), _slices(results))


def _accesses_of_product(thunk: SlicedProductThunk) -> Accesses:
    """Return the whole arrays in which parts are read or written. The room is read, as workspaces count as unwritten."""
    inner = _own(thunk.product)
    reads, writes = list(inner.reads), list(inner.writes)
    if thunk.room is not None:
        reads.append(thunk.room)
        writes.remove(thunk.room)
    for part in thunk.moving:
        (writes if part.field == "result" else reads).append(part.whole)
    return Accesses(tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes)))


_WithArrays: TypeAlias = (
    LibraryThunk
    | SortThunk
    | RngSeedThunk
    | CustomCallThunk
    | CollectiveThunk
    | InfeedThunk
    | OutfeedThunk
    | SendThunk
    | RecvThunk
)


def _arrays(thunk: _WithArrays) -> tuple[Iterable[ArrayTree | None], Iterable[ArrayTree | None]]:
    match thunk:
        case GemmThunk():
            read = (thunk.lhs, thunk.rhs, thunk.addend, thunk.bias, *thunk.scales, thunk.result_scale)
            return read, (thunk.result, thunk.auxiliary, thunk.largest)
        case ConvolutionThunk():
            arrays = {"backward-input": thunk.source, "backward-filter": thunk.weights, "forward": thunk.result}
            target = arrays.pop(thunk.direction)
            return (*arrays.values(), thunk.bias, thunk.side), (target,)
        case FftThunk() | CholeskyThunk() | ScanThunk():
            return (thunk.source,), (thunk.result,)
        case TriangularSolveThunk():
            return (thunk.matrix, thunk.right), (thunk.result,)
        case ResizeThunk():
            sizes, none = thunk.sizes, ()
            read, written = (none, sizes) if thunk.is_padding else (sizes, none)
            return (thunk.source, *read), (thunk.result, *written)
        case SelectKThunk():
            return (thunk.source,), (thunk.values, thunk.indices)
        case SortThunk() | CollectiveThunk():
            return thunk.operands, thunk.results
        case CustomCallThunk():
            return thunk.operands, (thunk.result,)
        case InfeedThunk() | RecvThunk() | RngSeedThunk():
            return (), (thunk.result,)
        case OutfeedThunk() | SendThunk():
            return (thunk.source,), ()
        case _:
            assert_never(thunk)


def _slices(trees: Iterable[ArrayTree | None]) -> tuple[BufferSlice, ...]:
    return tuple(piece for tree in trees if tree is not None for piece in tree_slices(tree))


def tree_leaves(tree: ArrayTree) -> Iterator[ArraySpec]:
    """Yield the arrays of a value, tuples depth first."""
    if isinstance(tree, ArraySpec):
        yield tree
        return
    for part in tree:
        yield from tree_leaves(part)


def tree_slices(tree: ArrayTree) -> Iterator[BufferSlice]:
    """Yield the slices of a value's arrays, tuples depth first."""
    return (leaf.slice for leaf in tree_leaves(tree))


def used_allocations(executable: Executable) -> frozenset[int]:
    """Return the indices of the allocations that a thunk accesses, or that hold a parameter or the result.

    The other allocations are workspaces: memory that is planned for libraries, which no thunk names.
    """
    found = {piece.allocation for tree in (*executable.parameters, executable.result) for piece in tree_slices(tree)}
    for thunk in executable.thunks:
        touched = accesses(thunk)
        found.update(piece.allocation for piece in (*touched.reads, *touched.writes))
    return frozenset(found)
