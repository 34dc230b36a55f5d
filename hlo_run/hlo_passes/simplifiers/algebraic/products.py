"""Algebraic rules of dots. The rules in `LAYOUT_RULES` are also valid after layout assignment."""

from __future__ import annotations

import math

from hlo_run.analysis.bitcast_kind import common_groups
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import Dot, dot_side
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules
from hlo_run.sharding.values import shardy


def dot_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dot(A, B) without elements => 0."""
    return rw.splat(0, i.shape) if any(0 in operand.shape.dims for operand in i.operands) else None


def dot_of_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dot(f32[1,8] A, f32[8,4] B) => reshape(dot(reshape f32[8] (A), B)): removes dimensions of size 1."""
    dot = Dot.of(i)
    batch, contracted = zip(dot.lhs.batch, dot.rhs.batch, strict=True), dot.contracting_pairs
    kept_batch = [pair for pair in batch if i.operands[0].shape.dims[pair[0]] != 1]
    kept_contracted = [pair for pair in contracted if i.operands[0].shape.dims[pair[0]] != 1]
    if contracted and not kept_contracted and "algorithm" in i.attrs:
        kept_contracted = contracted[:1]
    sides = [
        _without_ones(operand.shape, [p[n] for p in (*kept_batch, *kept_contracted)]) for n, operand in enumerate(i.operands)
    ]
    if all(len(side) == operand.shape.rank for side, operand in zip(sides, i.operands, strict=True)):
        return None
    operands = [_with_dims(rw, o, side) for o, side in zip(i.operands, sides, strict=True)]
    new: dict[str, tuple[int, ...]] = {}
    for n, name in enumerate(("lhs", "rhs")):
        new[f"{name}_batch_dims"] = tuple(sides[n].index(pair[n]) for pair in kept_batch)
        new[f"{name}_contracting_dims"] = tuple(sides[n].index(pair[n]) for pair in kept_contracted)
    return rw.reshape(_dot(rw, i, operands, new), i.shape.dims)


def _without_ones(shape: Shape, kept: list[int]) -> list[int]:
    return [d for d, size in enumerate(shape.dims) if size != 1 or d in kept]


def _with_dims(rw: Rewriter, value: HloInstruction, kept: list[int]) -> HloInstruction:
    """Keep some dimensions of a value, in its layout: layout assignment asks for the layout that an operand of a dot has."""
    if len(kept) == value.shape.rank:
        return value
    order = tuple(kept.index(dim) for dim in value.shape.minor_to_major if dim in kept)
    shape = Shape.array(value.shape.element_type, tuple(value.shape.dims[dim] for dim in kept), order)
    return rw.bare.add("reshape", shape, [value])


def _dot(rw: Rewriter, old: HloInstruction, operands: list[HloInstruction], dims: dict[str, tuple[int, ...]]) -> HloInstruction:
    """Return a dot like `old`, with other operands and dimension numbers."""
    batch = [operands[0].shape.dims[d] for d in dims["lhs_batch_dims"]]
    sides = zip(("lhs", "rhs"), operands, strict=True)
    free = [
        [s for d, s in enumerate(o.shape.dims) if d not in (*dims[f"{name}_batch_dims"], *dims[f"{name}_contracting_dims"])]
        for name, o in sides
    ]
    shape = Shape.array(old.shape.element_type, (*batch, *free[0], *free[1]))
    rest: dict[str, AttributeValue] = {name: old.attrs[name] for name in ("operand_precision", "algorithm") if name in old.attrs}
    used: dict[str, AttributeValue] = {
        name: numbers for name, numbers in dims.items() if numbers or name.endswith("contracting_dims")
    }
    return rw.add_with("dot", shape, operands, {**used, **rest})


