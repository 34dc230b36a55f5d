"""`ScanThunk` by numpy: running sums along rows of memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_run.artifact import ArraySpec, ScanThunk
from hlo_run.backends.library.arrays import Array, LibraryCall
from hlo_run.hlo.values.dtype import DTYPES


def scan_call(thunk: ScanThunk) -> LibraryCall:
    """Return the call of a scan. It adds narrow floats in f32 and rounds each sum once; integers wrap."""
    wide = DTYPES[thunk.source.dtype].is_float and DTYPES[thunk.source.dtype].bits < 32
    step = -1 if thunk.is_reverse else 1

    def compute(arrays: Sequence[Array], results: Sequence[Array]) -> None:
        source, result = _in_memory(arrays[0], thunk.source), _in_memory(results[0], thunk.result)
        rows = source.reshape(thunk.columns, thunk.rows, thunk.vector)[:, ::step]
        kind = np.dtype(np.float32) if wide else source.dtype
        with np.errstate(all="ignore"):
            sums = np.cumsum(rows.astype(kind, copy=False), axis=1, dtype=kind)[:, ::step]
            result[...] = sums.astype(source.dtype, copy=False).reshape(result.shape)

    return LibraryCall((thunk.source,), (thunk.result,), compute)


def _in_memory(array: Array, spec: ArraySpec) -> Array:
    """Return an array with its dimensions in the order of memory, the outermost first."""
    return array.transpose(spec.minor_to_major[::-1])
