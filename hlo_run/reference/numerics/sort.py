"""Evaluate `sort` and `topk` with stable orders, so that results do not depend on the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.dtype import DType
from hlo_run.reference.numerics.total_order import total_order_key
from hlo_run.reference.values import Array, Calls, Evaluator, Value, as_array, table, widen

# (indices, indices) → true where the first element comes before the second.
Before = Callable[[Array, Array], Array]


def _sort(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    arrays = [as_array(operand) for operand in operands]
    (dim,) = instruction.dimensions
    comparator = instruction.to_apply
    rows = [np.moveaxis(array, dim, -1) for array in arrays]
    order = _key_order(comparator, rows)
    if order is None:
        order = _merge_sort(rows[0].shape, lambda i, j: _comes_before(comparator, rows, calls, i, j))
    ordered = tuple(np.moveaxis(np.take_along_axis(row, order, -1), -1, dim) for row in rows)
    return ordered if instruction.shape.is_tuple else ordered[0]


def _comes_before(comparator: HloComputation, rows: Sequence[Array], calls: Calls, i: Array, j: Array) -> Array:
    pairs = [np.take_along_axis(row, index, -1) for row in rows for index in (i, j)]
    return calls.call_on_elements(comparator, pairs)[0]


def _key_order(comparator: HloComputation, rows: Sequence[Array]) -> Array | None:
    """Return the order by one operand's elements, NaNs last, if the comparator is LT or GT of those; else None."""
    root = comparator.root
    if root.opcode != "compare" or any(operand.opcode != "parameter" for operand in root.operands):
        return None
    first, second = (operand.parameter_number for operand in root.operands)
    direction = root.comparison_direction
    if first // 2 != second // 2 or first == second or direction not in ("LT", "GT"):
        return None
    dtype = root.operands[0].shape.dtype
    descending = (direction == "GT") == (first < second)
    if dtype.is_complex:
        return None
    total = dtype.is_float and root.comparison_order == "TOTAL"
    key = total_order_key(rows[first // 2], dtype) if total else widen(rows[first // 2], dtype)
    return stable_order(key, descending)


def stable_order(key: Array, descending: bool) -> Array:
    """Return the indices that sort the last dimension by `key`; equal keys keep their order."""
    if not descending:
        return np.argsort(key, axis=-1, kind="stable")
    # Flipped twice: the second flip restores the order of equal keys.
    return key.shape[-1] - 1 - np.flip(np.argsort(np.flip(key, -1), axis=-1, kind="stable"), -1)


def _merge_sort(dims: tuple[int, ...], before: Before) -> Array:
    """Return the stable order of the last dimension under any comparison, for all rows at once.

    Bottom up: runs of length 1, 2, 4 .. merge in pairs. An element's position in the merged run is its position in its
    own run plus the number of elements before it in the other run, which a binary search finds.
    """
    size = dims[-1]
    order = np.broadcast_to(np.arange(size), dims).copy()
    place = np.arange(size)
    run = 1
    while run < size:
        own = place // run
        is_left = own % 2 == 0
        partner = np.minimum((own ^ 1) * run, size)
        count = _count_before(order, before, is_left, partner, np.minimum(partner + run, size)) - partner
        merged = order.copy()
        np.put_along_axis(merged, own // 2 * 2 * run + place % run + count, order, -1)
        order, run = merged, 2 * run
    return order


def _count_before(order: Array, before: Before, is_left: Array, low: Array, high: Array) -> Array:
    """Return for each element the end of the elements before it in the other run; the left run is first on a tie."""
    low, high = np.broadcast_to(low, order.shape), np.broadcast_to(high, order.shape)
    while (low < high).any():
        middle = (low + high) // 2
        other = np.take_along_axis(order, np.minimum(middle, order.shape[-1] - 1), -1)
        result = before(np.where(is_left, other, order), np.where(is_left, order, other))
        goes_on = (low < high) & np.where(is_left, result, ~result)
        high = np.where((low < high) & ~goes_on, middle, high)
        low = np.where(goes_on, middle + 1, low)
    return low


def _topk(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the k largest (or smallest) elements of the last dimension in the total order; equal ones by index."""
    largest = instruction.largest
    return top_k(as_array(operands[0]), instruction.operands[0].shape.dtype, instruction.k, largest)


def top_k(array: Array, dtype: DType, k: int, largest: bool) -> tuple[Array, Array]:
    """Return the values and s32 indices of the k largest or smallest elements of the last dimension in the total order.

    They are in descending order if `largest`, else ascending; equal elements are in the order of their indices.
    """
    key = total_order_key(array, dtype) if dtype.is_float else widen(array, dtype)
    order = stable_order(key, largest)[..., :k]
    return np.take_along_axis(array, order, -1), order.astype(np.int32)


def _topk_call(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    """Evaluate the custom call TopK: k is the result's size, and the comparator takes elements, or elements and indices."""
    array, k = as_array(operands[0]), instruction.shape.tuple_shapes[0].dims[-1]
    if not instruction.called_computations:
        return top_k(array, instruction.operands[0].shape.dtype, k, True)
    comparator = instruction.called_computations[0]
    positions = np.broadcast_to(np.arange(array.shape[-1], dtype=np.int32), array.shape)
    rows = [array, positions][: len(comparator.parameters) // 2]
    order = _key_order(comparator, rows)
    if order is None:
        order = _merge_sort(array.shape, lambda i, j: _comes_before(comparator, rows, calls, i, j))
    order = order[..., :k]
    return np.take_along_axis(array, order, -1), order.astype(np.int32)


EVALUATE = table(("sort", _sort), ("topk", _topk))
# Custom call target → evaluator.
CUSTOM_CALLS: dict[str, Evaluator] = {"TopK": _topk_call, "__gpu$TopK": _topk_call}
