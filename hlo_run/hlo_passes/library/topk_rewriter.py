"""Rewrite slices of a sort that take the k largest elements to a `TopK` call.

    s = (f32[4,100], s32[4,100]) sort(x, iota), to_apply=(a > b), is_stable=true
    slice(get-tuple-element(s), index=0), slice={[0:4], [0:5]}  =>  c = (f32[4,5], s32[4,5]) custom-call(x), "TopK"
    slice(get-tuple-element(s), index=1), ..                        get-tuple-element(c), index=0 and 1

For f32 and bf16, one row or a batch of rows along the last dimension, if the sort has no other users. XLA's `TopkRewriter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext

_TYPES = ("f32", "bf16")
_MAX_RANK = 2


class TopkRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "topk-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for sort in list(module.instructions_of("sort")):
            slices = _first_slices(sort) if _sorts_down(sort) else None
            if not slices:
                continue
            call = _call(sort, slices[0][1].shape.dims)
            assert sort.parent is not None, "the instruction is in a computation"
            sort.parent.add(call)
            for number, slice_ in slices:
                module.replace(slice_, sort.parent.add(_part(call, number, slice_)))
            remove_unused([slice_ for _, slice_ in slices])


def _sorts_down(sort: HloInstruction) -> bool:
    """Return True for a stable descending sort of one row or a batch of rows, alone or with the positions."""
    keys, *others = sort.operands
    shape, root = keys.shape, sort.to_apply.root
    if shape.element_type not in _TYPES or not 1 <= shape.rank <= _MAX_RANK or sort.dimensions != (shape.rank - 1,):
        return False
    if not sort.is_stable or root.opcode != "compare" or root.comparison_direction != "GT":
        return False
    if [(side.opcode, side.attrs.get("parameter_number")) for side in root.operands] != [("parameter", 0), ("parameter", 1)]:
        return False
    return len(others) <= 1 and all(_counts(other, shape.rank - 1) for other in others)


def _counts(operand: HloInstruction, dim: int) -> bool:
    return operand.opcode == "iota" and operand.iota_dimension == dim and operand.shape.element_type == "s32"


def _first_slices(sort: HloInstruction) -> list[tuple[int, HloInstruction]]:
    """Return the slices with the number of the result that each reads; empty if a user reads more than the first k."""
    if sort.is_root:
        return []
    found: list[tuple[int, HloInstruction]] = []
    for user in sort.users:
        if not sort.shape.is_tuple:
            found.append((0, user))
        elif user.opcode == "get-tuple-element" and not user.is_root:
            number = user.tuple_index
            found += [(number, slice_) for slice_ in user.users]
        else:
            return []
    dims = found[0][1].shape.dims if found else ()
    return found if all(_is_first(slice_) and slice_.shape.dims == dims for _, slice_ in found) else []


def _is_first(slice_: HloInstruction) -> bool:
    if slice_.opcode != "slice":
        return False
    source = slice_.operands[0].shape.dims
    ranges = slice_.slice_ranges
    is_first = all(start == 0 and stride == 1 for start, _, stride in ranges)
    return is_first and slice_.shape.dims[:-1] == source[:-1]


def _call(sort: HloInstruction, dims: tuple[int, ...]) -> HloInstruction:
    kept = {name: sort.attrs[name] for name in ("metadata",) if name in sort.attrs}
    shape = Shape.make_tuple((Shape.array(sort.operands[0].shape.element_type, dims), Shape.array("s32", dims)))
    attrs = {"custom_call_target": "TopK", **kept}
    called = {"called_computations": sort.called["to_apply"]}
    return HloInstruction("custom-call", "custom-call", shape, [sort.operands[0]], attrs, called, sort.where)


def _part(call: HloInstruction, number: int, slice_: HloInstruction) -> HloInstruction:
    kept = {name: slice_.attrs[name] for name in ("metadata",) if name in slice_.attrs}
    return HloInstruction(
        "get-tuple-element", "get-tuple-element", slice_.shape, [call], {"index": number, **kept}, None, slice_.where
    )
