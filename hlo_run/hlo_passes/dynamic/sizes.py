"""Build HLO for dynamic sizes: masks, and the sizes of a result from the sizes of its operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import Window
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace

# The size of each dimension as an s32 scalar, None for a static dimension; empty: all are static.
Sizes: TypeAlias = "tuple[HloInstruction | None, ...]"


def is_dynamic(shape: Shape) -> bool:
    """Return True if an array of a value has a dynamic dimension."""
    return any(any(leaf.dynamic_dims) for _, leaf in shape.leaves())


def fixed_shape(shape: Shape) -> Shape:
    """Return the shape with the bounds of dynamic dimensions as their sizes."""
    return replace(shape, dynamic_dims=())


def mask(editor: Editor, dims: tuple[int, ...], sizes: Mapping[int, HloInstruction]) -> HloInstruction | None:
    """Return a pred array that is true inside the sizes; None if `sizes` is empty."""
    flags: HloInstruction | None = None
    for dim, size in sizes.items():
        inside = editor.compare(editor.iota("s32", dims, dim), editor.broadcast(size, dims), "LT")
        flags = inside if flags is None else editor.binary("and", flags, inside)
    return flags


def _constant(editor: Editor, value: int) -> HloInstruction:
    return editor.constant(value, "s32")


def _plus(editor: Editor, size: HloInstruction, amount: int) -> HloInstruction:
    return editor.binary("add", size, _constant(editor, amount)) if amount else size


def _times(editor: Editor, size: HloInstruction, factor: int) -> HloInstruction:
    return editor.binary("multiply", size, _constant(editor, factor)) if factor != 1 else size


def _spread(editor: Editor, size: HloInstruction, gap: int) -> HloInstruction:
    """Return the size with `gap` elements inserted between neighbours: n + max(n - 1, 0) * gap."""
    if not gap:
        return size
    pairs = editor.binary("maximum", _plus(editor, size, -1), _constant(editor, 0))
    return editor.binary("add", size, _times(editor, pairs, gap))


def pad_sizes(editor: Editor, sizes: Sizes, padding: Sequence[tuple[int, int, int]]) -> Sizes:
    """Return the sizes after a pad with (low, high, interior) per dimension."""
    return tuple(
        None if size is None else _plus(editor, _spread(editor, size, interior), low + high)
        for size, (low, high, interior) in zip(sizes, padding, strict=True)
    )


def window_sizes(editor: Editor, sizes: Sizes, window: Window) -> Sizes:
    """Return the number of windows per dimension: (padded - window) / stride + 1, or 0 if the window does not fit."""
    found: list[HloInstruction | None] = []
    for size, dim in zip(sizes, window.dims, strict=True):
        trivial = dim.size == 1 and dim.stride == 1 and not dim.pad_low and not dim.pad_high and dim.base_dilation == 1
        if size is None or trivial:
            found.append(size)
            continue
        extent = (dim.size - 1) * dim.window_dilation + 1
        room = _plus(editor, _spread(editor, size, dim.base_dilation - 1), dim.pad_low + dim.pad_high - extent)
        # The dividend must not be negative: division rounds towards zero.
        shifted = editor.binary("maximum", _plus(editor, room, dim.stride), _constant(editor, 0))
        found.append(editor.binary("divide", shifted, _constant(editor, dim.stride)))
    return tuple(found)


def reshape_sizes(editor: Editor, before: tuple[int, ...], sizes: Sizes, after: tuple[int, ...]) -> Sizes | None:
    """Return the sizes after a reshape; None if valid elements would have to move.

    Elements stay if each dynamic dimension is unchanged, or is the most major one (except for ones) of the dimensions that are
    merged or split, and the size within it divides evenly.
    """
    found: list[HloInstruction | None] = [None] * len(after)
    for sources, targets in _groups(before, after):
        dynamic = [dim for dim in sources if sizes[dim] is not None]
        if not dynamic:
            continue
        major = next(dim for dim in sources if before[dim] != 1 or dim == dynamic[0])
        size = sizes[major]
        kept = [dim for dim in targets if after[dim] != 1]
        if dynamic != [major] or size is None or not kept:
            return None
        within = math.prod(before[dim] for dim in sources if dim > major)
        new_within = math.prod(after[dim] for dim in kept[1:])
        if within % new_within:
            return None
        found[kept[0]] = _times(editor, size, within // new_within)
    return tuple(found)


def _groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of dimensions of both shapes with equal numbers of elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        sources: list[int] = []
        targets: list[int] = []
        left = right = 1
        while True:
            if (left <= right and i < len(before)) or j == len(after):
                sources.append(i)
                left *= before[i]
                i += 1
            else:
                targets.append(j)
                right *= after[j]
                j += 1
            if (left == right and sources and targets) or (i == len(before) and j == len(after)):
                break
        groups.append((sources, targets))
    return groups
