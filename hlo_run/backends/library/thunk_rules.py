"""The rules of libraries: which arrays and numbers fit each other in a library's thunk, as text of what does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never, cast

from hlo_run.artifact import (
    ArraySpec,
    CholeskyThunk,
    ConvolutionThunk,
    FftThunk,
    GemmThunk,
    LibraryThunk,
    LibraryWork,
    ResizeThunk,
    ScanThunk,
    SelectKThunk,
    SortOrder,
    TriangularSolveThunk,
    WindowSpec,
)
from hlo_run.backends.library.keyed_sort import can_evaluate
from hlo_run.hlo.values.dtype import DTYPES

_EPILOGUES = {f"{name}{aux}" for name in ("DEFAULT", "BIAS", "RELU", "GELU", "BIAS_RELU", "BIAS_GELU") for aux in ("", "_AUX")}
_SCALED = ("f8e4m3fn", "f8e5m2")
_FACTORIZED = ("f32", "f64", "c64", "c128")
_TRANSFORMED = {
    "FFT": ("complex", "complex"),
    "IFFT": ("complex", "complex"),
    "RFFT": ("float", "complex"),
    "IRFFT": ("complex", "float"),
}
_MOST_STEPS = 1 << 31


def library_problem(work: LibraryWork) -> str:
    """Return what does not fit in a library's thunk; empty if everything does."""
    thunk = cast("LibraryThunk", work)
    match thunk:
        case GemmThunk():
            return _product_problem(thunk) or _epilogue_problem(thunk)
        case ConvolutionThunk():
            return _convolution_problem(thunk)
        case FftThunk():
            return "" if _is_transform(thunk) else "arrays that do not fit its transform"
        case CholeskyThunk():
            same = thunk.source.dims == thunk.result.dims and thunk.source.dtype == thunk.result.dtype
            return "" if same and _are_matrices(thunk.source) else "matrices that do not fit each other"
        case TriangularSolveThunk():
            return "" if _is_solve(thunk) else "matrices that do not fit each other"
        case SelectKThunk():
            return "" if _is_selection(thunk) else "results that do not fit its source"
        case ScanThunk():
            return "" if _is_scan(thunk) else "arrays that do not fit its rows"
        case ResizeThunk():
            return "" if _is_resize(thunk) else "arrays that do not fit each other"
        case _:
            assert_never(thunk)


def sort_problem(order: SortOrder) -> str:
    """Try the keys of a sort on two elements, and return what does not fit; empty if everything does."""
    return "" if can_evaluate(order) else "a sort with a key that cannot be computed"


def fits(spec: ArraySpec, dims: Sequence[int]) -> bool:
    """True if the array has these dimensions."""
    return spec.dims == tuple(dims)


def _are_places(numbers: Sequence[int], rank: int) -> bool:
    """True for numbers of different dimensions."""
    return len(set(numbers)) == len(numbers) and all(0 <= number < rank for number in numbers)


def _sizes(spec: ArraySpec, numbers: Sequence[int]) -> list[int]:
    return [spec.dims[number] for number in numbers]


def _kind(spec: ArraySpec) -> str:
    return DTYPES[spec.dtype].kind


def _product_problem(thunk: GemmThunk) -> str:
    numbers, left, right = thunk.numbers, thunk.lhs, thunk.rhs
    places = (
        _are_places((*numbers.lhs_batch, *numbers.lhs_contracting), len(left.dims)),
        _are_places((*numbers.rhs_batch, *numbers.rhs_contracting), len(right.dims)),
    )
    if not all(places):
        return "dimension numbers that do not exist"
    batches = _sizes(left, numbers.lhs_batch), _sizes(right, numbers.rhs_batch)
    if all(batches) and batches[0] != batches[1]:
        return "batches of different sizes"
    if _sizes(left, numbers.lhs_contracting) != _sizes(right, numbers.rhs_contracting):
        return "operands that do not fit each other"
    free = [size for number, size in enumerate(left.dims) if number not in (*numbers.lhs_batch, *numbers.lhs_contracting)]
    free += [size for number, size in enumerate(right.dims) if number not in (*numbers.rhs_batch, *numbers.rhs_contracting)]
    if math.prod((batches[0] or batches[1]) + free) != math.prod(thunk.result.dims):
        return "a result of another size"
    if ("complex" in (_kind(left), _kind(right))) and _kind(thunk.result) != "complex":
        return "a real result of complex operands"
    return ""


def _epilogue_problem(thunk: GemmThunk) -> str:
    dims = thunk.result.dims
    row = tuple(dims[dim] for dim in thunk.result.minor_to_major[:1])
    if thunk.epilogue not in _EPILOGUES:
        return "an epilogue that is unknown"
    if any(spec is not None and spec.dims != dims for spec in (thunk.addend, thunk.auxiliary)):
        return "an addend or an auxiliary result of another size"
    bias = thunk.bias
    if bias is not None and not (not bias.dims or (len(bias.dims) == 1 and row and bias.dims <= row) or bias.dims == dims):
        return "a bias of another size"
    scalars = [spec for spec in (*thunk.scales, thunk.result_scale, thunk.largest) if spec is not None]
    if any(math.prod(spec.dims) != 1 or _kind(spec) != "float" for spec in scalars):
        return "a scale that is not a number"
    if thunk.result_scale is not None and thunk.result.dtype not in _SCALED:
        return "a scale of a result that has none"
    factors = (*thunk.alpha, thunk.beta)
    if _kind(thunk.result) in ("signed", "unsigned") and not all(float(x).is_integer() and abs(x) < _MOST_STEPS for x in factors):
        return "fractions as factors of integers"
    return ""


