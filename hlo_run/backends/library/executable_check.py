"""Checks of an executable from a file: its arrays fit their buffers, and the arrays of a library's thunk fit each other.

`artifact.file.load` checks types and names before. An executable that was compiled in this process needs none of these checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

from hlo_run.artifact import (
    ALL_REDUCES,
    ArraySpec,
    ArrayTree,
    BufferAllocation,
    CollectiveThunk,
    CountingOperand,
    CustomCallThunk,
    Executable,
    InfeedThunk,
    KernelThunk,
    LibraryWork,
    OutfeedThunk,
    RecvThunk,
    RngSeedThunk,
    SendThunk,
    SortOrder,
    SortThunk,
    Thunk,
    every_thunk,
    tree_leaves,
)
from hlo_run.backends.library.thunk_rules import fits, library_problem, sort_problem
from hlo_run.backends.literals import size_bytes
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloComputation
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape

_SIZE_BYTES = 4
_ELEMENTWISE = ALL_REDUCES | {"kCollectiveBroadcast"}
_BITWISE = frozenset({"and", "or", "xor"})
_REDUCTIONS = _BITWISE | {"add", "multiply", "maximum", "minimum"}


def check_arrays(program: Executable, file: str) -> None:
    """Raise UsageError if an array does not fit its buffer, or the arrays of a thunk do not fit each other."""
    for problem in _problems(program):
        raise UsageError(f"'{file}' is not a valid executable: {problem}", hint="compile the module again")


def check_signature(program: Executable, entry: HloComputation, file: str) -> None:
    """Raise UsageError unless parameters and result have the shapes of `entry`, the module before compilation."""
    shapes = [parameter.shape for parameter in entry.parameters]
    is_alike = len(shapes) == len(program.parameters) and _is_of(entry.root.shape, program.result)
    if not is_alike or not all(map(_is_of, shapes, program.parameters)):
        raise UsageError(f"'{file}' is not a valid executable: its kernels and its module have different parameters or results")


def _is_of(shape: Shape, tree: ArrayTree) -> bool:
    if isinstance(tree, ArraySpec):
        dynamic = tree.dynamic if any(tree.dynamic) else ()
        own = shape.dynamic_dims if any(shape.dynamic_dims) else ()
        return (shape.element_type, shape.dims, own) == (tree.dtype, tree.dims, dynamic)
    parts = shape.tuple_shapes if shape.is_tuple else ()
    return not shape.is_array and len(parts) == len(tree) and all(map(_is_of, parts, tree))


def _problems(program: Executable) -> Iterator[str]:
    for allocation in program.allocations:
        if not _constant_fits(allocation):
            yield f"the constant of allocation {allocation.index} does not fit it"
    for tree in (*program.parameters, program.result):
        yield from (f"{spec.dtype}{list(spec.dims)} is not an array" for spec in tree_leaves(tree) if not _is_array(spec))
    sent: dict[int, set[tuple[int, ...]]] = {}
    for thunk in every_thunk(program.thunks):
        wrong = next((spec for spec in _arrays(thunk) if not _is_array(spec)), None)
        problem = f"{wrong.dtype}{list(wrong.dims)}, which is not an array" if wrong is not None else _problem(thunk)
        if problem:
            yield f"thunk {thunk.name} has {problem}"
        if isinstance(thunk, SendThunk | RecvThunk):
            tree = thunk.source if isinstance(thunk, SendThunk) else thunk.result
            sent.setdefault(thunk.channel, set()).add(tuple(leaf.slice.size_bytes for leaf in tree_leaves(tree)))
    yield from (f"the messages on channel {channel} have several sizes" for channel, sizes in sent.items() if len(sizes) > 1)


def _is_array(spec: ArraySpec) -> bool:
    """True if type, dimensions and layout are valid, and the slice has the array's size."""
    rank = len(spec.dims)
    if not _is_dense(spec.dtype, spec.dims, spec.minor_to_major) or len(spec.dynamic) not in (0, rank):
        return False
    sizes = _SIZE_BYTES * rank if any(spec.dynamic) else 0
    return spec.slice.size_bytes == size_bytes(spec.dtype, spec.dims) + sizes


def _is_dense(dtype: str, dims: Sequence[int], minor_to_major: Sequence[int]) -> bool:
    return dtype in DTYPES and all(size >= 0 for size in dims) and sorted(minor_to_major) == list(range(len(dims)))


def _constant_fits(allocation: BufferAllocation) -> bool:
    constant = allocation.constant
    if constant is None:
        return True
    if not _is_dense(constant.dtype, constant.dims, constant.minor_to_major):
        return False
    items = math.prod(constant.dims) * DTYPES[constant.dtype].numpy.itemsize
    return len(constant.items) == items and size_bytes(constant.dtype, constant.dims) <= allocation.size_bytes


def _arrays(thunk: Thunk) -> Iterator[ArraySpec]:
    """Yield the arrays in the fields of a thunk."""
    match thunk:
        case KernelThunk(sort=SortOrder() as order):
            yield from order.results
            yield from (operand for operand in order.operands if isinstance(operand, ArraySpec))
        case LibraryWork() | SortThunk() | CollectiveThunk() | CustomCallThunk() | RngSeedThunk():
            for name in thunk.__struct_fields__:
                yield from _leaves(getattr(thunk, name))
        case InfeedThunk() | OutfeedThunk() | SendThunk() | RecvThunk():
            tree = thunk.source if isinstance(thunk, OutfeedThunk | SendThunk) else thunk.result
            yield from tree_leaves(tree)
        case _:
            pass


