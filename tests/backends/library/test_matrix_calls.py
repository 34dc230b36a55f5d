"""JAX's linear algebra in custom calls, on Host and in the reference, against LAPACK's own functions in scipy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hlo_run
from hlo_run.custom_calls import unregister
from hlo_run.errors import Unsupported

scipy_lapack: Any = pytest.importorskip("scipy.linalg.lapack")
Array = NDArray[Any]
NAMES = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128", "int32": "s32"}
LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}


def shape_of(array: Array) -> str:
    return f"{NAMES[str(array.dtype)]}[{','.join(map(str, array.shape))}]"


def module_of(target: str, config: str, operands: Sequence[Array], results: Sequence[Array]) -> str:
    parameters = "\n".join(f"  p{i} = {shape_of(operand)} parameter({i})" for i, operand in enumerate(operands))
    shapes = [shape_of(result) for result in results]
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    return (
        f"HloModule calls\nENTRY e {{\n{parameters}\n  ROOT c = ({', '.join(shapes)}) custom-call({names}),"
        f' custom_call_target="{target}", api_version=API_VERSION_TYPED_FFI, backend_config={{{config}}}\n}}\n'
    )


def both(target: str, config: str, operands: Sequence[Array], expected: Sequence[Array]) -> list[tuple[Array, ...]]:
    """Return the results of Host and of the reference."""
    module = hlo_run.parse(module_of(target, config, operands, expected))
    found: list[Any] = [hlo_run.run(module, *operands, platform="Host"), hlo_run.evaluate(module, *operands)]
    return found


def check(target: str, config: str, operands: Sequence[Array], expected: Sequence[Array]) -> None:
    for found in both(target, config, operands, expected):
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            tolerance = 1e-4 if str(one.dtype) in ("float32", "complex64") else 1e-9
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * 20)


def random(kind: str, *shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng([seed, *shape])
    values: Array = rng.normal(size=shape)
    if kind.startswith("c"):
        values = values + 1j * rng.normal(size=shape)
    return values.astype(kind)


def hermitian(kind: str, *shape: int) -> Array:
    matrix = random(kind, *shape)
    return matrix + np.conj(np.swapaxes(matrix, -1, -2))


def stacked(function: Callable[[Array], Sequence[Any]], operand: Array) -> list[Array]:
    """Apply a function to each matrix of a stack and stack the results."""
    parts = [function(one) for one in operand]
    return [np.stack([np.asarray(part[number]) for part in parts]) for number in range(len(parts[0]))]


def lapack(name: str, operand: Array) -> Any:
    """LAPACK's function for the type of an array."""
    return getattr(scipy_lapack, LETTERS[str(operand.dtype)] + name)


def status(value: object) -> Array:
    return np.int32(value)  # type: ignore[return-value]


KINDS = ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (7, 4), (4, 7)])
def test_lu(kind: str, rows: int, columns: int) -> None:
    matrix = random(kind, 2, rows, columns)
    packed, pivots, info = stacked(lapack("getrf", matrix), matrix)
    expected = [packed, (pivots + 1).astype(np.int32), info.astype(np.int32)]
    check("cusolver_getrf_ffi", "", [matrix], expected)
    check(f"lapack_{LETTERS[kind]}getrf_ffi", "", [matrix], expected)


def test_lu_of_a_singular_matrix_says_where() -> None:
    matrix = random("float64", 5, 5)
    matrix[:, 2] = 2 * matrix[:, 1] - matrix[:, 0]
    matrix[:, 2:] = np.round(matrix[:, 2:])
    matrix[:, 3] = 0
    packed, pivots, info = scipy_lapack.dgetrf(matrix)
    assert info == 4
    check("cusolver_getrf_ffi", "", [matrix], [packed, (pivots + 1).astype(np.int32), status(info)])


