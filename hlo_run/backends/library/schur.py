"""Schur's form A = Z T Zᴴ of one matrix, by shifted QR steps on Hessenberg's form: LAPACK's gees without an order of eigenvalues.

Follows LAPACK's lahqr and lanv2, so that the order of eigenvalues is mostly LAPACK's, too. A real matrix keeps blocks of 2x2 with
equal diagonals for pairs of conjugate values. Signs (phases of a complex matrix) are rounding errors in LAPACK; here the first
number of each vector that is at least a tenth of the largest is positive, and of a block the larger number is above the diagonal.
"""

from __future__ import annotations

import math

import numpy as np

from hlo_run.backends.library import reflections
from hlo_run.backends.library.arrays import Array

_ULP = float(np.finfo(np.float64).eps)
_STEPS_BEFORE_OTHER_SHIFTS = 10
_SIGN_SHARE = 0.1
_NORMAL_SHARE = 1e-12


def schur(matrix: Array) -> tuple[Array, Array, Array, int]:
    """Return (T, Z, eigenvalues, status) of an [n, n] matrix in double; a status k > 0 says that k eigenvalues are not found."""
    size = len(matrix)
    packed, factors = reflections.hessenberg(matrix, 1, size)
    form, vectors = np.triu(packed, -1), np.eye(size, dtype=matrix.dtype)
    if size > 1:
        vectors[1:, 1:] = reflections.apply(packed[1:, :-1], factors, vectors[1:, 1:], left=True, adjoint=False)
    is_complex = np.iscomplexobj(matrix)
    if is_complex:
        for row in range(1, size):
            _make_real(form, vectors, row)
    last = size - 1
    while last >= 0:
        first = _iterate(form, vectors, last, 0 if is_complex else 1)
        if first < 0:
            return form, vectors, np.full(size, np.nan), last + 1
        if first < last:
            _split_block(form, vectors, first)
        last = first - 1
    if not is_complex:
        for row in np.flatnonzero(np.diagonal(form, -1)):
            _choose_block(form, vectors, int(row))
    for column in range(size):
        first = _decisive(np.abs(vectors[:, column]))
        value = complex(vectors[first, column])
        _turn(form, vectors, column, value / abs(value) if is_complex else math.copysign(1, value.real))
    return form, vectors, _eigenvalues(form), 0


def _decisive(sizes: Array) -> int:
    """Return the first place with a number near the largest."""
    return int(np.argmax(sizes >= _SIGN_SHARE * sizes.max()))


def _choose_block(form: Array, vectors: Array, row: int) -> None:
    """Turn the block of a conjugate pair by a right angle, if need be; in a normal matrix, where any angle does, for a 0 in Z."""
    above, below = abs(form[row, row + 1]), abs(form[row + 1, row])
    pair = vectors[:, row : row + 2]
    if abs(above - below) <= _NORMAL_SHARE * (above + below):
        one, other = pair[_decisive(np.hypot(pair[:, 0], pair[:, 1]))]
        _rotate(form, vectors, row, one / math.hypot(one, other), other / math.hypot(one, other))
    elif below > above:
        _rotate(form, vectors, row, 0, 1)
    form[row, row] = form[row + 1, row + 1] = (form[row, row] + form[row + 1, row + 1]) / 2


def _rotate(form: Array, vectors: Array, row: int, cosine: float, sine: float) -> None:
    """Rotate two neighbouring rows, columns and vectors."""
    rotation = np.array([[cosine, sine], [-sine, cosine]])
    both = slice(row, row + 2)
    form[both, row:] = rotation @ form[both, row:]
    form[: row + 2, both] = form[: row + 2, both] @ rotation.T
    vectors[:, both] = vectors[:, both] @ rotation.T


def _iterate(form: Array, vectors: Array, last: int, block: int) -> int:
    """Return where the part that ends in row `last` begins once it has at most `block` more rows; -1 if that takes too long."""
    for step in range(30 * max(10, len(form)) + 1):
        first = _beginning(form, last)
        if first:
            form[first, first - 1] = 0
        if first >= last - block:
            return first
        if block:
            _real_step(form, vectors, first, last, step)
        else:
            _complex_step(form, vectors, first, last, step)
    return -1


def _size(value: complex) -> float:
    return abs(value.real) + abs(value.imag)


