"""Rewrite slices of a sort that take the k largest elements to a `TopK` call.

    s = (f32[4,100], s32[4,100]) sort(x, iota), to_apply=(a > b), is_stable=true
    slice(get-tuple-element(s), index=0), slice={[0:4], [0:5]}  =>  c = (f32[4,5], s32[4,5]) custom-call(x), "TopK"
    slice(get-tuple-element(s), index=1), ..                        get-tuple-element(c), index=0 and 1

For f32 and bf16, along the first or last dimension, if the sort has no other users. The call gets one row or a batch of rows:
the other dimensions are reshaped to one, and rows along the first dimension are transposed. Its backend_config says whether the
sort was stable, and whether it compared in the total order of floats. Leaves the sort and its slices behind
without users; `dce` removes them. XLA's `TopkRewriter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext

_TYPES = ("f32", "bf16")


class TopkRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "topk-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for sort in module.in_post_order("sort"):
            slices = _first_slices(sort) if _sorts_down(sort) else None
            if not slices:
                continue
            largest = _largest(sort, slices[0][1].shape.dims[sort.dimensions[0]])
            for number, slice_ in slices:
                module.replace_uses(slice_, largest[number])


def _sorts_down(sort: HloInstruction) -> bool:
    """Return True for a descending sort along the first or last dimension, alone or with the positions."""
    keys, *others = sort.operands
    shape, root = keys.shape, sort.to_apply.root
    if shape.element_type not in _TYPES or shape.rank < 1 or sort.dimensions[0] not in (0, shape.rank - 1):
        return False
    if root.opcode != "compare" or root.comparison_direction != "GT":
        return False
    if tuple(root.operands) != tuple(sort.to_apply.parameters[:2]):
        return False
    return len(others) <= 1 and all(_counts(other, sort.dimensions[0]) for other in others)


def _counts(operand: HloInstruction, dim: int) -> bool:
    """Return True for positions along `dim`: an iota, or a vector that counts, broadcast to the other dimensions."""
    if operand.opcode == "broadcast" and operand.dimensions == (dim,):
        operand, dim = operand.operands[0], 0
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
    dim = sort.dimensions[0]
    return found if all(_is_first(slice_, dim) and slice_.shape.dims == dims for _, slice_ in found) else []


def _is_first(slice_: HloInstruction, dim: int) -> bool:
    if slice_.opcode != "slice":
        return False
    source = slice_.operands[0].shape.dims
    ranges = slice_.slice_ranges
    is_first = all(start == 0 and stride == 1 for start, _, stride in ranges)
    return is_first and all(size == source[d] for d, size in enumerate(slice_.shape.dims) if d != dim)


def _largest(sort: HloInstruction, k: int) -> list[HloInstruction]:
    """Add the call, and return the k largest elements and their positions, in the dimensions of the sort."""
    editor, value = Editor(sort), sort.operands[0]
    dims, dim = value.shape.dims, sort.dimensions[0]
    count, rows = dims[dim], value.shape.element_count // max(dims[dim], 1)
    is_first = dim == 0 and len(dims) > 1
    if len(dims) > 2:
        value = editor.reshape(value, (count, rows) if is_first else (rows, count))
    if is_first:
        value = editor.transpose(value, (1, 0))
    size = (rows, k) if len(dims) > 1 else (k,)
    shape = Shape.make_tuple((Shape.array(value.shape.element_type, size), Shape.array("s32", size)))
    called = {"called_computations": sort.called["to_apply"]}
    config = f'{{is_stable = {str(sort.is_stable).lower()}, order = "{sort.to_apply.root.comparison_order or "PARTIAL"}"}}'
    call = editor.add("custom-call", shape, [value], called, custom_call_target="TopK", backend_config=config)
    found: list[HloInstruction] = []
    for number in range(2):
        part = editor.element(call, number)
        if is_first:
            part = editor.transpose(part, (1, 0))
        found.append(editor.reshape(part, (*dims[:dim], k, *dims[dim + 1 :])) if len(dims) > 2 else part)
    return found