def test_pivots_become_an_order_of_all_rows() -> None:
    pivots = np.array([[2, 1, 4], [0, 3, 2]], np.int32)
    check("cu_lu_pivots_to_permutation", "", [pivots], [np.array([[2, 1, 4, 3, 0], [0, 3, 2, 1, 4]], np.int32)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(kind: str, lower: bool) -> None:
    root = random(kind, 2, 5, 5)
    matrix = root @ np.conj(np.swapaxes(root, -1, -2)) + np.eye(5).astype(kind)
    matrix = matrix + random(kind, 5, 5) * (1 - np.tri(5)) if lower else matrix + random(kind, 5, 5) * np.tri(5, k=-1)
    matrix = matrix.astype(kind)
    factor, info = stacked(lambda a: lapack("potrf", a)(a, lower=lower, clean=0), matrix)
    text = str(lower).lower()
    check("cusolver_potrf_ffi", f"lower = {text}", [matrix], [factor, info.astype(np.int32)])
    letter = ord("L" if lower else "U")
    check(f"lapack_{LETTERS[kind]}potrf_ffi", f"uplo = {letter} : ui8", [matrix], [factor, info.astype(np.int32)])


def test_cholesky_of_what_has_no_factor() -> None:
    matrix = np.stack([np.diag([1.0, 4.0, -2.0, 1.0]), np.diag([1.0, 4.0, 9.0, 1.0])])
    expected = [np.stack([np.full((4, 4), np.nan), np.diag([1.0, 2.0, 3.0, 1.0])]), np.array([3, 0], np.int32)]
    check("cusolver_potrf_ffi", "lower = true", [matrix], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6)])
def test_qr_and_its_product(kind: str, rows: int, columns: int) -> None:
    matrix = random(kind, 2, rows, columns)
    packed, factors = stacked(lambda a: lapack("geqrf", a)(a)[:2], matrix)
    check("cusolver_geqrf_ffi", "", [matrix], [packed, factors])
    if rows > columns:
        name = "ungqr" if kind.startswith("c") else "orgqr"
        (product,) = stacked(lambda pair: lapack(name, pair[0])(*pair)[:1], list(zip(packed, factors, strict=True)))  # type: ignore[arg-type]
        check("cusolver_orgqr_ffi", "", [packed, factors], [product])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_product_with_the_factor_of_qr(kind: str, left: bool, transpose: bool) -> None:
    packed, factors = lapack("geqrf", random(kind, 6, 4))(random(kind, 6, 4))[:2]
    matrix = random(kind, *((6, 3) if left else (3, 6)))
    is_complex = kind.startswith("c")
    letter = ("C" if is_complex else "T") if transpose else "N"
    name = "unmqr" if is_complex else "ormqr"
    found, _, _ = lapack(name, matrix)("L" if left else "R", letter, packed, factors, matrix, 64)
    config = f"left = {str(left).lower()}, transpose = {str(transpose).lower()}"
    check("cusolver_ormqr_ffi", config, [np.ascontiguousarray(packed), factors, matrix], [found])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [(0, 0, 0, 0, 0), (0, 0, 1, 0, 1)])
