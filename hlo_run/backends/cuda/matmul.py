"""Matrix products by cuBLASLt: plan the call of a `GemmThunk` and run it.

    d = scale_d * epilogue(alpha * scale_a * scale_b * op(a) . op(b) + beta * c + bias)      all column-major

A row-major product is computed as the product of the transposed operands in swapped order. cuBLASLt adds the bias to every
column of d: along the innermost dimension of the result. Only f8 operands have scales, and only an f8 d has a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from hlo_run.artifact import ArraySpec, BufferSlice, GemmThunk
from hlo_run.backends.cuda.matrices import Axis, Stored, merged, stored

Address = Callable[[BufferSlice], int]

# Type of both operands to: types of the result, computation type, type of alpha and beta.
_TYPES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "f16": (("f16", "f32"), "32F", "f32"),
    "bf16": (("bf16", "f32"), "32F", "f32"),
    "f32": (("f32",), "32F", "f32"),
    "f64": (("f64",), "64F", "f64"),
    "c64": (("c64",), "32F", "c64"),
    "c128": (("c128",), "64F", "c128"),
    "s8": (("s32",), "32I", "s32"),
}
_F8 = ("f8e4m3fn", "f8e5m2")
_F8_RESULTS = ("bf16", "f16", "f32", "f8e4m3fn", "f8e5m2")
# The types of bias and addend of an f8 product, by the type of the result.
_F8_BIASES = {"bf16": ("bf16",), "f16": ("f16",), "f32": ("bf16",), "f8e4m3fn": ("bf16", "f16"), "f8e5m2": ("bf16", "f16")}
_F8_ADDENDS = _F8_BIASES | {"f32": ("f32",)}
# XLA's epilogue names to cuBLASLt's.
_EPILOGUES = {
    "DEFAULT": "DEFAULT",
    "BIAS": "BIAS",
    "RELU": "RELU",
    "GELU": "GELU",
    "BIAS_RELU": "RELU_BIAS",
    "BIAS_GELU": "GELU_BIAS",
    "GELU_AUX": "GELU_AUX",
    "BIAS_GELU_AUX": "GELU_AUX_BIAS",
}
# HLO types to CUDA's (`cudaDataType`).
CUDA_TYPES = {
    "f16": "CUDA_R_16F",
    "bf16": "CUDA_R_16BF",
    "f32": "CUDA_R_32F",
    "f64": "CUDA_R_64F",
    "c64": "CUDA_C_32F",
    "c128": "CUDA_C_64F",
    "s8": "CUDA_R_8I",
    "s32": "CUDA_R_32I",
    "f8e4m3fn": "CUDA_R_8F_E4M3",
    "f8e5m2": "CUDA_R_8F_E5M2",
}
_SCALARS = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128, "s32": np.int32}


class Operand(Struct, frozen=True):
    """A matrix of the call: HLO type, slice and storage."""

    dtype: str
    place: BufferSlice
    matrix: Stored


class MatmulPlan(Struct, frozen=True):
    """One call. `compute` and `epilogue` are cuBLASLt's names, `scalar` is the HLO type of alpha and beta."""

    a: Operand
    b: Operand
    c: Operand
    d: Operand
    compute: str
    scalar: str
    alpha: complex
    beta: float
    epilogue: str
    bias: BufferSlice | None = None
    auxiliary: Operand | None = None
    scale_a: BufferSlice | None = None
    scale_b: BufferSlice | None = None
    scale_d: BufferSlice | None = None
    largest_d: BufferSlice | None = None
    bias_dtype: str = ""


