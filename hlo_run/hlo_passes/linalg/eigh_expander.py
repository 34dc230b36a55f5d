"""Expand `Eigh` calls, eigendecompositions of symmetric (Hermitian) matrices, to parallel Jacobi rotations.

    (f32[6,6], f32[6]) custom-call(a), custom_call_target="Eigh"   =>   call(a), to_apply=xla.eigh_f32_6_6_

The results are the eigenvectors as columns and the ascending eigenvalues; each vector's sign is arbitrary. The call's
configuration is `LOWER,SORT,SWEEPS,TOLERANCE`. Each step rotates row i of the upper half with row i of the lower half, for all i.
Then the rows move as in a round-robin tournament, so that a sweep pairs all rows (Brent and Luk, 1985). Leaves a call for the
inliner, and loops. XLA's `eigh_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.linalg.matrices import adjoint, contract, minor_iota, minor_slice
from hlo_run.hlo_passes.subgraphs.expansion import expand, shaped_name
from hlo_run.pass_support.hlo_pass import PassContext

_SWEEPS = 30
# The loop ends when the off-diagonal norm is at most this fraction of the matrix norm (Frobenius norms).
_TOLERANCE = {"f64": 1e-14, "c128": 1e-14}
_NARROW_TOLERANCE = 1e-6


class EighExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "eigh_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("custom-call",), _diagonalise, _is_eigh, called=shaped_name("eigh"))


def _is_eigh(call: HloInstruction) -> bool:
    return call.custom_call_target == "Eigh"


def _diagonalise(b: HloBuilder, old: HloInstruction, a: HloValue) -> HloValue:
    config = (old.backend_config or "1").strip('"').split(",")
    size = a.shape.dims[-1]
    sweeps = int(config[2]) if len(config) > 2 else _SWEEPS
    tolerance = _TOLERANCE.get(a.shape.element_type, _NARROW_TOLERANCE)
    matrix = _even(b, _symmetric(b, a, lower=config[0].strip() != "0"))
    state = b.tuple([b.constant(0, "s32"), matrix, _identity(b, matrix.shape)])

    def goes_on(value: HloValue) -> HloValue:
        inner = value.builder
        assert isinstance(inner, HloBuilder), "the loop is built by an HloBuilder"
        return inner.and_(value[0] < sweeps, _is_unfinished(inner, value[1], tolerance))

    result = b.while_(state, goes_on, _sweep)
    # A whole sweep moves every row back to its position; the padding row is the last.
    whole = (0, size)
    vectors = minor_slice(b, result[2], whole, whole)
    values = _diagonal(b, minor_slice(b, result[1], whole, whole))
    if values.shape.dtype.is_complex:
        values = b.real(values)
    return b.tuple(_ascending(b, vectors, values))


def _symmetric(b: HloBuilder, a: HloValue, lower: bool) -> HloValue:
    """Return the full matrix of the chosen triangle."""
    rows, columns = minor_iota(b, a.shape.dims, 2), minor_iota(b, a.shape.dims, 1)
    return b.select(rows >= columns if lower else rows <= columns, a, adjoint(b, a))


def _even(b: HloBuilder, a: HloValue) -> HloValue:
    """Return the matrix with even size, padded by a row and a column of zeros, which no rotation changes."""
    missing = a.shape.dims[-1] % 2
    edges = [(0, 0)] * (a.shape.rank - 2) + [(0, missing)] * 2
    return b.pad(a, b.constant(0, a.shape.element_type), edges) if missing else a


def _identity(b: HloBuilder, shape: Shape) -> HloValue:
    on_diagonal = b.compare(minor_iota(b, shape.dims, 2), minor_iota(b, shape.dims, 1), "EQ")
    return b.convert(on_diagonal, shape.element_type)


def _diagonal(b: HloBuilder, a: HloValue) -> HloValue:
    """Return the diagonal elements (i, i)."""
    zero = b.constant(0, a.shape.element_type)
    on_diagonal = b.compare(minor_iota(b, a.shape.dims, 2), minor_iota(b, a.shape.dims, 1), "EQ")
    return b.reduce(b.select(on_diagonal, a, zero), zero, [a.shape.rank - 1], "add")


def _is_unfinished(b: HloBuilder, a: HloValue, tolerance: float) -> HloValue:
    """Return a scalar pred: true if the off-diagonal norm of a matrix in the batch is above the tolerance."""
    magnitude = b.abs(a)
    square = magnitude * magnitude
    zero = b.constant(0, square.shape.element_type)
    on_diagonal = b.compare(minor_iota(b, a.shape.dims, 2), minor_iota(b, a.shape.dims, 1), "EQ")
    dims = [a.shape.rank - 2, a.shape.rank - 1]
    total = b.reduce(square, zero, dims, "add")
    off = b.reduce(b.select(on_diagonal, zero, square), zero, dims, "add")
    unfinished = off > total * tolerance**2
    if not unfinished.shape.rank:
        return unfinished
    return b.reduce(unfinished, b.constant(False), range(unfinished.shape.rank), "or")


def _sweep(state: HloValue) -> HloValue:
    """Return the state after a sweep, which rotates every pair of rows once."""
    b = state.builder
    assert isinstance(b, HloBuilder), "the loop is built by an HloBuilder"
    size = state[1].shape.dims[-1]
    start = b.tuple([b.constant(0, "s32"), state[1], state[2]])
    result = b.while_(start, lambda value: value[0] < size - 1, _rotate)
    return b.tuple([state[0] + 1, result[1], result[2]])


def _rotate(state: HloValue) -> HloValue:
    """Rotate rows and columns (i, i + n/2) so that element (i, i + n/2) becomes 0, for all i, then permute the rows."""
    b = state.builder
    assert isinstance(b, HloBuilder), "the loop is built by an HloBuilder"
    count, a, vectors = (state[number] for number in range(3))
    rows = a.shape.rank - 2
    cosine, sine = _angles(b, a)
    conjugate_sine = b.complex(b.real(sine), -b.imag(sine)) if sine.shape.dtype.is_complex else sine
    turned = _turn(b, _turn(b, a, cosine, sine, rows), cosine, conjugate_sine, rows + 1)
    new_vectors = _turn(b, vectors, cosine, conjugate_sine, rows + 1)
    moved = _move_on(b, _move_on(b, turned, rows), rows + 1)
    return b.tuple([count + 1, moved, _move_on(b, new_vectors, rows + 1)])


def _angles(b: HloBuilder, a: HloValue) -> tuple[HloValue, HloValue]:
    """Return the cosine and the sine (for complex matrices, times the phase of the element) of each pair's rotation."""
    half, size = a.shape.dims[-1] // 2, a.shape.dims[-1]
    top, bottom = (0, half), (half, size)
    first, off, second = (_diagonal(b, minor_slice(b, a, *place)) for place in ((top, top), (top, bottom), (bottom, bottom)))
    if a.shape.dtype.is_complex:
        first, second = b.real(first), b.real(second)
    magnitude = b.abs(off)
    one, zero = (b.constant(value, magnitude.shape.element_type) for value in (1, 0))
    is_zero = b.compare(magnitude, zero, "EQ")
    # The smaller root of t^2 + 2 tau t - 1: the rotation by at most 45 degrees.
    tau = (second - first) / (b.select(is_zero, one, magnitude) * 2.0)
    sign = b.select(tau < zero, -one, one)
    tangent = b.select(is_zero, zero, sign / (b.abs(tau) + b.sqrt(tau * tau + one)))
    cosine = b.rsqrt(tangent * tangent + one)
    sine = tangent * cosine
    if not a.shape.dtype.is_complex:
        return cosine, b.select(off < zero, -sine, sine)
    safe = b.select(is_zero, one, magnitude)
    return cosine, b.complex(sine * b.real(off) / safe, sine * b.imag(off) / safe)