def _convolution_problem(thunk: ConvolutionThunk) -> str:
    rank = len(thunk.source.dims)
    arrays = (thunk.source, thunk.weights, thunk.result)
    numbers = (thunk.numbers.source, thunk.numbers.kernel, thunk.numbers.result)
    if rank < 2 or any(len(spec.dims) != rank for spec in arrays) or len(thunk.window) != rank - 2:
        return "arrays of different ranks"
    if any(sorted(each) != list(range(rank)) for each in numbers):
        return "dimension numbers that do not exist"
    if thunk.feature_groups < 1 or thunk.batch_groups < 1 or not all(map(_is_window, thunk.window)):
        return "a window or groups that are not positive"
    batch, deep, *extents = _sizes(thunk.source, numbers[0])
    each, outputs, *taps = _sizes(thunk.weights, numbers[1])
    result_batch, features, *places = _sizes(thunk.result, numbers[2])
    groups, parts = thunk.feature_groups, thunk.batch_groups
    if deep != each * groups or outputs != features or outputs % groups or outputs % parts or batch != result_batch * parts:
        return "features or batches that do not fit"
    found = [_places(size, dim) for size, dim in zip(extents, thunk.window, strict=True)]
    if taps != [dim.size for dim in thunk.window] or found != places:
        return "a window that does not fit its arrays"
    if thunk.bias is not None and thunk.bias.dims != (features,):
        return "a bias of another size"
    if thunk.side is not None and thunk.side.dims != thunk.result.dims:
        return "a side input of another size"
    return "" if "complex" not in map(_kind, arrays) else "complex arrays"


def _is_window(dim: WindowSpec) -> bool:
    steps = (dim.stride, dim.base_dilation, dim.window_dilation)
    numbers = (dim.size, abs(dim.pad_low), abs(dim.pad_high), *steps)
    return dim.size >= 0 and min(steps) >= 1 and max(numbers) < _MOST_STEPS


def _places(size: int, dim: WindowSpec) -> int:
    """Return the number of places of a window along a dimension, as XLA's shape rule does."""
    padded = ((size - 1) * dim.base_dilation + 1 if size else 0) + dim.pad_low + dim.pad_high
    reach = (dim.size - 1) * dim.window_dilation + 1 if dim.size else 0
    return (padded - reach) // dim.stride + 1 if padded >= reach and padded > 0 and dim.size else 0


def _is_transform(thunk: FftThunk) -> bool:
    lengths, source, result = thunk.lengths, thunk.source, thunk.result
    rank, count = len(source.dims), len(lengths)
    if not 1 <= count <= 3 or rank < count or min(lengths) < 1 or (_kind(source), _kind(result)) != _TRANSFORMED[thunk.type]:
        return False
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    last = {"RFFT": (lengths, half), "IRFFT": (half, lengths)}.get(thunk.type, (lengths, lengths))
    is_same = source.dims[: rank - count] == result.dims[: rank - count]
    return is_same and len(result.dims) == rank and (source.dims[rank - count :], result.dims[rank - count :]) == last


def _are_matrices(spec: ArraySpec) -> bool:
    return len(spec.dims) >= 2 and spec.dims[-1] == spec.dims[-2] and spec.dtype in _FACTORIZED


def _is_solve(thunk: TriangularSolveThunk) -> bool:
    matrix, right, result = thunk.matrix, thunk.right, thunk.result
    if not _are_matrices(matrix) or len(right.dims) != len(matrix.dims) or right.dims[:-2] != matrix.dims[:-2]:
        return False
    side = right.dims[-2] if thunk.left_side else right.dims[-1]
    return side == matrix.dims[-1] and (right.dims, right.dtype, right.dtype) == (result.dims, result.dtype, matrix.dtype)


def _is_selection(thunk: SelectKThunk) -> bool:
    source, values, indices = thunk.source, thunk.values, thunk.indices
    if not source.dims or values.dims != indices.dims or len(values.dims) != len(source.dims) or values.dtype != source.dtype:
        return False
    return values.dims[:-1] == source.dims[:-1] and values.dims[-1] <= source.dims[-1] and DTYPES[indices.dtype].is_integer


def _is_scan(thunk: ScanThunk) -> bool:
    source, result = thunk.source, thunk.result
    sizes = (thunk.vector, thunk.rows, thunk.columns)
    same = (source.dims, source.dtype) == (result.dims, result.dtype)
    number = DTYPES[source.dtype].is_integer or DTYPES[source.dtype].is_float
    return same and number and min(sizes) >= 0 and math.prod(sizes) == math.prod(source.dims)


def _is_resize(thunk: ResizeThunk) -> bool:
    source, result = thunk.source, thunk.result
    dynamic, static = (source, result) if thunk.is_padding else (result, source)
    if len(thunk.sizes) != len(source.dims) or any(spec.dims or spec.dtype != "s32" for spec in thunk.sizes):
        return False
    same = (source.dims, source.dtype) == (result.dims, result.dtype)
    return same and any(dynamic.dynamic) and not any(static.dynamic)
