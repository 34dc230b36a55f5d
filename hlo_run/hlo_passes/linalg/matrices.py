"""Helpers of the linear algebra expanders: matrices are in the two minor dimensions; all other dimensions are batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.values.shape import Shape

Range = tuple[int, int]


def conjugate(b: HloBuilder, a: HloValue) -> HloValue:
    """Return the complex conjugate; a real array is returned unchanged."""
    return b.complex(b.real(a), -b.imag(a)) if a.shape.dtype.is_complex else a


def transpose_minor(b: HloBuilder, a: HloValue) -> HloValue:
    """Return the transposed matrices in the default layout; shape inference would pick the layout that moves no elements."""
    *batch, rows, columns = a.shape.dims
    shape = Shape.array(a.shape.element_type, (*batch, columns, rows))
    rank = a.shape.rank
    return b.instruction("transpose", [a], shape, dimensions=(*range(rank - 2), rank - 1, rank - 2))


def adjoint(b: HloBuilder, a: HloValue) -> HloValue:
    """Return the conjugate transposed matrices."""
    return conjugate(b, transpose_minor(b, a))


def product_with_adjoint(b: HloBuilder, lhs: HloValue, rhs: HloValue) -> HloValue:
    """Return the products of matrices with adjoint matrices, with operand precision `highest`.

    The transpose without effect and the attributes of the product are those of XLA's einsum.
    """
    rank = lhs.shape.rank
    batch = tuple(range(rank - 2))
    other = conjugate(b, rhs)
    product = b.dot(
        lhs,
        other,
        lhs_batch_dims=batch,
        rhs_batch_dims=batch,
        lhs_contracting_dims=(rank - 1,),
        rhs_contracting_dims=(rank - 1,),
        operand_precision=("highest", "highest"),
    )
    product.annotate(frontend_attributes={"grad_x": "false", "grad_y": "false"})
    return b.transpose(product, range(rank))


def contract(b: HloBuilder, lhs: HloValue, rhs: HloValue) -> HloValue:
    """Return the matrix products, with operand precision `highest`."""
    rank = lhs.shape.rank
    batch = range(rank - 2)
    return b.dot(
        lhs,
        rhs,
        lhs_batch_dims=tuple(batch),
        rhs_batch_dims=tuple(batch),
        lhs_contracting_dims=(rank - 1,),
        rhs_contracting_dims=(rank - 2,),
        operand_precision=("highest", "highest"),
    )


def minor_slice(b: HloBuilder, a: HloValue, rows: Range, columns: Range) -> HloValue:
    """Return blocks of the matrices; `rows` and `columns` are half-open ranges (start, limit). Whole matrices get no slice."""
    whole = (0, a.shape.dims[-2]), (0, a.shape.dims[-1])
    return a if (rows, columns) == whole else minor_block(b, a, rows, columns)


def minor_block(b: HloBuilder, a: HloValue, rows: Range, columns: Range) -> HloValue:
    """Return blocks of the matrices as a slice, also the whole, as XLA does; the ranges are half-open."""
    return b.slice(a, [*((0, size) for size in a.shape.dims[:-2]), rows, columns])


def update_minor(b: HloBuilder, a: HloValue, block: HloValue, row: int, column: int) -> HloValue:
    """Return the matrices with a block replaced; its first element is at (row, column)."""
    starts = [*[0] * (a.shape.rank - 2), row, column]
    return b.dynamic_update_slice(a, block, [b.constant(start, "s32") for start in starts])


def dynamic_block(b: HloBuilder, a: HloValue, row: HloValue, column: HloValue, sizes: Sequence[int]) -> HloValue:
    """Return blocks of the matrices with first element (row, column), which are scalars; `sizes` are (rows, columns)."""
    batch = a.shape.dims[:-2]
    zero = b.constant(0, row.shape.element_type)
    return b.dynamic_slice(a, [*[zero] * len(batch), row, column], (*batch, *sizes))


def minor_iota(b: HloBuilder, dims: Sequence[int], from_end: int) -> HloValue:
    """Return an s32 array that counts along the last dimension (`from_end` 1) or the one before it (2)."""
    return b.iota(Shape.array("s32", tuple(dims)), len(dims) - from_end)


def spread_batch(b: HloBuilder, value: HloValue, dims: Sequence[int]) -> HloValue:
    """Broadcast one value per matrix, or per row of the matrices, to `dims` along the missing minor dimensions."""
    return b.broadcast(value, dims, range(value.shape.rank))


def for_each(
    b: HloBuilder,
    count: int,
    values: Sequence[HloValue],
    step: Callable[[HloBuilder, HloValue, Sequence[HloValue]], Sequence[HloValue]],
    name: str,
) -> list[HloValue]:
    """Return the values after a loop whose step changes them `count` times; it gets the number of the iteration as an s32.

    The computations are called NAME_condition and NAME_body. Every element of their state is read, as in XLA, used or not.
    """
    start = b.constant(0, "s32")
    state = b.tuple([start, *values])
    inner = b.sub_builder(f"{name}_condition")
    number, *_ = _elements(inner.leaf("parameter", state.shape, {"parameter_number": 0}))
    condition = inner.build_computation(number < count)
    inner = b.sub_builder(f"{name}_body")
    number, *before = _elements(inner.leaf("parameter", state.shape, {"parameter_number": 0}))
    following = number + 1
    body = inner.build_computation(inner.tuple([following, *step(inner, number, before)]))
    return _elements(b.while_(state, condition, body))[1:]


def _elements(value: HloValue) -> list[HloValue]:
    return [value[number] for number in range(len(value))]
