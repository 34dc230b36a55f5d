"""Expand QR decomposition to blocked Householder reflections.

    (f32[6,4], f32[4]) custom-call(a), custom_call_target="Qr"   =>   call(a), to_apply=xla.qr_f32_6_4_
    f32[6,4] custom-call(a, taus), custom_call_target="ProductOfElementaryHouseholderReflectors"   =>   call(..)

`Qr` returns R on and above the diagonal, the vectors of the reflections I - tau v v^H below it, and the factors tau, as LAPACK's
geqrf does. A block of reflections is applied as I - V T V^H. Leaves calls for the inliner, and loops. XLA's `qr_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.linalg.matrices import (
    adjoint,
    conjugate,
    contract,
    dynamic_block,
    minor_iota,
    minor_slice,
    spread_batch,
    update_minor,
)
from hlo_run.hlo_passes.subgraphs.expansion import expand, shaped_name
from hlo_run.pass_support.hlo_pass import PassContext

_BLOCK_SIZE = 128
_PRODUCT = "ProductOfElementaryHouseholderReflectors"


class QrExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "qr_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("custom-call",), _decompose, lambda i: i.custom_call_target == "Qr", called=shaped_name("qr"))
        expand(
            module,
            ("custom-call",),
            _product,
            lambda i: i.custom_call_target == _PRODUCT,
            called=shaped_name("householder_product"),
        )


def _decompose(b: HloBuilder, old: HloInstruction, a: HloValue) -> HloValue:
    *batch, rows, columns = a.shape.dims
    count = min(rows, columns)
    taus = b.broadcast(b.constant(0, a.shape.element_type), old.shape.tuple_shapes[1].dims)
    for start in range(0, count, _BLOCK_SIZE):
        end = min(start + _BLOCK_SIZE, count)
        block, factors = _reflect_block(b, minor_slice(b, a, (start, rows), (start, end)))
        a = update_minor(b, a, block, start, start)
        zero = b.constant(0, "s32")
        taus = b.dynamic_update_slice(taus, factors, [*[zero] * len(batch), b.constant(start, "s32")])
        if end < columns:
            vectors = _unit_lower(b, block)
            rest = minor_slice(b, a, (start, rows), (end, columns))
            weights = adjoint(b, _triangular_factor(b, vectors, factors))
            a = update_minor(b, a, _apply(b, vectors, weights, rest), start, end)
    return b.tuple([a, taus])


def _product(b: HloBuilder, old: HloInstruction, a: HloValue, taus: HloValue) -> HloValue:
    """Return the leading columns of the product of all reflections; the last block is applied first."""
    rows, columns = a.shape.dims[-2:]
    count = taus.shape.dims[-1]
    product = b.select(_on_diagonal(b, a.shape.dims), _one(b, a), _zeros(b, a.shape))
    for start in reversed(range(0, count, _BLOCK_SIZE)):
        end = min(start + _BLOCK_SIZE, count)
        vectors = _unit_lower(b, minor_slice(b, a, (start, rows), (start, end)))
        factors = b.slice(taus, [*((0, size) for size in taus.shape.dims[:-1]), (start, end)])
        rest = minor_slice(b, product, (start, rows), (start, columns))
        applied = _apply(b, vectors, _triangular_factor(b, vectors, factors), rest)
        product = update_minor(b, product, applied, start, start)
    return product


def _apply(b: HloBuilder, vectors: HloValue, weights: HloValue, matrix: HloValue) -> HloValue:
    """Return (I - V T V^H) times a matrix; `weights` is T."""
    return matrix - contract(b, contract(b, vectors, weights), contract(b, adjoint(b, vectors), matrix))


def _reflect_block(b: HloBuilder, a: HloValue) -> tuple[HloValue, HloValue]:
    """Reflect column by column; return R with the vectors below its diagonal, and the factors tau."""
    *batch, rows, columns = a.shape.dims
    no_factors = b.broadcast(b.constant(0, a.shape.element_type), (*batch, columns))
    state = b.tuple([b.constant(0, "s32"), a, no_factors])
    result = b.while_(state, lambda value: value[0] < min(rows, columns), _reflect_column)
    return result[1], result[2]


def _reflect_column(state: HloValue) -> HloValue:
    b = state.builder
    assert isinstance(b, HloBuilder), "the loop is built by an HloBuilder"
    j, a, taus = (state[number] for number in range(3))
    *batch, rows, _ = a.shape.dims
    column = b.reshape(dynamic_block(b, a, b.constant(0, "s32"), j, (rows, 1)), (*batch, rows))
    vector, tau, beta = _reflection(b, column, j)
    place, column_of = minor_iota(b, column.shape.dims, 1), minor_iota(b, a.shape.dims, 1)
    # conj(tau): R is made by the adjoint of the reflection in Q.
    row = contract(b, b.reshape(conjugate(b, vector), (*batch, 1, rows)), a)
    step = contract(b, b.reshape(vector, (*batch, rows, 1)), row) * spread_batch(b, conjugate(b, tau), a.shape.dims)
    below = b.select(place > j, vector, b.constant(0, a.shape.element_type))
    at = b.select(b.compare(place, j, "EQ"), spread_batch(b, beta, column.shape.dims), below)
    new_column = spread_batch(b, b.select(place < j, column, at), a.shape.dims)
    reflected = b.select(column_of > j, a - step, a)
    is_factor = b.compare(minor_iota(b, taus.shape.dims, 1), j, "EQ")
    new_taus = b.select(is_factor, spread_batch(b, tau, taus.shape.dims), taus)
    return b.tuple([j + 1, b.select(b.compare(column_of, j, "EQ"), new_column, reflected), new_taus])


def _reflection(b: HloBuilder, x: HloValue, k: HloValue) -> tuple[HloValue, HloValue, HloValue]:
    """Return v (1 at k, 0 before), tau and beta such that (I - tau v v^H)^H x is beta at k and 0 after k."""
    *batch, _ = x.shape.dims
    is_complex, element_type = x.shape.dtype.is_complex, x.shape.element_type
    zero = b.constant(0, element_type)
    place = minor_iota(b, x.shape.dims, 1)
    tail = b.select(place > k, x, zero)
    square = b.real(tail) * b.real(tail) + b.imag(tail) * b.imag(tail) if is_complex else tail * tail
    real_zero = b.constant(0, square.shape.element_type)
    squares = b.reduce(square, real_zero, [len(batch)], "add")
    starts = [b.constant(0, "s32")] * len(batch)
    alpha = b.reshape(b.dynamic_slice(x, [*starts, k], (*batch, 1)), batch)
    parts = [b.real(alpha), b.imag(alpha)] if is_complex else [alpha]
    is_reflected = b.compare(squares, real_zero, "EQ")
    for imaginary in parts[1:]:
        is_reflected = b.and_(is_reflected, b.compare(imaginary, real_zero, "EQ"))
    length = _hypotenuse(b, [*parts, b.sqrt(squares)])
    real_beta = b.select(is_reflected, parts[0], b.select(parts[0] < real_zero, length, -length))
    beta = _from_real(b, real_beta, element_type)
    tau = b.select(is_reflected, zero, (beta - alpha) / beta)
    divisor = b.select(is_reflected, b.constant(1, element_type), alpha - beta)
    vector = tail / spread_batch(b, divisor, x.shape.dims)
    return b.select(b.compare(place, k, "EQ"), b.constant(1, element_type), vector), tau, beta


def _hypotenuse(b: HloBuilder, sides: list[HloValue]) -> HloValue:
    """Return the root of the sum of squares, scaled by the largest so that no square overflows."""
    magnitudes = [b.abs(side) for side in sides]
    largest = magnitudes[0]
    for other in magnitudes[1:]:
        largest = b.maximum(largest, other)
    ratios = [magnitude / largest for magnitude in magnitudes]
    total = ratios[0] * ratios[0]
    for ratio in ratios[1:]:
        total = total + ratio * ratio
    return b.select(b.compare(largest, 0, "EQ"), largest, largest * b.sqrt(total))


def _triangular_factor(b: HloBuilder, vectors: HloValue, taus: HloValue) -> HloValue:
    """Return the upper triangular T of I - V T V^H, LAPACK's larft; each iteration of the loop computes a column."""
    *batch, _, count = vectors.shape.dims
    dims = (*batch, count, count)
    inner = contract(b, adjoint(b, vectors), vectors)
    diagonal = b.broadcast(taus, dims, [*range(len(batch)), len(batch) + 1])
    start = b.select(_on_diagonal(b, dims), diagonal, b.constant(0, taus.shape.element_type))
    state = b.tuple([b.constant(0, "s32"), start, inner])
    return b.while_(state, lambda value: value[0] < count, _factor_column)[1]


