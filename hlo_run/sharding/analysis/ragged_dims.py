"""The dimensions of a ragged product that belong together.

[b,m,k], [g,b,k,n], [b,g] -> [b,m,n]    the free dimension m is cut into groups
[b,m,k], [b,k,n],   [b,g] -> [g,b,m,n]  the contracted dimension k is
[b,m,k], [b,k,n],   [g]   -> [b,m,n]    the batch dimension b is
"""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction


class RaggedDim(Struct, frozen=True):
    """One dimension of the product: its number in each operand and in the result, None where it is absent.

    `is_whole` is true of the ragged dimension and of the groups, which cannot be divided, `is_contracted` of sums.
    """

    dims: tuple[int | None, int | None, int | None]
    output: int | None
    size: int
    is_contracted: bool = False
    is_whole: bool = False


def ragged_dims(product: HloInstruction) -> list[RaggedDim]:
    """Return the dimensions of a `ragged-dot`: batch, free ones, contracted ones, and the groups.

    The sizes of groups have the dimensions of their role in front of the ragged one.
    """
    left, right, groups = (operand.shape.dims for operand in product.operands)
    (ragged,), contracted, batch = product.lhs_ragged_dims, product.lhs_contracting_dims, product.lhs_batch_dims
    found: list[RaggedDim] = []
    has_groups_in_result = ragged in contracted
    out, group = int(has_groups_in_result), 0
    for one, other in zip(batch, product.rhs_batch_dims, strict=True):
        in_sizes = ragged not in batch
        found.append(RaggedDim((one, other, group if in_sizes else None), out, left[one]))
        out, group = out + 1, group + in_sizes
    in_sizes = not has_groups_in_result and ragged not in batch
    for dim, size in enumerate(left):
        if dim not in (*contracted, *batch):
            in_sizes &= dim != ragged
            found.append(RaggedDim((dim, None, group if in_sizes else None), out, size, is_whole=dim == ragged))
            out, group = out + 1, group + in_sizes
    for dim, size in enumerate(right):
        if dim not in (*product.rhs_contracting_dims, *product.rhs_batch_dims, *product.rhs_group_dims):
            found.append(RaggedDim((None, dim, None), out, size))
            out += 1
    in_sizes = has_groups_in_result
    for one, other in zip(contracted, product.rhs_contracting_dims, strict=True):
        in_sizes &= one != ragged
        is_whole = one == ragged
        found.append(RaggedDim((one, other, group if in_sizes else None), None, left[one], not is_whole, is_whole))
        group += in_sizes
    if has_groups_in_result:
        found.append(RaggedDim((None, None, group), 0, groups[group], is_whole=True))
    elif product.rhs_group_dims:
        (place,) = product.rhs_group_dims
        found.append(RaggedDim((None, place, group), None, right[place], is_whole=True))
    return found