def _turn(b: HloBuilder, a: HloValue, cosine: HloValue, sine: HloValue, dim: int) -> HloValue:
    """Return (c x - s y, conj(s) x + c y) for the two halves x and y of a dimension."""
    x, y = _halves(b, a, dim)
    element_type = a.shape.element_type
    places = [*range(a.shape.rank - 2), dim]
    is_complex = a.shape.dtype.is_complex
    c = b.broadcast(b.convert(cosine, element_type) if is_complex else cosine, x.shape.dims, places)
    s = b.broadcast(sine, x.shape.dims, places)
    conjugate = b.complex(b.real(s), -b.imag(s)) if is_complex else s
    return b.concatenate([c * x - s * y, conjugate * x + c * y], dim)


def _halves(b: HloBuilder, a: HloValue, dim: int) -> tuple[HloValue, HloValue]:
    half = a.shape.dims[dim] // 2
    return _cut(b, a, dim, 0, half), _cut(b, a, dim, half, 2 * half)


def _cut(b: HloBuilder, a: HloValue, dim: int, start: int, limit: int) -> HloValue:
    return b.slice(a, [(start, limit) if number == dim else (0, size) for number, size in enumerate(a.shape.dims)])


def _move_on(b: HloBuilder, a: HloValue, dim: int) -> HloValue:
    """Keep row 0; the others rotate: right through the upper half, then left through the lower half, and back."""
    half = a.shape.dims[dim] // 2
    if half == 1:
        return a
    pieces = [(0, 1), (half, half + 1), (1, half - 1), (half + 1, 2 * half), (half - 1, half)]
    return b.concatenate([_cut(b, a, dim, *piece) for piece in pieces if piece[0] < piece[1]], dim)


def _ascending(b: HloBuilder, vectors: HloValue, values: HloValue) -> list[HloValue]:
    """Return the vectors and values sorted by value."""
    dims = values.shape.dims
    last = len(dims) - 1
    place = minor_iota(b, dims, 1)

    def smaller(left: HloValue, right: HloValue, one: HloValue, two: HloValue) -> HloValue:
        del one, two
        return left < right

    ordered = b.sort([values, place], last, smaller, is_stable=True)
    # A product with a permutation matrix is exact and needs no gather.
    chosen = b.broadcast(ordered[1], vectors.shape.dims, [*range(last), last + 1])
    permutation = b.convert(b.compare(minor_iota(b, vectors.shape.dims, 2), chosen, "EQ"), vectors.shape.element_type)
    return [contract(b, vectors, permutation), ordered[0]]
