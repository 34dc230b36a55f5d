"""Schur's form A = Z T Zᴴ in double, every step of QR as the whole unitary matrix that it is.

Source: Golub and Van Loan, Matrix Computations, 7.4 and 7.5. Shifts, and what counts as 0, are those of LAPACK's lahqr and lanv2.
Signs and phases depend on rounding there. Here the first number of each vector that is at least a tenth of the vector's
largest is positive; of a pair of conjugate values the larger of the two numbers beside the diagonal is above it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hlo_run.reference.numerics.factorizations import reflector
from hlo_run.reference.numerics.factorizations import taxicab as size_of
from hlo_run.reference.values import Array

_EPS = np.finfo(np.float64).eps


def _isolating_order(matrix: Array) -> list[int]:
    """Return the order of rows and columns that gees begins with: eigenvalues that can be read off come last, or first.

    A row without numbers beside its diagonal, among the rows left, moves to their end; then such a column moves to their
    beginning. As LAPACK's gebal, job P, whose exchanges decide the order of what is left.
    """
    order = list(range(len(matrix)))
    first, end = 0, len(matrix)

    def isolated(place: int, by_row: bool) -> bool:
        others = [order[k] for k in range(first, end) if k != place]
        line = matrix[order[place], others] if by_row else matrix[others, order[place]]
        return not np.any(line)

    def move(by_row: bool) -> bool:
        nonlocal first, end
        found = False
        place = end - 1 if by_row else first
        while first <= place < end:
            if isolated(place, by_row):
                target = end - 1 if by_row else first
                order[place], order[target] = order[target], order[place]
                end, first = (end - 1, first) if by_row else (end, first + 1)
                found = True
            place += -1 if by_row else 1
        return found

    while end > first and move(by_row=True):
        pass
    while end > first and move(by_row=False):
        pass
    return order


class Schur:
    """Schur's form of one [n, n] matrix: `form` is T, `vectors` is Z, `status` is 0 or how many eigenvalues are not found."""

    def __init__(self, matrix: Array) -> None:
        self.size = len(matrix)
        order = _isolating_order(matrix)
        self.form = matrix[np.ix_(order, order)].copy()
        self.vectors = np.eye(self.size, dtype=matrix.dtype)[:, order]
        self.is_complex = np.iscomplexobj(matrix)
        self.status = 0
        for k in range(self.size - 1):
            self._reflect(k + 1, self.form[k + 1 :, k])
            self.form[k + 2 :, k] = 0
        for k in range(1, self.size) if self.is_complex else ():
            self._make_real(k)
        self._find_all()

    def _transform(self, matrix: Array) -> None:
        """T becomes U T Uᴴ, Z becomes Z Uᴴ."""
        adjoint = np.conj(matrix.T)
        self.form = matrix @ self.form @ adjoint
        self.vectors = self.vectors @ adjoint

    def _reflect(self, row: int, column: Array) -> Any:
        vector, tau, _ = reflector(column)
        whole = np.zeros(self.size, self.form.dtype)
        whole[row : row + len(column)] = vector
        self._transform(np.eye(self.size) - np.conj(tau) * np.outer(whole, np.conj(whole)))
        return tau

    def _make_real(self, row: int) -> None:
        below = self.form[row, row - 1]
        if below.imag == 0:
            return
        phases = np.ones(self.size, self.form.dtype)
        phases[row] = np.conj(below) / np.abs(below)
        self._transform(np.diag(phases))
        self.form[row, row - 1] = np.abs(below)

    def _find_all(self) -> None:
        end = self.size
        least = 1 if self.is_complex else 2
        while end:
            for step in range(30 * max(10, self.size) + 1):
                start = self._start(end)
                self.form[start:end, :start] = 0
                if end - start <= least:
                    break
                self._step(start, end, step)
            else:
                self.status = end
                return
            if end - start == 2:
                self._finish_block(start)
            end = start
        for k in () if self.is_complex else np.nonzero(np.diagonal(self.form, -1))[0]:
            self._choose_pair(int(k))
        leading = [self.vectors[self._leading_row(slice(k, k + 1)), k] for k in range(self.size)]
        self._transform(np.diag(np.array([value / np.abs(value) for value in leading])))

    def _leading_row(self, columns: slice) -> int:
        lengths = np.linalg.norm(self.vectors[:, columns], axis=1)
        return int(np.nonzero(lengths >= 0.1 * np.max(lengths))[0][0])

    def _choose_pair(self, k: int) -> None:
        """Choose among the bases of a pair of conjugate values: two, or all in the plane if the matrix is normal there."""
        above, below = np.abs(self.form[k, k + 1]), np.abs(self.form[k + 1, k])
        angle = 0.0 if above >= below else np.pi / 2
        if np.abs(above - below) <= 1e-12 * (above + below):
            one, other = self.vectors[self._leading_row(slice(k, k + 2)), k : k + 2]
            angle = np.arctan2(other, one)
        self._rotate(k, angle)
        self.form[[k, k + 1], [k, k + 1]] = np.mean(self.form[[k, k + 1], [k, k + 1]])

    def _rotate(self, k: int, angle: float) -> None:
        turn = np.eye(self.size)
        turn[k : k + 2, k : k + 2] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        self._transform(turn)
        self.form[k : k + 2, :k] = 0

    def _start(self, end: int) -> int:
        """Return where the last part before `end` begins that no number next to 0 divides."""
        tiny = _EPS**2 * np.max(np.abs(self.form))
        for k in range(end - 1, 0, -1):
            corner = self.form[max(0, k - 2) : k + 2, max(0, k - 2) : k + 2]
            below, beside = size_of(self.form[k, k - 1]), size_of(self.form[k - 1, k])
            here, before = self.form[k, k], self.form[k - 1, k - 1]
            around = size_of(here) + size_of(before)
            if around == 0:
                around = np.sum(np.abs(np.real(np.diagonal(corner, -1)))) - below
            gap = size_of(before - here)
            low, high = sorted((float(below), float(beside)))
            low_gap, high_gap = sorted((float(size_of(here)), float(gap)))
            total = high + high_gap
            # The product of both numbers beside the diagonal, against the distance of the eigenvalues (Ahues and Tisseur).
            if below <= tiny or (below <= _EPS * around and low * high / total <= max(tiny, _EPS * low_gap * high_gap / total)):
                return k
        return 0

    def _step(self, start: int, end: int, step: int) -> None:
        """Chase one bulge down the part from `start` to `end`."""
        width = 2 if self.is_complex else 3
        begin, column = self._first_column(start, end, step, width)
        for row in range(begin, end - 1):
            if row > begin:
                height = min(width, end - row)
                self._reflect(row, self.form[row : row + height, row - 1])
                self.form[row + 1 : row + height, row - 1] = 0
                continue
            kept = self.form[row + 1 : row + width, row - 1].copy() if row > start else None
            tau = self._reflect(row, column)
            if kept is not None:  # what the reflection puts there is rounding, for that it began here
                self.form[row + 1 : row + width, row - 1] = kept
            if self.is_complex and row > start:
                phases = np.ones(self.size, self.form.dtype)
                phases[[row, *range(row + 2, end)]] = (1 - tau) / np.abs(1 - tau)
                self._transform(np.diag(phases))
        if self.is_complex:
            self._make_real(end - 1)

    def _first_column(self, start: int, end: int, step: int, width: int) -> tuple[int, Array]:
        """Return where the bulge begins, and the first column of the shifted matrices' product there."""
        shifts = self._complex_shift(start, end, step) if self.is_complex else self._real_shifts(start, end, step)
        begin, column = start, np.zeros(width, np.complex128)
        for begin in range(end - width, start - 1, -1):
            part = self.form[begin : begin + width, begin : begin + width]
            column = np.eye(1, width, dtype=np.complex128)[0]
            scale = np.sum(size_of(part[:2, 0] - np.array([shifts[-1], 0])))
            for number, shift in enumerate(shifts[::-1]):
                column = part @ column - shift * column
                column = column if number else column / scale
            column = column if self.is_complex else np.real(column)
            column = column / np.sum(size_of(column))
            if begin == start:
                break
            around = np.sum(size_of(np.diagonal(self.form)[begin - 1 + self.is_complex : begin + 2]))
            if size_of(self.form[begin, begin - 1]) * np.sum(size_of(column[1:])) <= _EPS * size_of(column[0]) * around:
                break
        return begin, column

    def _other_block(self, start: int, end: int, step: int) -> Array | None:
        """Return what gives shifts where the usual ones do not help, at each tenth step."""
        if not step or step % 10:
            return None
        at_end = step % 20 == 0
        beside = np.abs(np.real(np.diagonal(self.form, -1)))
        near = beside[end - 2] if at_end else beside[start]
        far = 0 if self.is_complex else beside[end - 3] if at_end else beside[start + 1]
        corner = self.form[end - 1, end - 1] if at_end else self.form[start, start]
        scale = near + far
        return np.array([[0.75 * scale + corner, -0.4375 * scale], [scale, 0.75 * scale + corner]])

    def _real_shifts(self, start: int, end: int, step: int) -> list[complex]:
        other = self._other_block(start, end, step)
        block = self.form[end - 2 : end, end - 2 : end] if other is None else other
        scale = np.sum(np.abs(block))
        if not scale:
            return [0, 0]
        middle = (block[0, 0] + block[1, 1]) / scale / 2
        unit = block / scale
        square = (unit[0, 0] - middle) * (unit[1, 1] - middle) - unit[0, 1] * unit[1, 0]
        root = np.sqrt(np.abs(square))
        if square >= 0:
            return [complex(middle, root) * scale, complex(middle, -root) * scale]
        found = [middle + root, middle - root]
        return [float(found[int(np.argmin(np.abs(np.array(found) - unit[1, 1])))] * scale)] * 2

    def _complex_shift(self, start: int, end: int, step: int) -> list[complex]:
        other = self._other_block(start, end, step)
        if other is not None:
            return [complex(other[0, 0])]
        (a, b), (c, d) = self.form[end - 2 : end, end - 2 : end]
        product = np.sqrt(b) * np.sqrt(c)
        if product == 0:
            return [complex(d)]
        half = (a - d) / 2
        root = np.sqrt(half**2 + product**2)
        aligned = root if np.real(np.conj(half) * root) >= 0 else -root
        return [complex(d - product * (product / (half + aligned)))]

    def _finish_block(self, row: int) -> None:
        """Turn a real 2x2 so that it is upper triangular, or else has equal numbers on the diagonal."""
        (a, b), (c, d) = self.form[row : row + 2, row : row + 2]
        square = ((a - d) / 2) ** 2 + b * c
        if c == 0 or (square < 0 and a == d):
            angle = 0.0
        elif b == 0:
            angle = np.pi / 2
        elif square >= 0:
            angle = np.arctan2(c, (a - d) / 2 + np.copysign(np.sqrt(square), a - d))
        else:
            angle = -np.copysign(1, b + c) * np.arctan2(a - d, np.abs(b + c)) / 2
        self._rotate(row, angle)
        if square >= 0:
            self.form[row + 1, row] = 0
        else:
            self.form[row, row] = self.form[row + 1, row + 1] = (a + d) / 2

    def eigenvalues(self) -> Array:
        """Return the [n] eigenvalues in T's order; of a conjugate pair first the one above the real axis."""
        values = np.diagonal(self.form).astype(np.complex128)
        if self.status:
            return np.full(self.size, np.nan)
        for k in () if self.is_complex else np.nonzero(np.diagonal(self.form, -1))[0]:
            values[k : k + 2] += np.array([1j, -1j]) * np.sqrt(-self.form[k, k + 1] * self.form[k + 1, k])
        return values