def _leaves(value: object) -> Iterator[ArraySpec]:
    if isinstance(value, ArraySpec):
        yield value
    elif isinstance(value, tuple):
        for part in cast("tuple[object, ...]", value):
            yield from _leaves(part)


def _problem(thunk: Thunk) -> str:
    """Return why the arrays of a thunk do not fit each other; empty if they do."""
    match thunk:
        case KernelThunk(sort=SortOrder() as order):
            return _order_problem(order)
        case SortThunk():
            is_sorted = bool(thunk.operands) and all(fits(spec, thunk.operands[0].dims) and spec.dims for spec in thunk.operands)
            return "" if is_sorted and _are_alike(thunk.operands, thunk.results) else "operands and results that do not fit"
        case CollectiveThunk():
            return _collective_problem(thunk)
        case LibraryWork():
            return library_problem(thunk)
        case _:
            return ""


def _are_alike(some: Sequence[ArraySpec], others: Sequence[ArraySpec]) -> bool:
    return [(spec.dtype, spec.dims) for spec in some] == [(spec.dtype, spec.dims) for spec in others]


def _order_problem(order: SortOrder) -> str:
    dims = order.results[0].dims
    for operand, result in zip(order.operands, order.results, strict=True):
        if operand.dtype != result.dtype or not operand.dims == result.dims == dims or operand.dtype not in DTYPES:
            return "a sort of arrays that do not fit each other"
        if isinstance(operand, CountingOperand) and not 0 <= operand.dim < len(dims):
            return "a sort of a counter along no dimension"
    return sort_problem(order) if order.dim < len(dims) else "a sort along no dimension"


def _collective_problem(thunk: CollectiveThunk) -> str:
    unlike = "operands and results that do not fit"
    operands, results, dim = thunk.operands, thunk.results, thunk.dim
    if thunk.kind in ALL_REDUCES | {"kReduceScatter"}:
        if thunk.reduction not in _REDUCTIONS:
            return f"reduction '{thunk.reduction}', which is unknown"
        kinds = {DTYPES[spec.dtype].kind for spec in operands}
        if thunk.reduction in _BITWISE and kinds & {"float", "complex"}:
            return f"reduction '{thunk.reduction}' of floats"
    if thunk.kind in _ELEMENTWISE or (thunk.kind == "kCollectivePermute" and not thunk.slice_sizes):
        return "" if _are_alike(operands, results) else unlike
    if thunk.kind in ("kReduceScatter", "kAllGather"):
        whole, pieces = (operands, results) if thunk.kind == "kReduceScatter" else (results, operands)
        is_split = len(whole) == len(pieces) and all(_is_piece(*pair, thunk) for pair in zip(whole, pieces, strict=True))
        return "" if is_split else unlike
    if thunk.kind == "kAllToAll":
        if dim < 0:
            counts = {len(group) for group in thunk.groups} or {len(operands)}
            same = len({(spec.dtype, spec.dims) for spec in (*operands, *results)}) == 1
            return "" if same and counts == {len(operands)} and len(results) == len(operands) else unlike
        one = len(operands) == len(results) == 1 and _are_alike(operands, results)
        return "" if one and dim < len(operands[0].dims) and _divides(thunk, operands[0].dims[dim]) else unlike
    if thunk.kind == "kRaggedAllToAll":
        return "" if _is_ragged(operands, results) else unlike
    return "" if _has_slices(thunk) else unlike


def _divides(thunk: CollectiveThunk, size: int) -> bool:
    counts = {len(group) for group in thunk.groups}
    return len(counts) <= 1 and all(count and size % count == 0 for count in counts)


def _is_piece(whole: ArraySpec, piece: ArraySpec, thunk: CollectiveThunk) -> bool:
    dim = thunk.dim
    if whole.dtype != piece.dtype or not 0 <= dim < len(whole.dims) == len(piece.dims):
        return False
    others = whole.dims[:dim] + whole.dims[dim + 1 :] == piece.dims[:dim] + piece.dims[dim + 1 :]
    counts = {len(group) for group in thunk.groups} or {whole.dims[dim] // max(piece.dims[dim], 1)}
    return others and len(counts) == 1 and all(piece.dims[dim] * count == whole.dims[dim] for count in counts)


def _is_ragged(operands: Sequence[ArraySpec], results: Sequence[ArraySpec]) -> bool:
    if len(operands) != 6 or len(results) != 1 or not _are_alike(operands[1:2], results):
        return False
    data, output, *numbers = operands
    rows = bool(data.dims) and bool(output.dims) and data.dims[1:] == output.dims[1:] and data.dtype == output.dtype
    return rows and all(DTYPES[spec.dtype].is_integer and spec.dims == numbers[0].dims for spec in numbers)


def _has_slices(thunk: CollectiveThunk) -> bool:
    """Check a permutation with slices: inputs, outputs, then the scalars that tell the starts in both."""
    sizes = thunk.slice_sizes
    count, starts = len(sizes), 2 * sum(map(len, sizes))
    operands = thunk.operands
    if len(operands) != 2 * count + starts or not _are_alike(operands[count : 2 * count], thunk.results):
        return False
    scalars = all(not spec.dims and DTYPES[spec.dtype].is_integer for spec in operands[2 * count :])
    arrays = zip(sizes, operands[:count], thunk.results, strict=True)
    return scalars and all(
        len(each) == len(source.dims) == len(result.dims) and source.dtype == result.dtype and min(each, default=0) >= 0
        for each, source, result in arrays
    )
