"""Fourier transforms by cuFFT: plan an `FftThunk` and run it. cuBLAS scales the inverse transforms afterwards."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from hlo_run.artifact import BufferSlice, FftThunk
from hlo_run.backends.cuda.matmul import Address

_MAX_RANK = 3
_FORWARD, _INVERSE = -1, 1
# (kind of transform, complex type of operand or result) to cuFFT's type.
_TYPES = {
    ("FFT", "c64"): "C2C",
    ("IFFT", "c64"): "C2C",
    ("RFFT", "c64"): "R2C",
    ("IRFFT", "c64"): "C2R",
    ("FFT", "c128"): "Z2Z",
    ("IFFT", "c128"): "Z2Z",
    ("RFFT", "c128"): "D2Z",
    ("IRFFT", "c128"): "Z2D",
}
# Type of the result to the cuBLAS routine that multiplies it by a real number, and that number's type.
_SCALES = {
    "f32": ("sscal", np.float32),
    "f64": ("dscal", np.float64),
    "c64": ("csscal", np.float32),
    "c128": ("zdscal", np.float64),
}


class FftPlan(Struct, frozen=True):
    """`batch` transforms over `lengths`. The transformed dimensions are `source_dims` before and `result_dims` after."""

    type: str
    lengths: tuple[int, ...]
    source_dims: tuple[int, ...]
    result_dims: tuple[int, ...]
    batch: int
    is_inverse: bool
    source: BufferSlice
    result: BufferSlice
    dtype: str
    """The HLO type of the result."""

    @property
    def destroys_source(self) -> bool:
        """True for transforms to real numbers: cuFFT overwrites their operand."""
        return self.type in ("C2R", "Z2D")


def plan_fft(thunk: FftThunk) -> FftPlan | str:
    """Return the plan of a transform, or the reason that cuFFT cannot run it."""
    source, result, rank = thunk.source, thunk.result, len(thunk.lengths)
    kind = _TYPES.get((thunk.type, source.dtype if thunk.type != "RFFT" else result.dtype))
    if kind is None or not 1 <= rank <= _MAX_RANK or not prod(source.dims) or not prod(result.dims):
        return f"cuFFT does not transform {source.dtype}{list(source.dims)} over {rank} dimensions"
    for spec in (source, result):
        if spec.minor_to_major != tuple(reversed(range(len(spec.dims)))):
            return "its arrays are not row-major"
    batch = prod(source.dims[:-rank])
    inner = source.dims[-rank:], result.dims[-rank:]
    places = source.slice, result.slice
    return FftPlan(kind, thunk.lengths, *inner, batch, thunk.type in ("IFFT", "IRFFT"), *places, result.dtype)


class CuFft:
    """An open cuFFT with a cache of plans. `memory` copies and provides scratch memory."""

    def __init__(self, cufft: Any, cublas: Any, cublas_handle: int, memory: Any) -> None:
        self._cufft, self._cublas, self._handle, self._memory = cufft, cublas, cublas_handle, memory
        self._plans: dict[tuple[object, ...], tuple[int, int]] = {}

    def close(self) -> None:
        """Release the plans."""
        for plan, _ in self._plans.values():
            self._cufft.destroy(plan)
        self._plans.clear()

    def run(self, plan: FftPlan, address: Address, stream: int) -> None:
        """Transform on `stream`; raises the binding's errors."""
        handle, work_bytes = self._plan(plan)
        source, result = address(plan.source), address(plan.result)
        room = -(-plan.source.size_bytes // 256) * 256 if plan.destroys_source else 0
        scratch = self._memory.scratch(max(room + work_bytes, 1))
        if plan.destroys_source:
            self._memory.copy(scratch, source, plan.source.size_bytes)
            source = scratch
        self._cufft.set_stream(handle, stream)
        self._cufft.set_work_area(handle, scratch + room)
        self._cufft.xt_exec(handle, source, result, _INVERSE if plan.is_inverse else _FORWARD)
        if plan.is_inverse:
            name, kind = _SCALES[plan.dtype]
            factor = np.array(1 / prod(plan.lengths), kind)
            getattr(self._cublas, name)(self._handle, plan.batch * prod(plan.result_dims), factor.ctypes.data, result, 1)

    def _plan(self, plan: FftPlan) -> tuple[int, int]:
        key = (plan.type, plan.lengths, plan.source_dims, plan.result_dims, plan.batch)
        if key not in self._plans:
            cufft = self._cufft
            handle = cufft.create()
            cufft.set_auto_allocation(handle, 0)
            sides = [(list(dims), 1, prod(dims)) for dims in (plan.source_dims, plan.result_dims)]
            kind = int(getattr(cufft.Type, plan.type))
            size = cufft.make_plan_many64(handle, len(plan.lengths), list(plan.lengths), *sides[0], *sides[1], kind, plan.batch)
            self._plans[key] = (handle, int(size))
        return self._plans[key]