def plan_matmul(thunk: GemmThunk) -> MatmulPlan | str:
    """Return the cuBLASLt call of a product, or the reason that cuBLASLt cannot run it."""
    if reason := _not_taken(thunk):
        return reason
    numbers, left, right, result = thunk.numbers, thunk.lhs, thunk.rhs, thunk.result
    rows = [d for d in range(len(left.dims)) if d not in (*numbers.lhs_batch, *numbers.lhs_contracting)]
    columns = [d for d in range(len(right.dims)) if d not in (*numbers.rhs_batch, *numbers.rhs_contracting)]
    batch_rank, row_rank = len(numbers.lhs_batch or numbers.rhs_batch), len(rows)
    lhs_axes = _axes(left, numbers.lhs_batch, rows, numbers.lhs_contracting)
    rhs_axes = _axes(right, numbers.rhs_batch, numbers.rhs_contracting, columns)
    # A batch stride of 0 reads the same matrix for the whole batch.
    if not numbers.lhs_batch:
        lhs_axes[0] = Axis(prod(right.dims[d] for d in numbers.rhs_batch), 0)
    elif not numbers.rhs_batch:
        rhs_axes[0] = Axis(prod(left.dims[d] for d in numbers.lhs_batch), 0)
    out = range(len(result.dims))
    parts = (out[:batch_rank], out[batch_rank : batch_rank + row_rank], out[batch_rank + row_rank :])
    targets = [_axes(spec, *parts) for spec in (result, thunk.addend, thunk.auxiliary) if spec is not None]
    # A row-major result is that of the turned product, (l . r)^T = r^T . l^T. The matrices are stored by columns, along which
    # the library adds the bias.
    for is_turned in (True, False):
        a, b = (_turned(rhs_axes), _turned(lhs_axes)) if is_turned else (lhs_axes, rhs_axes)
        found = [_stored(axes) for axes in (a, b, *((_turned(t) if is_turned else t) for t in targets))]
        if any(matrix is None for matrix in found) or any(matrix.is_transposed for matrix in found[2:] if matrix is not None):
            continue
        matrices = [matrix for matrix in found if matrix is not None]
        if thunk.bias is None or thunk.bias.dims == (matrices[2].rows,):
            return _plan(thunk, matrices, is_turned)
    return "the layout of its arrays does not form matrices"


def _not_taken(thunk: GemmThunk) -> str:
    left, right, result = thunk.lhs.dtype, thunk.rhs.dtype, thunk.result.dtype
    if not all(prod(spec.dims) for spec in (thunk.lhs, thunk.rhs, thunk.result)):
        return "an array of the product has no elements"
    is_f8 = left in _F8 and right in _F8 and (left, right) != ("f8e5m2", "f8e5m2")
    known = _F8_RESULTS if is_f8 else _TYPES.get(left, ((),))[0] if left == right else ()
    if result not in known:
        return f"cuBLASLt has no product of {left} and {right} in {result}"
    if reason := _wrong_scales(thunk, is_f8):
        return reason
    if thunk.epilogue not in _EPILOGUES or ("BIAS" in thunk.epilogue) != (thunk.bias is not None):
        return f"cuBLASLt has no epilogue {thunk.epilogue}"
    if ("AUX" in thunk.epilogue) != (thunk.auxiliary is not None):
        return f"epilogue {thunk.epilogue} does not match the auxiliary result"
    if reason := _wrong_types(thunk, is_f8):
        return reason
    row = tuple(thunk.result.dims[dim] for dim in thunk.result.minor_to_major[:1])
    if thunk.bias is not None and (not row or thunk.bias.dims != row):
        return "the bias is not as long as the innermost dimension"
    if thunk.beta and (thunk.addend is None or thunk.addend.dims != thunk.result.dims):
        return "the addend does not have the result's shape"
    if thunk.alpha[1] and not result.startswith("c"):
        return "alpha is complex"
    is_whole = float(thunk.alpha[0]).is_integer() and float(thunk.beta).is_integer()
    return "" if result != "s32" or is_whole else "alpha and beta are not integers"


def _wrong_scales(thunk: GemmThunk, is_f8: bool) -> str:
    others = [spec for spec in (thunk.result_scale, thunk.largest) if spec is not None]
    if not thunk.scales and not others:
        return ""
    if not is_f8 or len(thunk.scales) != 2 or any(spec.dtype != "f32" for spec in (*thunk.scales, *others)):
        return "cuBLASLt scales two operands in f8 only"
    return "cuBLASLt scales results in f8 only" if others and thunk.result.dtype not in _F8 else ""


