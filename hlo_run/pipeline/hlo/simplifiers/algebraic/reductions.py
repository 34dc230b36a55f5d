"""Rules of reductions and windows, of modules whose layouts are not settled yet; and of maps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hlo_run.analysis.bitcast_kind import common_groups
from hlo_run.analysis.elementwise import ELEMENTWISE
from hlo_run.analysis.simple_reducer import is_identity, simple_reducer
from hlo_run.hlo.attributes import Window
from hlo_run.hlo.graph import HloInstruction
from hlo_run.pipeline.hlo.simplifiers.algebraic.rule import Rewriter, Rules


def _opcode(i: HloInstruction) -> str:
    """Return the operation of a reduction of one array whose initial value changes nothing, else nothing."""
    if len(i.operands) != 2 or i.shape.is_tuple:
        return ""
    opcode = simple_reducer(i.called["to_apply"][0])
    return (
        opcode
        if opcode and is_identity(i.operands[1], opcode) and i.operands[0].shape.element_type == i.shape.element_type
        else ""
    )


def reduce_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(A, init) of no elements => broadcast(init)."""
    is_empty = len(i.operands) == 2 and not i.shape.is_tuple and 0 in i.operands[0].shape.dims and 0 not in i.shape.dims
    return rw.spread(i.operands[1], i.shape) if is_empty and i.operands[1].shape.element_type == i.shape.element_type else None


def reduce_of_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(A), over dimensions of size 1 => reshape(A)."""
    value = i.operands[0]
    if not _opcode(i) or value.shape.element_count != i.shape.element_count:
        return None
    return rw.reshape(value, i.shape.dims)


def reduce_of_transpose(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(transpose(A)) => reduce(A), with a transpose after it if what is kept changes places."""
    inner = i.operands[0]
    if inner.opcode != "transpose" or len(i.operands) != 2 or not simple_reducer(i.called["to_apply"][0]):
        return None
    permutation, reduced = inner.attrs["dimensions"], set(i.attrs["dimensions"])
    kept = [permutation[d] for d in range(inner.shape.rank) if d not in reduced]
    (made,) = rw.reduce_again(i, inner.operands, sorted(permutation[d] for d in reduced))
    return rw.transpose(made, [sorted(kept).index(d) for d in kept])


def reduce_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(reduce(A)) => reduce(A) of one operation, if nothing else uses the inner one."""
    inner, opcode = i.operands[0], _opcode(i)
    if inner.opcode != "reduce" or not opcode or len(inner.users) > 1 or _opcode(inner) != opcode:
        return None
    kept = [d for d in range(inner.operands[0].shape.rank) if d not in inner.attrs["dimensions"]]
    first: tuple[int, ...] = inner.attrs["dimensions"]
    second: tuple[int, ...] = i.attrs["dimensions"]
    (made,) = rw.reduce_again(i, inner.operands[:1], sorted((*first, *(kept[d] for d in second))))
    return made


def reduce_of_reshape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce(reshape(A)) => reshape(reduce(A)) if the reshape mixes no dimension that stays with one that goes."""
    inner = i.operands[0]
    if inner.opcode != "reshape" or not _opcode(i) or 0 in inner.shape.dims:
        return None
    source, reduced = inner.operands[0], set(i.attrs["dimensions"])
    dims: list[int] = []
    for before, after in common_groups(source.shape.dims, inner.shape.dims):
        count = len(reduced.intersection(after))
        if count not in (0, len(after)):
            return None
        dims += before if count else []
    if not dims:
        return None
    (made,) = rw.reduce_again(i, [source], sorted(dims))
    return rw.reshape(made, i.shape.dims)


def reduce_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """sum(broadcast(A)) over n that were added => A * n; of max, min, and, or => A; what A has of its own is reduced in it."""
    inner, opcode = i.operands[0], _opcode(i)
    if inner.opcode != "broadcast" or opcode not in ("add", "maximum", "minimum", "and", "or"):
        return None
    source, mapped = inner.operands[0], inner.attrs["dimensions"]
    reduced: set[int] = set(i.attrs["dimensions"])
    added = [d for d in reduced if d not in mapped]
    count = math.prod(inner.shape.dims[d] for d in added)
    if not added or count == 0 or (opcode == "add" and not _fits(count, i)):
        return None
    own = [d for d, place in enumerate(mapped) if place in reduced]
    value = rw.reduce_again(i, [source], own)[0] if own else source
    if opcode == "add":
        value = rw.mul(value, rw.splat(count, value.shape))
    left = [d for d in range(inner.shape.rank) if d not in reduced]
    dims = tuple(left.index(place) for place in mapped if place not in reduced)
    return rw.add("broadcast", i.shape, [value], dimensions=dims) if value.shape.dims != i.shape.dims else value


def _fits(count: int, i: HloInstruction) -> bool:
    return (
        bool(int(np.asarray(count).astype(i.shape.dtype.numpy).astype(np.float64).real) == count)
        if not i.shape.dtype.is_complex
        else False
    )


def window_of_one(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce-window(A), window={size=1x1} => A."""
    window: Window = i.attrs.get("window", Window())
    trivial = all(d.size == 1 and d.stride == 1 and d.base_dilation == 1 and d.pad_low == d.pad_high == 0 for d in window.dims)
    return i.operands[0] if _opcode(i) and trivial and i.operands[0].shape.dims == i.shape.dims else None


def window_of_pad(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce-window(pad(A, init), init) => reduce-window(A, init) with wider padding."""
    padded = i.operands[0]
    if padded.opcode != "pad" or len(i.operands) != 2 or i.shape.is_tuple or padded.operands[1] is not i.operands[1]:
        return None
    window, edges = i.attrs["window"], padded.attrs["padding"]
    if any(interior or low < 0 or high < 0 for low, high, interior in edges) or len(window.dims) != len(edges):
        return None
    if any(d.base_dilation != 1 and (low or high) for d, (low, high, _) in zip(window.dims, edges, strict=True)):
        return None
    dims = tuple(
        replace(d, pad_low=d.pad_low + low, pad_high=d.pad_high + high)
        for d, (low, high, _) in zip(window.dims, edges, strict=True)
    )
    return rw.add(
        "reduce-window",
        i.shape,
        [padded.operands[0], i.operands[1]],
        {"to_apply": i.called["to_apply"]},
        window=replace(window, dims=dims),
    )


def map_of_one_operation(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """map(A, B), to_apply=add => add(A, B), for bodies that are elementwise."""
    body = i.called["to_apply"][0]
    allowed = ELEMENTWISE | {"parameter", "constant"}
    if any(inner.opcode not in allowed or inner.opcode == "map" for inner in body.instructions) or not i.operands:
        return None
    shapes = {operand.shape.dims for operand in i.operands}
    if shapes != {i.shape.dims}:
        return None
    made: dict[HloInstruction, HloInstruction] = {}
    for old in body.post_order():
        if old.opcode == "parameter":
            made[old] = i.operands[old.attrs["parameter_number"]]
        elif old.opcode == "constant":
            scalar = rw.add("constant", old.shape, literal=old.attrs["literal"])
            made[old] = rw.spread(scalar, i.shape)
        else:
            made[old] = rw.like(
                old, [made[operand] for operand in old.operands], i.shape.with_element_type(old.shape.element_type)
            )
    return made[body.root]


# Of modules whose layouts are not settled yet.
FREE_RULES: Rules = {
    "map": (map_of_one_operation,),
    "reduce": (reduce_of_nothing, reduce_of_ones, reduce_of_transpose, reduce_twice, reduce_of_reshape, reduce_of_broadcast),
    "reduce-window": (window_of_one, window_of_pad),
}
