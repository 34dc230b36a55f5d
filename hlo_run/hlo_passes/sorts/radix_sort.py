"""Recognises sorts that CUB's radix sort can do, where it is faster than kernels that exchange pairs.

    lt(a0, b0), or gt, le, ge; a0, b0 of either operand             by that operand, floats in the total order of their bits
    lt(f(a0), f(b0)), order=TOTAL, with                         floats in numpy's order: NaNs last, -0 like +0
        f(x) = select(ne(x, x), nan, select(eq(x, 0), 0, x))

One operand or two, sorted along the last dimension. The sizes from which a GPU gains are measurements of XLA's authors
(`sort_rewriter.cc`).
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.target import TargetSpec

_MANY = sys.maxsize
_DESCENDING = {"LT": False, "LE": False, "GT": True, "GE": True}
_KEYS = frozenset("bf16 f16 f32 f64 s8 s16 s32 s64 u8 u16 u32 u64".split())
_PAIR_KEYS = frozenset("u8 u16 s32 u32 u64 f32".split())
_PAIR_VALUE_BITS = (16, 32, 64)
_NUMPY_KEYS = frozenset(("bf16", "f16", "f32", "f64"))
_NUMPY_PAIRS = {"keys": ("bf16", "f16", "f32"), "values": ("s16", "s32")}
# The limit of the extra memory for keys and values in numpy's order.
_MOST_NUMPY_PAIR_BYTES = 1 << 31


class RadixOrder(Struct, frozen=True):
    """The order of a sort by operand `key`. `is_numpy`: floats are in numpy's order, else in the total order of their bits."""

    key: int
    descending: bool
    is_numpy: bool


def radix_order(sort: HloInstruction, target: TargetSpec, always: bool = False) -> RadixOrder | None:
    """Return the order by which CUB can replace `sort`; None if it cannot, or (unless `always`) is slower."""
    shape = sort.operands[0].shape
    if len(sort.operands) > 2 or any(operand.shape.dynamic_dims for operand in sort.operands):
        return None
    if sort.dimensions[0] != shape.rank - 1 or not (always or _is_faster(sort, target)):
        return None
    order = _order_of(sort.to_apply)
    if order is None or order.key >= len(sort.operands):
        return None
    return order if (_is_numpy_sorted if order.is_numpy else _is_sorted)(sort, order) else None


# ---- comparators ----------------------------------------------------------------------------------------------------


