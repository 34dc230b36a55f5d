"""Expand Cholesky decomposition to a blocked algorithm of products, triangular solves and loops over columns.

    f32[6,6] cholesky(a), lower=true   =>   call(a), to_apply=xla.cholesky_f32_6_6__lower

All elements of the result are NaN if the matrix is not positive definite. The other triangle is zero. The upper factor is the
transpose of the lower factor of the transposed matrix. Leaves a call for the inliner, a loop per block of 128 columns, and
triangular solves if the matrix has several blocks. XLA's `cholesky_expander.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.linalg.matrices import (
    dynamic_block,
    for_each,
    minor_block,
    minor_iota,
    product_with_adjoint,
    spread_batch,
    transpose_minor,
    update_minor,
)
from hlo_run.hlo_passes.subgraphs.expansion import expand, shaped_name
from hlo_run.pass_support.hlo_pass import PassContext

_BLOCK_SIZE = 128


class CholeskyExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cholesky_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("cholesky",), _factor, called=_name)


def _name(old: HloInstruction) -> str:
    return f"{shaped_name('cholesky')(old)}_{'lower' if old.lower else 'upper'}"


def _factor(b: HloBuilder, old: HloInstruction, a: HloValue) -> HloValue:
    a.annotate(name="a")
    return _lower(b, a) if old.lower else transpose_minor(b, _lower(b, transpose_minor(b, a)))


def _lower(b: HloBuilder, a: HloValue) -> HloValue:
    dims, size = a.shape.dims, a.shape.dims[-1]
    batch = dims[:-2]
    factor = _zeros(b, a.shape.element_type, dims)
    failed = _zeros(b, "pred", (*batch, 1, 1))
    for start in range(0, size, _BLOCK_SIZE):
        end = min(start + _BLOCK_SIZE, size)
        panel = minor_block(b, a, (start, size), (start, end))
        if start:
            left = minor_block(b, factor, (start, size), (0, start))
            top = minor_block(b, factor, (start, end), (0, start))
            panel = panel - product_with_adjoint(b, left, top)
        block, block_failed = _unblocked(b, minor_block(b, panel, (0, end - start), (0, end - start)))
        failed = b.or_(failed, block_failed)
        factor = update_minor(b, factor, block, start, start)
        if end < size:
            below = minor_block(b, panel, (end - start, size - start), (0, end - start))
            solved = b.triangular_solve(block, below, left_side=False, lower=True, transpose_a="ADJOINT")
            factor = update_minor(b, factor, solved, end, start)
    # XLA's builder broadcasts dimensions of size 1 in two steps.
    everywhere = b.broadcast(failed, failed.shape.dims, range(len(dims)))
    if size > 1:
        everywhere = spread_batch(b, b.reshape(everywhere, batch), dims)
    return b.select(everywhere, b.constant(float("nan"), a.shape.element_type), factor)


def _unblocked(b: HloBuilder, a: HloValue) -> tuple[HloValue, HloValue]:
    """Return the factor, and a pred that is true if it failed; each iteration of the loop computes a column."""
    dims, size = a.shape.dims, a.shape.dims[-1]
    if size == 1:
        root, pivot = _root(b, a)
        return pivot, b.compare(root, root, "NE")
    values = [a, _zeros(b, a.shape.element_type, dims), _zeros(b, "pred", (*dims[:-2], 1, 1))]
    _, factor, failed = for_each(b, size, values, _column, "unblocked")
    return factor, failed


def _column(b: HloBuilder, i: HloValue, values: Sequence[HloValue]) -> list[HloValue]:
    """Return the values after column `i`: (a - l l^H) of the column, divided by the square root of its diagonal element."""
    a, factor, failed = values
    dims, batch = a.shape.dims, a.shape.dims[:-2]
    columns, rows = minor_iota(b, dims, 1), minor_iota(b, dims, 2)
    in_column = b.and_(rows >= columns, b.compare(columns, i, "EQ"))
    others = _zeros(b, a.shape.element_type, dims)
    rest = a - product_with_adjoint(b, factor, factor)
    root, pivot = _root(b, dynamic_block(b, rest, i, i, (1, 1)))
    failed = b.or_(failed, b.compare(root, root, "NE"))
    divided = rest / spread_batch(b, b.reshape(pivot, batch), dims)
    return [a, b.select(in_column, divided, others) + factor, failed]


def _root(b: HloBuilder, pivot: HloValue) -> tuple[HloValue, HloValue]:
    """Return the square root of the real part of a pivot, and the same in the type of the pivot."""
    if not pivot.shape.dtype.is_complex:
        root = b.sqrt(pivot)
        return root, root
    root = b.sqrt(b.real(pivot))
    return root, b.complex(root, _zeros(b, root.shape.element_type, root.shape.dims))


def _zeros(b: HloBuilder, element_type: str, dims: Sequence[int]) -> HloValue:
    return b.broadcast(b.constant(0, element_type), dims)