def _wrong_types(thunk: GemmThunk, is_f8: bool) -> str:
    result = thunk.result.dtype
    biases, addends = (_F8_BIASES[result], _F8_ADDENDS[result]) if is_f8 else ((result,), (result,))
    for spec, known in ((thunk.addend, addends), (thunk.bias, biases), (thunk.auxiliary, (result,))):
        if spec is not None and spec.dtype not in known:
            return f"addend, bias or auxiliary result is not {' or '.join(known)}"
    if is_f8 and thunk.auxiliary is not None:
        return "cuBLASLt has no auxiliary result in f8"
    return ""


def _axes(spec: ArraySpec, *groups: Any) -> list[Axis | None]:
    return [merged(spec, tuple(group)) for group in groups]


def _turned(axes: list[Axis | None]) -> list[Axis | None]:
    batch, rows, columns = axes
    return [batch, columns, rows]


def _stored(axes: list[Axis | None]) -> Stored | None:
    batch, rows, columns = axes
    return None if batch is None or rows is None or columns is None else stored(rows, columns, batch)


def _plan(thunk: GemmThunk, found: list[Stored], is_turned: bool) -> MatmulPlan:
    first, second = (thunk.rhs, thunk.lhs) if is_turned else (thunk.lhs, thunk.rhs)
    a = Operand(first.dtype, first.slice, found[0])
    b = Operand(second.dtype, second.slice, found[1])
    d = Operand(thunk.result.dtype, thunk.result.slice, found[2])
    rest = iter(found[3:])
    c = _no_addend(thunk, d) if thunk.addend is None else Operand(thunk.addend.dtype, thunk.addend.slice, next(rest))
    auxiliary = None if thunk.auxiliary is None else Operand(thunk.auxiliary.dtype, thunk.auxiliary.slice, next(rest))
    _, compute, scalar = _TYPES.get(a.dtype, ((), "32F", "f32"))
    scales = tuple(scale.slice for scale in thunk.scales)
    scale_a, scale_b = (None, None) if not scales else (scales[1], scales[0]) if is_turned else scales
    bias = None if thunk.bias is None else thunk.bias.slice
    alpha, epilogue = complex(*thunk.alpha), _EPILOGUES[thunk.epilogue]
    beta = thunk.beta if thunk.addend is not None else 0.0
    scale_d = None if thunk.result_scale is None else thunk.result_scale.slice
    largest_d = None if thunk.largest is None else thunk.largest.slice
    kind = "" if thunk.bias is None or thunk.bias.dtype == d.dtype else thunk.bias.dtype
    tail = (bias, auxiliary, scale_a, scale_b, scale_d, largest_d, kind)
    return MatmulPlan(a, b, c, d, compute, scalar, alpha, beta, epilogue, *tail)


def _no_addend(thunk: GemmThunk, d: Operand) -> Operand:
    """Return the operand c of a call without addend: d itself, with a type that c may have."""
    if d.dtype not in _F8:
        return d
    return Operand("bf16" if thunk.bias is None else thunk.bias.dtype, d.place, d.matrix)


