"""Expand Cholesky decomposition to a blocked algorithm of products, triangular solves and loops over columns.

    f32[6,6] cholesky(a), lower=true   =>   call(a), to_apply=xla.cholesky_f32_6_6__lower

All elements of the result are NaN if the matrix is not positive definite. The other triangle is zero. The upper factor is the
adjoint of the lower factor of the adjoint matrix. Leaves a call for the inliner, a loop per block of 128 columns, and
triangular solves if the matrix has several blocks. XLA's `cholesky_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.expansion import expand, shaped_name
from hlo_run.hlo_passes.subgraphs.matrices import (
    adjoint,
    contract,
    dynamic_block,
    minor_iota,
    minor_slice,
    spread_batch,
    update_minor,
)

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
    if old.lower:
        return _lower(b, a)
    return adjoint(b, _lower(b, adjoint(b, a)))


def _lower(b: HloBuilder, a: HloValue) -> HloValue:
    dims, size = a.shape.dims, a.shape.dims[-1]
    batch = dims[:-2]
    factor = b.broadcast(b.constant(0, a.shape.element_type), dims)
    failed = b.broadcast(b.constant(False), (*batch, 1, 1))
    for start in range(0, size, _BLOCK_SIZE):
        end = min(start + _BLOCK_SIZE, size)
        panel = minor_slice(b, a, (start, size), (start, end))
        if start:
            left = minor_slice(b, factor, (start, size), (0, start))
            top = minor_slice(b, factor, (start, end), (0, start))
            panel = panel - contract(b, left, adjoint(b, top))
        block, block_failed = _unblocked(b, minor_slice(b, panel, (0, end - start), (0, end - start)))
        failed = b.or_(failed, block_failed)
        factor = update_minor(b, factor, block, start, start)
        if end < size:
            below = minor_slice(b, panel, (end - start, size - start), (0, end - start))
            solved = b.triangular_solve(block, below, left_side=False, lower=True, transpose_a="ADJOINT")
            factor = update_minor(b, factor, solved, end, start)
    everywhere = spread_batch(b, b.reshape(failed, batch), dims)
    return b.select(everywhere, b.constant(float("nan"), a.shape.element_type), factor)


def _unblocked(b: HloBuilder, a: HloValue) -> tuple[HloValue, HloValue]:
    """Return the factor, and a pred that is true if it failed; each iteration of the loop computes a column."""
    dims, size = a.shape.dims, a.shape.dims[-1]
    no_factor = b.broadcast(b.constant(0, a.shape.element_type), dims)
    no_failure = b.broadcast(b.constant(False), (*dims[:-2], 1, 1))
    state = b.tuple([b.constant(0, "s32"), a, no_factor, no_failure])
    result = b.while_(state, lambda value: value[0] < size, _column)
    return result[2], result[3]


def _column(state: HloValue) -> HloValue:
    """Return the state after column `i`: (a - l l^H) of the column, divided by the square root of its diagonal element."""
    b = state.builder
    assert isinstance(b, HloBuilder), "the loop is built by an HloBuilder"
    i, a, factor, failed = (state[number] for number in range(4))
    dims, batch = a.shape.dims, a.shape.dims[:-2]
    rest = a - contract(b, factor, adjoint(b, factor))
    pivot = dynamic_block(b, rest, i, i, (1, 1))
    if a.shape.dtype.is_complex:
        root = b.sqrt(b.real(pivot))
        pivot = b.complex(root, b.broadcast(b.constant(0, root.shape.element_type), root.shape.dims))
    else:
        root = pivot = b.sqrt(pivot)
    divided = rest / spread_batch(b, b.reshape(pivot, batch), dims)
    rows, columns = minor_iota(b, dims, 2), minor_iota(b, dims, 1)
    in_column = b.and_(rows >= columns, b.compare(columns, i, "EQ"))
    column = b.select(in_column, divided, b.constant(0, a.shape.element_type))
    return b.tuple([i + 1, a, column + factor, b.or_(failed, b.compare(root, root, "NE"))])