def _beginning(form: Array, last: int) -> int:
    """Return the row that has next to nothing left of the diagonal; 0 if no other has."""
    smallest = _ULP * _ULP * float(np.abs(form).max())
    for row in range(last, 0, -1):
        below = _size(form[row, row - 1])
        if below <= smallest:
            return row
        upper, lower = form[row - 1, row - 1], form[row, row]
        around = _size(upper) + _size(lower)
        if around == 0:
            around += abs(form[row - 1, row - 2].real) if row >= 2 else 0
            around += abs(form[row + 1, row].real) if row + 1 < len(form) else 0
        if below > _ULP * around:
            continue
        beside, across = _size(form[row - 1, row]), _size(upper - lower)
        larger, smaller = max(below, beside), min(below, beside)
        most, least = max(_size(lower), across), min(_size(lower), across)
        if smaller * (larger / (most + larger)) <= max(smallest, _ULP * (least * (most / (most + larger)))):
            return row
    return 0


def _reflect_rows(form: Array, vectors: Array, row: int, column: Array, first: int, last: int, reach: int) -> complex:
    """Apply the reflection of `column` to the rows from `row` on, from column `first`, and to the columns; return its tau."""
    column = column.copy()
    tau = reflections.reflect(column)
    vector = column.copy()
    vector[0] = 1
    rows = slice(row, row + len(column))
    part = form[rows, first:]
    part -= np.conj(tau) * np.outer(vector, vector.conj() @ part)
    part = form[: min(row + reach, last + 1), rows]
    part -= tau * np.outer(part @ vector, vector.conj())
    part = vectors[:, rows]
    part -= tau * np.outer(part @ vector, vector.conj())
    if first < row:
        form[row + 1 : row + len(column), first] = 0
    return tau


def _real_step(form: Array, vectors: Array, first: int, last: int, step: int) -> None:
    """One sweep with two shifts, both real or conjugate."""
    (one, one_i), (two, two_i) = _two_shifts(form, first, last, step)
    begin, column = first, np.zeros(3)
    for begin in range(last - 2, first - 1, -1):
        here = form[begin : begin + 3, begin : begin + 3]
        scale = abs(here[0, 0] - two) + abs(two_i) + abs(here[1, 0])
        below = here[1, 0] / scale
        head = below * here[0, 1] + (here[0, 0] - one) * ((here[0, 0] - two) / scale) - one_i * (two_i / scale)
        column = np.array([head, below * (here[0, 0] + here[1, 1] - one - two), below * here[2, 1]])
        column /= np.abs(column).sum()
        if begin == first:
            break
        around = abs(form[begin - 1, begin - 1]) + abs(here[0, 0]) + abs(here[1, 1])
        if abs(form[begin, begin - 1]) * (abs(column[1]) + abs(column[2])) <= _ULP * abs(column[0]) * around:
            break
    for row in range(begin, last):
        height = min(3, last - row + 1)
        if row > begin:
            _reflect_rows(form, vectors, row, form[row : row + height, row - 1], row - 1, last, 4)
            continue
        tau = _reflect_rows(form, vectors, row, column[:height], row, last, 4)
        if begin > first:
            form[row, row - 1] *= 1 - tau