def test_qr_with_pivots(kind: str, given: tuple[int, ...]) -> None:
    matrix = random(kind, 7, 5)
    wanted = np.array(given, np.int32)
    # scipy's wrapper cannot mark columns. LAPACK would move the marked ones to the front, as done here.
    packed, order, factors = lapack("geqp3", matrix)(matrix)[:3]
    if not any(given):
        check("cuhybrid_geqp3", 'magma = "auto"', [matrix, wanted], [packed, order.astype(np.int32), factors])
        return
    for found, numbers, taus in both(
        "cuhybrid_geqp3", 'magma = "auto"', [matrix, wanted], [packed, order.astype(np.int32), factors]
    ):
        assert list(numbers[:2]) == [3, 5]
        again = lapack("geqrf", matrix)(matrix[:, numbers - 1])
        np.testing.assert_allclose(found, again[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(taus, again[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lower", [True, False])
def test_symmetric_eigenvectors(kind: str, lower: bool) -> None:
    matrix = hermitian(kind, 5, 5)
    spoilt = matrix + 7 * (np.triu(matrix, 1) if lower else np.tril(matrix, -1))
    name = "heevd" if kind.startswith("c") else "syevd"
    values, _, info = lapack(name, matrix)(matrix, lower=lower)
    for vectors, found, code in both(
        "cusolver_syevd_ffi", f"lower = {str(lower).lower()}", [spoilt], [matrix, values, status(info)]
    ):
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(matrix @ vectors, vectors * found, rtol=1e-4, atol=2e-4)
        np.testing.assert_allclose(np.conj(vectors.T) @ vectors, np.eye(5), rtol=1e-4, atol=1e-4)
        assert code == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("target", ["cusolver_gesvdj_ffi", "cusolver_gesvd_ffi", "transposed", "lapack"])
def test_singular_values(kind: str, rows: int, columns: int, full: bool, target: str) -> None:
    matrix = random(kind, rows, columns)
    least = min(rows, columns)
    values = np.linalg.svd(matrix, compute_uv=False)
    left, right = random(kind, rows, rows if full else least), random(kind, columns if full else least, columns)
    if target == "cusolver_gesvdj_ffi":
        right = right.T
    shapes = [right, left] if target == "transposed" else [left, right]
    config = f"full_matrices = {str(full).lower()}, compute_uv = true, transposed = {str(target == 'transposed').lower()}"
    if target == "lapack":
        config = f"mode = {ord('A' if full else 'S')} : ui8"
    name = {"transposed": "cusolver_gesvd_ffi", "lapack": f"lapack_{LETTERS[kind]}gesdd_ffi"}.get(target, target)
    for _, found, first, second, code in both(name, config, [matrix], [matrix, values, *shapes, status(0)]):
        u, vt = (second, first) if target == "transposed" else (first, np.conj(second.T) if "gesvdj" in target else second)
        np.testing.assert_allclose(found, values, rtol=1e-4)
        np.testing.assert_allclose((u[:, :least] * found) @ vt[:least], matrix, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.conj(u.T) @ u, np.eye(u.shape[1]), atol=1e-4)
        np.testing.assert_allclose(vt @ np.conj(vt.T), np.eye(vt.shape[0]), atol=1e-4)
        assert code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_general_eigenvectors(kind: str) -> None:
    matrix = random(kind, 5, 5, seed=3)
    is_complex = kind.startswith("c")
    results = lapack("geev", matrix)(matrix, compute_vl=1, compute_vr=1)
    assert is_complex or np.any(results[1] != 0)
    complex_kind = np.complex64 if kind in ("float32", "complex64") else np.complex128
    values = results[0] if is_complex else (results[0] + 1j * results[1]).astype(complex_kind)
    parts = [values] if is_complex else [results[0], results[1]]
    empty = np.zeros((5, 5), complex_kind)
    config = 'left = true, right = true, magma = "auto"'
    target = f"cuhybrid_eig_{'comp' if is_complex else 'real'}"
    for *found, left, right, code in both(target, config, [matrix], [*parts, empty, empty, status(0)]):
        for one, other in zip(found, parts, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(matrix @ right, right * values, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(np.conj(left.T) @ matrix, values[:, None] * np.conj(left.T), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(left, axis=0), 1, rtol=1e-4)
        assert code == 0
    packed_right = results[-2]
    zeros = np.zeros((5, 5), kind)
    for _, found, _, right, _ in both(
        "cusolver_geev_ffi", "left = false, right = true", [matrix], [matrix, values, zeros, zeros, status(0)]
    ):
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-4)
        # The phase of a vector is free, and LAPACK's depends on rounding.
        vectors, expected = (_unpacked(values, packed) for packed in (right, packed_right))
        np.testing.assert_allclose(np.abs(np.sum(np.conj(vectors) * expected, axis=0)), 1, rtol=1e-3)


def _unpacked(values: Array, packed: Array) -> Array:
    """Return eigenvectors as complex columns: of a real matrix, those of conjugate values are packed as real, imaginary."""
    if np.iscomplexobj(packed):
        return packed
    vectors = packed.astype(np.complex128)
    for column in np.flatnonzero(np.imag(values) > 0):
        vectors[:, column] += 1j * packed[:, column + 1]
        vectors[:, column + 1] = np.conj(vectors[:, column])
    return vectors


def schur_inputs(kind: str) -> dict[str, Array]:
    """Matrices of several kinds: with real and conjugate eigenvalues, normal, triangular, large and small ones."""
    whole = random(kind, 7, 7, seed=3)
    cycle = np.roll(np.eye(6), 1, 0).astype(kind)
    return {
        "random": whole,
        "one": whole[:1, :1],
        "none": whole[:0, :0],
        "two": whole[:2, :2],
        "large": random(kind, 30, 30, seed=4),
        "skew": whole - np.conj(whole.T),
        "upper": np.triu(whole),
        "lower": np.tril(whole),
        "zero": np.zeros_like(whole),
        "cycle": cycle,
        "tiny": (random(kind, 5, 5, seed=5) * 1e-12).astype(kind),
        "blocks": np.kron(np.diag([1.0, 2.0, 3.0]), np.array([[1, 4], [-2, 1]])).astype(kind),
    }


@pytest.mark.parametrize("name", list(schur_inputs("float64")))
@pytest.mark.parametrize("kind", KINDS)
def test_schur(kind: str, name: str) -> None:
    matrix = schur_inputs(kind)[name]
    size, is_complex = len(matrix), kind.startswith("c")
    reals = [np.zeros(size, kind)] * (1 if is_complex else 2)
    shapes = [matrix, matrix, *reals, status(0), status(0)]
    found = both(f"lapack_{LETTERS[kind]}gees_ffi", "mode = 86 : ui8, sort = 78 : ui8", [matrix], shapes)
    tolerance = 2e-5 if kind in ("float32", "complex64") else 1e-12
    scale = float(np.abs(matrix).max(initial=0)) or 1.0
    for form, vectors, *values, _, info in found:
        assert info == 0
        np.testing.assert_allclose(vectors @ form @ np.conj(vectors.T), matrix, atol=tolerance * scale * size, rtol=0)
        np.testing.assert_allclose(np.conj(vectors.T) @ vectors, np.eye(size), atol=tolerance * 2, rtol=0)
        below = np.diagonal(form, -1)
        assert not np.any(np.tril(form, -2))
        assert not np.any(below[1:] * below[:-1])
        assert not (is_complex and np.any(below))
        for k in np.flatnonzero(below):  # a block has two conjugate eigenvalues
            assert form[k, k] == form[k + 1, k + 1]
            assert form[k, k + 1] * form[k + 1, k] < 0
        if not size:
            continue
        eigenvalues = values[0] if is_complex else values[0] + 1j * values[1]
        np.testing.assert_allclose(np.poly(eigenvalues / scale), np.poly(matrix / scale), rtol=2e-3, atol=tolerance * 200)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * 10 * max(scale, 1.0))


# In f32 LAPACK takes other steps than we do in double, and may find the eigenvalues in another order.
@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_schur_of_a_stack_is_lapacks_but_for_signs(kind: str) -> None:
    matrix = random(kind, 2, 3, 6, 6, seed=8)
    expected = stacked(lambda a: lapack("gees", a)(bool, a), matrix.reshape(6, 6, 6))
    form, eigenvalues = expected[0].reshape(matrix.shape), [part.reshape(2, 3, 6) for part in expected[2:-3]]
    state = np.zeros((2, 3), np.int32)
    shapes = [matrix, matrix, *eigenvalues, state, state]
    for found in both(f"lapack_{LETTERS[kind]}gees_ffi", "mode = 78 : ui8, sort = 78 : ui8", [matrix], shapes):
        assert not np.any(found[1]), "no vectors were asked for"
        diagonals = [np.diagonal(one, axis1=-2, axis2=-1) for one in (found[0], form)]
        np.testing.assert_allclose(*diagonals, rtol=1e-3, atol=1e-4)
        for one, other in zip(found[2:-2], eigenvalues, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("low", "high"), [(1, 6), (2, 5)])
def test_hessenberg(kind: str, low: int, high: int) -> None:
    matrix = random(kind, 6, 6)
    # The part outside of the range is already triangular.
    matrix[high:] = np.triu(matrix)[high:]
    matrix[:, : low - 1] = np.triu(matrix)[:, : low - 1]
    packed, factors, info = lapack("gehrd", matrix)(matrix, low - 1, high - 1)
    config = f"high = {high} : i32, low = {low} : i32"
    check(f"lapack_{LETTERS[kind]}gehrd_ffi", config, [matrix], [packed, factors, status(info)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lower", [True, False])
def test_tridiagonal_form(kind: str, lower: bool) -> None:
    matrix = hermitian(kind, 6, 6)
    name = "hetrd" if kind.startswith("c") else "sytrd"
    packed, diagonal, beside, factors, info = lapack(name, matrix)(matrix, lower=int(lower))
    config = f"lower = {str(lower).lower()}"
    check("cusolver_sytrd_ffi", config, [matrix], [packed, diagonal, beside, factors, status(info)])


@pytest.mark.parametrize("kind", KINDS)
def test_tridiagonal_solve(kind: str) -> None:
    below, diagonal, above, right = (random(kind, *dims) for dims in ((7,), (7,), (7,), (7, 3)))
    diagonal[2:4] *= 0.01
    second, middle, first, found, info = lapack("gtsv", right)(below[1:], diagonal, above[:-1], right)
    check("cusparse_gtsv2_ffi", "", [below, diagonal, above, right], [found])
    whole = [np.concatenate([second[:5], np.zeros(2, kind)]), middle, np.append(first, above[-1]), found, status(info)]
    for results in both(f"lapack_{LETTERS[kind]}gtsv_ffi", "", [below, diagonal, above, right], whole):
        for number in (1, 3, 4):
            np.testing.assert_allclose(results[number], whole[number], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", "LR")
@pytest.mark.parametrize("triangle", "LU")
@pytest.mark.parametrize("transpose", "NTC")
def test_triangular_solve(kind: str, left: str, triangle: str, transpose: str) -> None:
    matrix = random(kind, 5, 5) + 3 * np.eye(5).astype(kind)
    right = random(kind, *((5, 2) if left == "L" else (2, 5)))
    unit = transpose == "N"
    half = np.tril(matrix) if triangle == "L" else np.triu(matrix)
    half = half - np.diag(np.diagonal(half) - 1) if unit else half
    half = {"N": half, "T": half.T, "C": np.conj(half.T)}[transpose]
    expected = np.linalg.solve(half, right) if left == "L" else np.linalg.solve(half.T, right.T).T
    letters = {"side": left, "uplo": triangle, "trans_x": transpose, "diag": "U" if unit else "N"}
    config = ", ".join(f"{name} = {ord(letter)} : ui8" for name, letter in letters.items())
    check(f"lapack_{LETTERS[kind]}trsm_ffi", config, [matrix, right], [expected])


def test_symmetric_product_and_rotated_factor() -> None:
    matrix, added = random("float32", 4, 3), hermitian("float32", 4, 4)
    alpha, beta = np.float32(1.5), np.float32(-0.5)
    operands: list[Array] = [matrix, added, alpha, beta]  # type: ignore[list-item]
    check("cusolver_syrk_ffi", "transpose = false", operands, [1.5 * matrix @ matrix.T - np.float32(0.5) * added])
    factor, vector = np.triu(random("float64", 4, 4)) + 2 * np.eye(4), random("float64", 4)
    for updated, rest in both("cu_cholesky_update_ffi", "", [factor, vector], [factor, vector]):
        np.testing.assert_allclose(updated.T @ updated, factor.T @ factor + np.outer(vector, vector), atol=1e-12)
        np.testing.assert_allclose(updated, np.triu(updated), atol=1e-12)
        np.testing.assert_allclose(rest, 0, atol=1e-12)


def test_what_does_not_converge_is_nan_with_a_status() -> None:
    matrix = np.full((3, 3), np.nan)
    module = hlo_run.parse(module_of("cusolver_syevd_ffi", "lower = true", [matrix], [matrix, matrix[0], status(0)]))
    vectors, values, code = hlo_run.run(module, matrix, platform="Host")
    assert np.all(np.isnan(vectors))
    assert np.all(np.isnan(values))
    assert code == 1


def test_a_registered_function_comes_first() -> None:
    matrix = random("float32", 3, 3)

    @hlo_run.custom_call("cusolver_geqrf_ffi")
    def mine(operand: Array) -> tuple[Array, Array]:
        return operand + 1, operand[0]

    try:
        for packed, factors in both("cusolver_geqrf_ffi", "", [matrix], [matrix, matrix[0]]):
            np.testing.assert_array_equal(packed, matrix + 1)
            np.testing.assert_array_equal(factors, matrix[0])
    finally:
        unregister("cusolver_geqrf_ffi")


def test_an_unknown_function_is_refused() -> None:
    matrix = random("float32", 3, 3)
    with pytest.raises(Unsupported, match="No registered implementation"):
        hlo_run.run(hlo_run.parse(module_of("lapack_sgges_ffi", "", [matrix], [matrix])), matrix, platform="Host")


@pytest.mark.parametrize("kind", ["float32", "complex64", "int32"])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_a_sparse_matrix_by_rows_times_a_dense_one(kind: str, columns: tuple[int, ...]) -> None:
    sparse: Any = pytest.importorskip("scipy.sparse")
    dense = (random("float32", 4, *columns) * 5).astype(kind)
    # A row without entries, and one entry of padding behind the last row.
    values, starts, places = (
        (random("float32", 6) * 5).astype(kind),
        np.array([0, 2, 2, 5], np.int32),
        np.array([3, 0, 1, 2, 1, 0], np.int32),
    )
    expected = (sparse.csr_array((values[:5], places[:5], starts), shape=(3, 4)) @ dense).astype(kind)
    text = module_of("cpu_csr_sparse_dense_ffi", "", [values, starts, places, dense], [expected])
    module = hlo_run.parse(text.replace(f"({shape_of(expected)})", shape_of(expected)))
    results: list[Any] = [
        hlo_run.run(module, values, starts, places, dense, platform="Host"),
        hlo_run.evaluate(module, values, starts, places, dense),
    ]
    for found in results:
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