def dot_without_depth(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dot(f32[2] A, f32[3] B) => broadcast(A) * broadcast(B), because nothing is summed without contracting dimensions."""
    sides = dot_side(i, 0), dot_side(i, 1)
    if sides[0].contracting or "algorithm" in i.attrs:
        return None
    batch = len(sides[0].batch)
    factors: list[HloInstruction] = []
    for operand, side in zip(i.operands, sides, strict=True):
        value = rw.at(operand).transpose_view(operand, [*side.batch, *side.free])
        factors.append(rw.bare.convert(value, i.shape.element_type))
    for number, side in enumerate(sides):
        first = batch + (len(sides[0].free) if number else 0)
        dims = (*range(batch), *range(first, first + len(side.free)))
        if len(dims) < i.shape.rank:
            factors[number] = rw.add("broadcast", i.shape, [factors[number]], dimensions=dims)
    return rw.mul(factors[0], factors[1])


def transpose_of_dot(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(dot(A, B)), dimensions={1,0} => dot(B, A), if the dot has no other users; batch dimensions are and stay first."""
    dot = i.operands[0]
    if dot.opcode != "dot" or len(dot.users) > 1:
        return None
    lhs, rhs = Dot.of(dot).sides
    count = len(lhs.batch)
    if [len(lhs.free), len(rhs.free)] != [1, 1] or i.dimensions != (*range(count), count + 1, count):
        return None
    if not lhs.batch == rhs.batch == tuple(range(count)):
        return None
    dims = {
        "lhs_batch_dims": rhs.batch,
        "rhs_batch_dims": lhs.batch,
        "lhs_contracting_dims": rhs.contracting,
        "rhs_contracting_dims": lhs.contracting,
    }
    swapped = _with_swapped_precision(_dot(rw, dot, list(dot.operands[::-1]), dims))
    if not rw.sees_layouts:
        swapped.shape = i.shape
    return swapped


def _with_swapped_precision(dot: HloInstruction) -> HloInstruction:
    """Let a new dot, whose operands were swapped, have their precisions in the new order."""
    if dot.operand_precision:
        dot.attrs["operand_precision"] = dot.operand_precision[::-1]
    return dot


def dot_of_transposes(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dot(transpose(A), transpose(B)) => transpose(dot(B, A)) if both permute alike; dot(A, B) if only batch dimensions move."""
    one, two = i.operands
    if one.opcode != "transpose" or two.opcode != "transpose" or one.dimensions != two.dimensions or _is_unreduced(i):
        return None
    order, rank = one.dimensions, one.shape.rank
    lhs, rhs = Dot.of(i).sides
    is_canonical = lhs.batch == rhs.batch == tuple(range(rank - 2)) and lhs.contracting == (rank - 1,)
    is_canonical = is_canonical and rhs.contracting == (rank - 2,)
    if rank < 2 or not is_canonical or set(order[-2:]) != {rank - 2, rank - 1}:
        return None
    is_swapped = order[-2:] == (rank - 1, rank - 2)
    sources = [one.operands[0], two.operands[0]]
    dims = {
        "lhs_batch_dims": lhs.batch,
        "rhs_batch_dims": rhs.batch,
        "lhs_contracting_dims": lhs.contracting,
        "rhs_contracting_dims": rhs.contracting,
    }
    dot = _dot(rw, i, sources[::-1] if is_swapped else sources, dims)
    return rw.transpose(_with_swapped_precision(dot) if is_swapped else dot, order)


def _is_unreduced(i: HloInstruction) -> bool:
    """Return True if an annotation says that the devices hold parts of a sum."""
    if len(i.users) != 1 or i.users[0].opcode != "custom-call" or i.users[0].custom_call_target != "Sharding":
        return False
    of_shardy = frontend_attribute(i.users[0], shardy.SHARDING) or ""
    return "unreduced" in str(i.users[0].sharding) or "unreduced" in of_shardy


def dot_of_rearranged(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """dot(reshape(transpose(A)), C) => dot(reshape(A), reshape(transpose(reshape(C)))) for a constant C, which is folded.

    The reshape merges adjacent dimensions into the only contracting one, and the transpose permutes only these.
    """
    number = 1 if i.operands[0].opcode == "constant" else 0
    value, constant = i.operands[number], i.operands[1 - number]
    contracted = [side[0] if len(side) == 1 else -1 for side in (i.lhs_contracting_dims, i.rhs_contracting_dims)]
    if constant.opcode != "constant" or value.opcode != "reshape" or value.operands[0].opcode != "transpose" or -1 in contracted:
        return None
    transpose, merged = value.operands[0], contracted[number]
    if 0 in value.shape.dims:
        return None
    kept = {ours[0] for ours, theirs in common_groups(transpose.shape.dims, value.shape.dims) if len(ours) == len(theirs) == 1}
    others = [size for d, size in enumerate(value.shape.dims) if d != merged]
    parts = [d for d in range(transpose.shape.rank) if d not in kept]
    if [transpose.shape.dims[d] for d in sorted(kept)] != others or parts != list(
        range(parts[0], parts[-1] + 1) if parts else ()
    ):
        return None
    if math.prod(transpose.shape.dims[d] for d in parts) != value.shape.dims[merged] or sum(d < parts[0] for d in kept) != merged:
        return None
    order = transpose.dimensions
    if any(order[d] != d for d in kept):
        return None
    place, sizes = contracted[1 - number], [transpose.shape.dims[d] for d in parts]
    dims = constant.shape.dims
    split = rw.reshape(constant, (*dims[:place], *sizes, *dims[place + 1 :]))
    inverse = [place + order.index(d) - parts[0] for d in parts]
    moved = rw.transpose(split, [*range(place), *inverse, *range(place + len(parts), split.shape.rank)])
    operands = [rw.reshape(transpose.operands[0], value.shape.dims), rw.reshape(moved, dims)]
    return rw.like(i, operands[::-1] if number else operands)


FREE_RULES: Rules = {
    "dot": (dot_of_nothing, dot_without_depth, dot_of_rearranged, dot_of_ones, dot_of_transposes),
    "transpose": (transpose_of_dot,),
}
LAYOUT_RULES: Rules = {"transpose": (transpose_of_dot,)}