class CublasLt:
    """An open cuBLASLt. `scratch` returns device memory of a size, valid during one call."""

    def __init__(self, lt: Any, compute_types: Any, data_types: Any, scratch: Callable[[int], int], workspace_bytes: int) -> None:
        self._lt, self._compute_types, self._data_types = lt, compute_types, data_types
        self._scratch, self._workspace_bytes = scratch, workspace_bytes
        self._handle: int = lt.create()

    def close(self) -> None:
        """Release the handle."""
        self._lt.destroy(self._handle)

    def run(self, plan: MatmulPlan, address: Address, stream: int) -> bool:
        """Multiply on `stream`. Returns False if the library has no algorithm for it. Raises the errors of the binding."""
        lt = self._lt
        with self._descriptor(plan, address) as descriptor, self._layouts(plan) as layouts:
            algorithm = self._algorithm(descriptor, layouts)
            if algorithm is None:
                return False
            alpha, beta = (self._scalar(plan, value) for value in (plan.alpha, plan.beta))
            a, b, c, d = (address(operand.place) for operand in (plan.a, plan.b, plan.c, plan.d))
            pairs = (alpha.ctypes.data, a, layouts[0], b, layouts[1], beta.ctypes.data, c, layouts[2], d, layouts[3])
            size = int(algorithm["workspace_size"][0])
            workspace = self._scratch(size) if size else 0
            lt.matmul(self._handle, descriptor, *pairs, algorithm.ctypes.data, workspace, size, stream)
        return True

    def _algorithm(self, descriptor: int, layouts: list[int]) -> Any:
        """Return the heuristic's best record, which begins with the algorithm itself; None if the library has none."""
        lt = self._lt
        results, count = np.zeros(1, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        preference = lt.matmul_preference_create()
        try:
            limit = np.array(self._workspace_bytes, np.uint64)
            attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
            lt.matmul_preference_set_attribute(preference, attribute, limit.ctypes.data, limit.nbytes)
            places = (results.ctypes.data, count.ctypes.data)
            try:
                lt.matmul_algo_get_heuristic(self._handle, descriptor, *layouts, preference, 1, *places)
            except lt.cuBLASLtError:
                return None
        finally:
            lt.matmul_preference_destroy(preference)
        return results if count[0] else None

    @staticmethod
    def _scalar(plan: MatmulPlan, value: complex) -> Any:
        kind = _SCALARS[plan.scalar]
        return np.array(value if plan.scalar.startswith("c") else complex(value).real).astype(kind)

    @contextmanager
    def _descriptor(self, plan: MatmulPlan, address: Address) -> Generator[int]:
        lt = self._lt
        compute = getattr(self._compute_types, f"COMPUTE_{plan.compute}")
        descriptor = lt.matmul_desc_create(compute, self._data_type(plan.scalar))
        try:
            for name, value in self._attributes(plan, address).items():
                attribute = getattr(lt.MatmulDescAttribute, name)
                data = np.array(value, lt.get_matmul_desc_attribute_dtype(attribute))
                lt.matmul_desc_set_attribute(descriptor, attribute, data.ctypes.data, data.nbytes)
            yield descriptor
        finally:
            lt.matmul_desc_destroy(descriptor)

    def _attributes(self, plan: MatmulPlan, address: Address) -> dict[str, int]:
        found = {
            "TRANSA": int(plan.a.matrix.is_transposed),
            "TRANSB": int(plan.b.matrix.is_transposed),
            "EPILOGUE": int(getattr(self._lt.Epilogue, plan.epilogue)),
        }
        pointers = {
            "BIAS_POINTER": plan.bias,
            "A_SCALE_POINTER": plan.scale_a,
            "B_SCALE_POINTER": plan.scale_b,
            "D_SCALE_POINTER": plan.scale_d,
            "AMAX_D_POINTER": plan.largest_d,
        }
        found |= {name: address(place) for name, place in pointers.items() if place is not None}
        if plan.bias_dtype:
            found["BIAS_DATA_TYPE"] = self._data_type(plan.bias_dtype)
        if plan.auxiliary is not None:
            matrix = plan.auxiliary.matrix
            found |= {"EPILOGUE_AUX_POINTER": address(plan.auxiliary.place), "EPILOGUE_AUX_LD": matrix.leading}
            found |= {"EPILOGUE_AUX_BATCH_STRIDE": matrix.batch_stride} if matrix.batch > 1 else {}
        return found

    @contextmanager
    def _layouts(self, plan: MatmulPlan) -> Generator[list[int]]:
        lt, made = self._lt, list[int]()
        try:
            for operand in (plan.a, plan.b, plan.c, plan.d):
                matrix = operand.matrix
                layout = lt.matrix_layout_create(self._data_type(operand.dtype), matrix.rows, matrix.columns, matrix.leading)
                made.append(layout)
                batch = {"BATCH_COUNT": matrix.batch, "STRIDED_BATCH_OFFSET": matrix.batch_stride} if matrix.batch > 1 else {}
                for name, value in batch.items():
                    attribute = getattr(lt.MatrixLayoutAttribute, name)
                    data = np.array(value, lt.get_matrix_layout_attribute_dtype(attribute))
                    lt.matrix_layout_set_attribute(layout, attribute, data.ctypes.data, data.nbytes)
            yield made
        finally:
            for layout in made:
                lt.matrix_layout_destroy(layout)

    def _data_type(self, dtype: str) -> int:
        return int(getattr(self._data_types, CUDA_TYPES[dtype]))
