"""`GemmThunk`: matrix products with cuBLAS's extras (alpha, beta, bias, activation, f8 scales)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from hlo_run.arrays import NumpyType
from hlo_run.artifact import ArraySpec, GemmThunk
from hlo_run.backends.library.arrays import Array, Bind, LibraryCall, run_all, sparing
from hlo_run.backends.library.blas import merged, product
from hlo_run.elementary import functions
from hlo_run.hlo.values.dtype import DTYPES, DType

_BindProduct: TypeAlias = "Callable[[Array, Array, Array], Callable[[], object]]"

_EXACT_IN_F32 = 24
# The largest finite values of the scaled 8-bit result types.
_LARGEST = {"f8e4m3fn": 448.0, "f8e5m2": 57344.0}
_EXACT_IN_F64 = 53


def gemm_call(thunk: GemmThunk) -> LibraryCall:
    """Return the call of a product. Everything that depends only on shapes is computed here, once."""
    optional = [spec for spec in (thunk.addend, thunk.bias, thunk.result_scale) if spec is not None]
    inputs = (thunk.lhs, thunk.rhs, *optional, *thunk.scales)
    outputs = (thunk.result, *(spec for spec in (thunk.auxiliary, thunk.largest) if spec is not None))
    bind = _bind_product(thunk)
    if _is_plain(thunk):
        return LibraryCall.prepared(inputs, outputs, sparing(lambda arrays, results: bind(arrays[0], arrays[1], results[0])))
    return LibraryCall.prepared(inputs, outputs, sparing(_with_extras(thunk, bind)))


def _is_plain(thunk: GemmThunk) -> bool:
    return (
        thunk.alpha == (1.0, 0.0)
        and not thunk.beta
        and not thunk.scales
        and thunk.result_scale is None
        and thunk.largest is None
        and thunk.epilogue == "DEFAULT"
        and DTYPES[thunk.result.dtype].numpy == _sum_type(thunk)
    )


def _sum_type(thunk: GemmThunk) -> NumpyType:
    """Return the type of the sums: at least f32; for integers, a type in which the sums are exact."""
    result, left, right = (DTYPES[spec.dtype] for spec in (thunk.result, thunk.lhs, thunk.rhs))
    if result.is_complex:
        return result.numpy
    if left.is_float:
        return np.dtype(np.float64 if "f64" in (result.name, left.name, right.name) else np.float32)
    bits = left.bits + right.bits + _depth(thunk).bit_length()
    if bits <= _EXACT_IN_F64:
        return np.dtype(np.float32 if bits <= _EXACT_IN_F32 else np.float64)
    return result.numpy if result.is_integer else np.dtype(np.int64)


def _depth(thunk: GemmThunk) -> int:
    return math.prod(thunk.lhs.dims[dim] for dim in thunk.numbers.lhs_contracting)


def _free(spec: ArraySpec, *taken: Sequence[int]) -> list[int]:
    used = {dim for dims in taken for dim in dims}
    return [dim for dim in range(len(spec.dims)) if dim not in used]


def _bind_product(thunk: GemmThunk) -> _BindProduct:
    """Return a binder (lhs, rhs, out) -> function. `out` has the sum type and the dimensions of the result."""
    numbers, kind = thunk.numbers, _sum_type(thunk)
    left_free = _free(thunk.lhs, numbers.lhs_batch, numbers.lhs_contracting)
    right_free = _free(thunk.rhs, numbers.rhs_batch, numbers.rhs_contracting)
    batch = [thunk.lhs.dims[dim] for dim in numbers.lhs_batch] or [thunk.rhs.dims[dim] for dim in numbers.rhs_batch]
    rows, columns = (
        math.prod(spec.dims[dim] for dim in free) for spec, free in ((thunk.lhs, left_free), (thunk.rhs, right_free))
    )
    stacked = (math.prod(batch), rows, columns)

    def bind(lhs: Array, rhs: Array, out: Array) -> Callable[[], object]:
        left, refresh_left = _operand(lhs, kind, numbers.lhs_batch, left_free, numbers.lhs_contracting)
        right, refresh_right = _operand(rhs, kind, numbers.rhs_batch, numbers.rhs_contracting, right_free)
        target = out.reshape(stacked)
        steps = [refresh_left, refresh_right]
        if np.may_share_memory(target, out):
            steps.append(product(left, right, target))
        else:
            apart = np.empty(stacked, kind)
            steps += [product(left, right, apart), partial(np.copyto, out, apart.reshape(out.shape))]
        needed = [step for step in steps if step is not None]
        return needed[0] if len(needed) == 1 else partial(run_all, needed)

    return bind


def _operand(array: Array, kind: NumpyType, *groups: Sequence[int]) -> tuple[Array, Callable[[], object] | None]:
    """Return the operand as matrices of the sum type, and the step that refreshes them if they are a copy."""
    if array.dtype == kind:
        seen = merged(array, *groups)
        if np.may_share_memory(seen, array):
            return seen, None
    wide = np.empty_like(array, kind)  # keeps the array's layout
    seen = merged(wide, *groups)
    if np.may_share_memory(seen, wide):
        return seen, partial(np.copyto, wide, array, "unsafe")
    ordered = array.transpose([dim for group in groups for dim in group])
    return seen, partial(np.copyto, seen.reshape(ordered.shape), ordered, "unsafe")


def _with_extras(thunk: GemmThunk, bind_product: _BindProduct) -> Bind:
    kind = _sum_type(thunk)
    result = DTYPES[thunk.result.dtype]
    real, imaginary = thunk.alpha
    factor = complex(real, imaginary) if result.is_complex else real

    def bind(arrays: Sequence[Array], results: Sequence[Array]) -> Callable[[], object]:
        total: Array = np.empty(thunk.result.dims, kind)
        multiply = bind_product(arrays[0], arrays[1], total)
        rest = list(arrays[2:])
        addend = rest.pop(0) if thunk.addend is not None else None
        bias = rest.pop(0) if thunk.bias is not None else None
        result_scale = rest.pop(0) if thunk.result_scale is not None else None

        def compute() -> None:
            multiply()
            value = total
            if factor != 1:
                value = value * value.dtype.type(factor)
            for scale in rest:
                value = value * scale.astype(value.dtype).reshape(())
            if addend is not None and thunk.beta:
                value = value + value.dtype.type(thunk.beta) * addend.astype(value.dtype)
            if bias is not None:
                value = _plus_bias(value, bias.astype(value.dtype), thunk.result)
            if thunk.auxiliary is not None:
                results[1][...] = _narrow(value, DTYPES[thunk.auxiliary.dtype])
            value = _activate(value, thunk.epilogue)
            if thunk.largest is not None:
                results[-1][...] = np.abs(value).max(initial=0)
            if result_scale is not None:
                value = _in_range(value * result_scale.astype(value.dtype).reshape(()), result)
            results[0][...] = _narrow(value, result)

        return compute

    return bind


def _plus_bias(value: Array, bias: Array, result: ArraySpec) -> Array:
    """Add a bias along the innermost dimension of the result. A shorter bias leaves the rest of it unchanged."""
    if bias.ndim != 1 or not value.ndim:
        return value + bias
    inner = result.minor_to_major[0]
    summed = value.copy()
    summed.swapaxes(inner, -1)[..., : len(bias)] += bias
    return summed


def _in_range(value: Array, dtype: DType) -> Array:
    """Clamp to the finite values of an 8-bit type; NaN stays NaN."""
    largest = value.dtype.type(_LARGEST[dtype.name])
    return np.clip(value, -largest, largest)


def _activate(value: Array, epilogue: str) -> Array:
    if "RELU" in epilogue:
        return np.maximum(value, 0)
    if "GELU" in epilogue:
        # cuBLASLt uses the tanh approximation of GELU.
        inner = math.sqrt(2 / math.pi) * (value + 0.044715 * value * value * value)
        return (0.5 * value * (1 + functions.tanh.native(inner))).astype(value.dtype)
    return value


def _narrow(value: Array, dtype: DType) -> Array:
    """Round to the result's type. Integer sums in a float type are exact; too large ones wrap."""
    if dtype.is_integer and value.dtype.kind == "f":
        return value.astype(np.int64).astype(dtype.numpy)
    return value.astype(dtype.numpy, copy=False)