def _two_shifts(form: Array, first: int, last: int, step: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the eigenvalues of the last 2x2, as (re, im); two real ones become twice the nearer to the corner."""
    round_ = step % (2 * _STEPS_BEFORE_OTHER_SHIFTS)
    if step and round_ in (0, _STEPS_BEFORE_OTHER_SHIFTS):
        at, above = (last, last - 1) if round_ == 0 else (first + 1, first + 2)
        scale = abs(form[at, at - 1]) + abs(form[above, above - 1])
        corner = 0.75 * scale + form[last if round_ == 0 else first, last if round_ == 0 else first]
        block = np.array([[corner, -0.4375 * scale], [scale, corner]])
    else:
        block = form[last - 1 : last + 1, last - 1 : last + 1]
    scale = float(np.abs(block).sum())
    if scale == 0:
        return (0.0, 0.0), (0.0, 0.0)
    (a, b), (c, d) = (block / scale).tolist()
    middle = (a + d) / 2
    determinant = (a - middle) * (d - middle) - b * c
    root = math.sqrt(abs(determinant))
    if determinant >= 0:
        return (middle * scale, root * scale), (middle * scale, -root * scale)
    nearer = min(middle + root, middle - root, key=lambda value: abs(value - d)) * scale
    return (nearer, 0.0), (nearer, 0.0)


def _split_block(form: Array, vectors: Array, row: int) -> None:
    """Turn a real 2x2 on the diagonal: an upper triangle if its eigenvalues are real, else equal numbers on the diagonal."""
    (a, b), (c, d) = form[row : row + 2, row : row + 2].tolist()
    half = (a - d) / 2
    discriminant = half * half + b * c
    is_real = discriminant >= 0
    if c == 0 or (not is_real and half == 0):
        cosine, sine = 1.0, 0.0
    elif b == 0:
        cosine, sine = 0.0, 1.0
    elif is_real:
        z = half + math.copysign(math.sqrt(discriminant), half)
        cosine, sine = z / math.hypot(c, z), c / math.hypot(c, z)
    else:
        total = math.hypot(b + c, a - d)
        cosine = math.sqrt((1 + abs(b + c) / total) / 2)
        sine = -half / (total * cosine) * math.copysign(1.0, b + c)
    _rotate(form, vectors, row, cosine, sine)
    if is_real:
        form[row + 1, row] = 0
    else:
        form[row, row] = form[row + 1, row + 1] = (a + d) / 2


def _phase(value: complex) -> complex:
    """Return what makes a number that is not real, real and positive."""
    return (value.conjugate() / abs(value)) if value.imag else 1


def _turn(form: Array, vectors: Array, row: int, phase: complex) -> None:
    """Multiply a row by a phase, and the column by its conjugate."""
    if phase == 1:
        return
    form[row, :] *= phase
    form[:, row] *= np.conj(phase)
    vectors[:, row] *= np.conj(phase)


def _make_real(form: Array, vectors: Array, row: int) -> None:
    """Make the number left of the diagonal real."""
    _turn(form, vectors, row, _phase(form[row, row - 1]))
    form[row, row - 1] = form[row, row - 1].real


def _complex_step(form: Array, vectors: Array, first: int, last: int, step: int) -> None:
    """One sweep with one shift; the diagonal below is real before it and after it."""
    shift = _one_shift(form, first, last, step)
    begin, column = first, np.zeros(2, form.dtype)
    for begin in range(last - 1, first - 1, -1):
        head, below = form[begin, begin] - shift, form[begin + 1, begin].real
        column = np.array([head, below]) / (_size(head) + abs(below))
        around = _size(form[begin, begin]) + _size(form[begin + 1, begin + 1])
        if begin == first or abs(form[begin, begin - 1].real) * abs(column[1]) <= _ULP * (_size(column[0]) * around):
            break
    for row in range(begin, last):
        if row > begin:
            _reflect_rows(form, vectors, row, form[row : row + 2, row - 1], row - 1, last, 3)
            continue
        tau = _reflect_rows(form, vectors, row, column, row, last, 3)
        if begin > first:  # the number above is no longer real
            form[row, row - 1] *= 1 - np.conj(tau)
            _turn_part(form, vectors, row, last, (1 - tau) / abs(1 - tau))
    _make_real(form, vectors, last)


def _turn_part(form: Array, vectors: Array, begin: int, last: int, phase: complex) -> None:
    """Multiply rows `begin` to `last` but the second by a phase, their columns by its conjugate."""
    for row in (begin, *range(begin + 2, last + 1)):
        form[row, :] *= phase
        form[:, row] *= np.conj(phase)
        vectors[:, row] *= np.conj(phase)


def _one_shift(form: Array, first: int, last: int, step: int) -> complex:
    """Return the eigenvalue of the last 2x2 that is nearer to the corner."""
    round_ = step % (2 * _STEPS_BEFORE_OTHER_SHIFTS)
    if step and round_ == 0:
        return 0.75 * abs(form[last, last - 1].real) + form[last, last]
    if step and round_ == _STEPS_BEFORE_OTHER_SHIFTS:
        return 0.75 * abs(form[first + 1, first].real) + form[first, first]
    corner: complex = form[last, last]
    product = np.sqrt(form[last - 1, last]) * np.sqrt(form[last, last - 1])
    if product == 0:
        return corner
    half = (form[last - 1, last - 1] - corner) / 2
    root = np.sqrt(half * half + product * product)
    if (half.conjugate() * root).real < 0:
        root = -root
    return corner - product * (product / (half + root))


def _eigenvalues(form: Array) -> Array:
    values = np.diagonal(form).astype(np.complex128)
    if np.iscomplexobj(form):
        return values
    for row in np.flatnonzero(np.diagonal(form, -1)):
        imaginary = math.sqrt(abs(form[row, row + 1])) * math.sqrt(abs(form[row + 1, row]))
        values[row] += 1j * imaginary
        values[row + 1] -= 1j * imaginary
    return values
