"""The custom calls of arrays with a scale per block of their last dimension: `__op$quantize` and its relatives."""

from __future__ import annotations

import re

from hlo_run.hlo.values.shape import Shape

QUANTIZE = "__op$quantize"
DEQUANTIZE = "__op$dequantize"
BLOCK_SCALED_DOT = "__op$block_scaled_dot"
BLOCK_SCALED_CALLS = (QUANTIZE, DEQUANTIZE, BLOCK_SCALED_DOT)


def block_size(numbers: Shape, scales: Shape) -> int | None:
    """Return the elements of the last dimension that share a scale; None if the shapes have no such blocks."""
    if not (numbers.is_array and scales.is_array and numbers.dims and numbers.dims[:-1] == scales.dims[:-1]):
        return None
    size, count = numbers.dims[-1], scales.dims[-1]
    return size // count if len(scales.dims) == len(numbers.dims) and count and size and size % count == 0 else None


def stated_block_size(backend_config: str) -> int | None:
    """Return the block size in the backend_config of a product, in JSON or with bare keys; None if it has none."""
    found = re.search(r'block_scaled_dot_backend_config"?\s*:\s*\{\s*"?block_size"?\s*:\s*"?(\d+)', backend_config)
    return int(found[1]) if found else None


def used_scales(numbers: Shape, scales: Shape, stated: int | None) -> tuple[int, ...] | None:
    """Return the sizes of the part of a product's scales that its operand needs; None if there are too few.

    `stated` is the block size in the call. Without it only the rows may be more than those of the operand.
    """
    if len(numbers.dims) not in (2, 3) or len(scales.dims) != len(numbers.dims) or numbers.dims[:-2] != scales.dims[:-2]:
        return None
    *batch, rows, columns = scales.dims
    if stated:
        columns = min(columns, -(-numbers.dims[-1] // stated))
        if numbers.dims[-1] > stated * scales.dims[-1]:
            return None
    return (*batch, numbers.dims[-2], columns) if numbers.dims[-2] <= rows else None
