"""Check the result of a registered function against the shape of its custom call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from hlo_run.artifact import ArraySpec, ArrayTree, CustomCallThunk
from hlo_run.backends.library.arrays import Array
from hlo_run.errors import DeviceError
from hlo_run.hlo.values.dtype import DTYPES


def checked_leaves(thunk: CustomCallThunk, result: object) -> Iterator[tuple[ArraySpec, Array]]:
    """Yield (spec, array) for each array of the result. Raises DeviceError for a wrong number, type or shape."""
    return _leaves(thunk, thunk.result, result)


def _leaves(thunk: CustomCallThunk, tree: ArrayTree, value: object) -> Iterator[tuple[ArraySpec, Array]]:
    if isinstance(tree, ArraySpec):
        array: Array = np.asarray(value)
        kind = DTYPES[tree.dtype].numpy
        if array.shape != tree.dims or array.dtype != kind:
            found, wanted = f"{array.dtype}{list(array.shape)}", f"{kind}{list(tree.dims)}"
            raise DeviceError(f"custom call {thunk.target} returned {found}, not {wanted} (%{thunk.name})")
        yield tree, array
        return
    parts = list(cast("Sequence[object]", value)) if isinstance(value, tuple | list) else [value]
    if len(parts) != len(tree):
        raise DeviceError(f"custom call {thunk.target} returned {len(parts)} parts, not {len(tree)} (%{thunk.name})")
    for part, element in zip(tree, parts, strict=True):
        yield from _leaves(thunk, part, element)