def _factor_column(state: HloValue) -> HloValue:
    """T[:j, j] = -T[j, j] T[:j, :j] (V^H V)[:j, j]; right of the diagonal, columns j and later of T are still zero."""
    b = state.builder
    assert isinstance(b, HloBuilder), "the loop is built by an HloBuilder"
    j, factor, inner = (state[number] for number in range(3))
    *batch, count, _ = factor.shape.dims
    dims = factor.shape.dims
    element_type = factor.shape.element_type
    rows, columns = minor_iota(b, dims, 2), minor_iota(b, dims, 1)
    zero = b.constant(0, element_type)
    column = dynamic_block(b, inner, b.constant(0, "s32"), j, (count, 1))
    above = b.select(minor_iota(b, column.shape.dims, 2) < j, column, zero)
    tau = b.reshape(dynamic_block(b, factor, j, j, (1, 1)), batch)
    product = b.reshape(contract(b, factor, above), (*batch, count)) * spread_batch(b, tau, (*batch, count))
    spread = b.broadcast(-product, dims, [*range(len(batch)), len(batch)])
    is_new = b.and_(b.compare(columns, j, "EQ"), rows < j)
    return b.tuple([j + 1, b.select(is_new, spread, factor), inner])


def _unit_lower(b: HloBuilder, block: HloValue) -> HloValue:
    """Return the vectors that are below the diagonal, with their leading ones."""
    dims = block.shape.dims
    rows, columns = minor_iota(b, dims, 2), minor_iota(b, dims, 1)
    below = b.select(rows > columns, block, b.constant(0, block.shape.element_type))
    return b.select(b.compare(rows, columns, "EQ"), _one(b, block), below)


def _on_diagonal(b: HloBuilder, dims: tuple[int, ...]) -> HloValue:
    return b.compare(minor_iota(b, dims, 2), minor_iota(b, dims, 1), "EQ")


def _one(b: HloBuilder, like: HloValue) -> HloValue:
    return b.constant(1, like.shape.element_type)


def _zeros(b: HloBuilder, shape: Shape) -> HloValue:
    return b.broadcast(b.constant(0, shape.element_type), shape.dims)


def _from_real(b: HloBuilder, real: HloValue, element_type: str) -> HloValue:
    if real.shape.element_type == element_type:
        return real
    return b.complex(real, b.broadcast(b.constant(0, real.shape.element_type), real.shape.dims))