def _order_of(comparator: HloComputation) -> RadixOrder | None:
    root = comparator.root
    descending = _DESCENDING.get(root.comparison_direction) if root.opcode == "compare" else None
    if descending is None:
        return None
    sides = [_parameter_number(side) for side in root.operands]
    is_numpy = None in sides
    if is_numpy:
        sides = [_canonical_parameter(side) for side in root.operands]
        if root.comparison_order != "TOTAL":
            return None
    first, second = sides
    if first is None or second is None or first == second or first // 2 != second // 2:
        return None
    return RadixOrder(first // 2, descending != (first > second), is_numpy)


def _parameter_number(value: HloInstruction) -> int | None:
    return value.parameter_number if value.opcode == "parameter" else None


def _canonical_parameter(value: HloInstruction) -> int | None:
    """Return the number of the parameter that `value` is with one NaN for all NaNs and +0 for -0; None for other values."""
    if value.opcode != "select":
        return None
    is_nan, nan, number = value.operands
    if not _is_constant(nan, np.nan) or number.opcode != "select":
        return None
    is_zero, zero, parameter = number.operands
    if not _is_constant(zero, 0.0) or not _compares(is_zero, "EQ", parameter, zero):
        return None
    if not any(_compares(is_nan, "NE", tested, tested) for tested in (parameter, number)):
        return None
    return _parameter_number(parameter)


def _compares(value: HloInstruction, direction: str, left: HloInstruction, right: HloInstruction) -> bool:
    if value.opcode != "compare" or value.comparison_direction != direction or value.comparison_order == "TOTAL":
        return False
    one, two = value.operands
    return one is left and (two is right or (_is_constant(two, 0.0) and _is_constant(right, 0.0)))


def _is_constant(value: HloInstruction, wanted: float) -> bool:
    if value.opcode != "constant" or not value.shape.dtype.is_float:
        return False
    found = float(value.constant_array.reshape(()).astype(np.float64))
    return found == wanted or (np.isnan(found) and np.isnan(wanted))


# ---- element types --------------------------------------------------------------------------------------------------


def _is_sorted(sort: HloInstruction, order: RadixOrder) -> bool:
    key = sort.operands[order.key].shape
    if len(sort.operands) == 1:
        return key.element_type in _KEYS
    return key.element_type in _PAIR_KEYS and sort.operands[1 - order.key].shape.dtype.bits in _PAIR_VALUE_BITS


def _is_numpy_sorted(sort: HloInstruction, order: RadixOrder) -> bool:
    """True if unsigned numbers can represent the keys. CUB sorts pairs by them; of 64-bit keys only pairs with 64-bit values."""
    key = sort.operands[order.key].shape
    if len(sort.operands) == 1:
        return key.element_type in _NUMPY_KEYS
    value = sort.operands[1 - order.key].shape
    if key.element_type not in _NUMPY_PAIRS["keys"] or value.element_type not in _NUMPY_PAIRS["values"]:
        return False
    packed_bits = 32 if key.dtype.bits + value.dtype.bits <= 32 else 64
    return key.element_count * (key.dtype.bits + packed_bits) // 8 < _MOST_NUMPY_PAIR_BYTES


# ---- sizes ----------------------------------------------------------------------------------------------------------


class _Gain(Struct, frozen=True):
    """A radix sort is faster for rows of more than `elements`, if there are more than `rows` rows.

    Not for more than `most_rows` rows, or `rows_per_core` rows per multiprocessor, nor for rows of `below` elements or more.
    """

    elements: int
    rows: int = 0
    most_rows: int = _MANY
    rows_per_core: int = _MANY
    below: int = _MANY

    def holds(self, rows: int, elements: int, cores: int) -> bool:
        most = min(self.most_rows, self.rows_per_core * cores if self.rows_per_core != _MANY else _MANY)
        return self.rows < rows <= most and self.elements < elements < self.below


def _batched(*steps: tuple[int, int]) -> tuple[_Gain, ...]:
    """Return the gains for (log2 of the elements, rows)."""
    return tuple(_Gain(1 << log2, rows) for log2, rows in steps)


_H100: dict[int, tuple[_Gain, ...]] = {
    8: (_Gain(0, most_rows=1), _Gain(1300, rows=8), _Gain(1300, below=26000)),
    16: (_Gain(1 << 9, most_rows=1), *_batched((16, 12), (15, 14), (14, 16), (13, 18), (12, 33), (11, 66))),
    32: (
        _Gain(22000, most_rows=1),
        *_batched((17, 26), (16, 31), (15, 38), (14, 44), (13, 52)),
        _Gain(1 << 12, rows=88, rows_per_core=1),
    ),
    64: (
        _Gain(1 << 17, most_rows=1),
        *_batched((17, 55), (16, 70), (15, 92), (14, 354)),
        _Gain(1 << 14, rows=160, rows_per_core=2),
    ),
}
_A100: dict[int, tuple[_Gain, ...]] = {
    8: (_Gain(0, most_rows=1), _Gain(1000, rows=5), _Gain(1000, below=43000)),
    16: (_Gain(1 << 16, most_rows=1), *_batched((17, 9), (13, 13), (12, 27), (11, 54))),
    32: (_Gain(1 << 15, most_rows=1), *_batched((17, 24), (16, 30), (15, 36), (14, 39), (13, 52), (12, 144))),
    64: (
        _Gain(1 << 16, most_rows=1),
        *_batched((17, 46), (16, 55), (15, 72), (14, 289)),
        _Gain(1 << 14, rows=138, rows_per_core=2),
    ),
}


def _from(elements: int, rows: int = 0, below: int = _MANY, most_rows: int = _MANY) -> _Gain:
    return _Gain(elements - 1, rows, most_rows, below=below)


_BLACKWELL: dict[int, tuple[_Gain, ...]] = {
    8: tuple(_Gain(max(gain.elements, 1024), gain.rows, gain.most_rows, below=gain.below) for gain in _H100[8]),
    16: (_from(1 << 12),),
    32: (
        _from(1 << 12, most_rows=1),
        _from(1 << 17, 26),
        *(_from(1 << log2, rows, 2 << log2) for log2, rows in ((16, 31), (15, 38), (14, 44), (13, 52))),
        _from(1 << 12, 88, 1 << 13, most_rows=127),
    ),
    64: (_from(1 << 14),),
}
_TABLES = {8: _A100, 9: _H100, 10: _BLACKWELL}
# For other GPUs, the number of elements in all rows together.
_MOST_ELSEWHERE = 16384


def _is_faster(sort: HloInstruction, target: TargetSpec) -> bool:
    shape = sort.operands[0].shape
    elements = shape.dims[-1] if shape.rank else 0
    if not shape.element_count:
        return False
    table = _TABLES.get(target.compute_capability[0])
    if table is None:
        return prod(shape.dims) > _MOST_ELSEWHERE
    if table is _BLACKWELL and shape.dtype.bits == 64 and len(sort.operands) == 2:
        return False
    rows = shape.element_count // elements
    bits = 0 if shape.element_type == "pred" else shape.dtype.bits
    return any(gain.holds(rows, elements, target.core_count) for gain in table.get(bits, ()))
