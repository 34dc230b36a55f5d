"""Read JAX's custom calls to cuSOLVER, cuSPARSE and LAPACK as one set of linear algebra functions.

    custom_call_target="cusolver_syevd_ffi", backend_config={algorithm = 0 : ui8, lower = true}
    custom_call_target="lapack_ssyevd_ffi", backend_config={mode = 86 : ui8, uplo = 76 : ui8}
        =>   MatrixCall("syevd", lower=True)

Functions have LAPACK's names without the letter of the type. Source: `jax/_src/lax/linalg.py` of JAX 0.10, and for the
product of a sparse (CSR) and a dense matrix `jax/experimental/sparse/bcsr.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from hlo_run.records import replace

# The results of `svd` beside the overwritten matrix, the singular values and the status.
SvdForm: TypeAlias = Literal["u vt", "vt u", "u v"]


class MatrixCall(Struct, frozen=True):
    """One function of a linear algebra library with its options; unused options have their defaults.

    `lower`: which triangle is read. `left`: the matrix is on the left. `transpose`: N, T or C. `vectors`, `left_vectors`:
    whether these are computed. `first_row`, `last_row`: the closed range of rows, counted from 1, not triangular yet.
    """

    function: str
    lower: bool = True
    left: bool = True
    transpose: str = "N"
    unit_diagonal: bool = False
    vectors: bool = True
    left_vectors: bool = False
    svd_form: SvdForm = "u vt"
    first_row: int = 1
    last_row: int = 0


_Options: TypeAlias = Mapping[str, str]
_Read: TypeAlias = Callable[[MatrixCall, _Options], MatrixCall]


def _plain(call: MatrixCall, _options: _Options) -> MatrixCall:
    return call


def _letter(options: _Options, name: str, default: str) -> str:
    """Return a LAPACK option letter, which the text has as a character code."""
    text = options.get(name, "")
    return chr(int(text)) if text.isdecimal() else default


def _flag(options: _Options, name: str, default: bool) -> bool:
    return options.get(name, str(default).lower()) == "true"


def _triangle(call: MatrixCall, options: _Options) -> MatrixCall:
    lower = _letter(options, "uplo", "L") == "L" if "uplo" in options else _flag(options, "lower", True)
    return replace(call, lower=lower)


def _symmetric_vectors(call: MatrixCall, options: _Options) -> MatrixCall:
    return replace(_triangle(call, options), vectors=_letter(options, "mode", "V") == "V")


def _svd(call: MatrixCall, options: _Options) -> MatrixCall:
    if "mode" in options:
        return replace(call, vectors=_letter(options, "mode", "A") != "N")
    form: SvdForm = "vt u" if _flag(options, "transposed", False) else "u vt"
    return replace(call, vectors=_flag(options, "compute_uv", True), svd_form=form)


def _jacobi_svd(call: MatrixCall, options: _Options) -> MatrixCall:
    return replace(_svd(call, options), svd_form="u v")


def _general_vectors(call: MatrixCall, options: _Options) -> MatrixCall:
    if "compute_right" in options or "compute_left" in options:
        right, left = (_letter(options, f"compute_{side}", "N") == "V" for side in ("right", "left"))
    else:
        right, left = _flag(options, "right", True), _flag(options, "left", False)
    return replace(call, vectors=right, left_vectors=left)


def _schur_vectors(call: MatrixCall, options: _Options) -> MatrixCall:
    """JAX never asks for an order of the eigenvalues."""
    return replace(call, vectors=_letter(options, "mode", "V") == "V")


def _triangular_solve(call: MatrixCall, options: _Options) -> MatrixCall:
    return replace(
        _triangle(call, options),
        left=_letter(options, "side", "L") == "L",
        transpose=_letter(options, "trans_x", "N"),
        unit_diagonal=_letter(options, "diag", "N") == "U",
    )


def _product(call: MatrixCall, options: _Options) -> MatrixCall:
    transpose = "C" if _flag(options, "transpose", False) else "N"
    return replace(call, left=_flag(options, "left", True), transpose=transpose)


def _rows(call: MatrixCall, options: _Options) -> MatrixCall:
    return replace(call, first_row=int(options.get("low", 1)), last_row=int(options.get("high", 0)))


def _transposed(call: MatrixCall, options: _Options) -> MatrixCall:
    return replace(call, transpose="T" if _flag(options, "transpose", False) else "N")


# Target name without `lapack_`, the letter of the type and `_ffi` → function, reader of its options.
_LAPACK: dict[str, tuple[str, _Read]] = {
    "potrf": ("potrf", _triangle),
    "getrf": ("getrf", _plain),
    "geqrf": ("geqrf", _plain),
    "geqp3": ("geqp3", _plain),
    "orgqr": ("orgqr", _plain),
    "ungqr": ("orgqr", _plain),
    "ormqr": ("ormqr", _product),
    "unmqr": ("ormqr", _product),
    "syevd": ("syevd", _symmetric_vectors),
    "heevd": ("syevd", _symmetric_vectors),
    "gesdd": ("svd", _svd),
    "gesvd": ("svd", _svd),
    "geev": ("geev", _general_vectors),
    "gees": ("gees", _schur_vectors),
    "gehrd": ("gehrd", _rows),
    "sytrd": ("sytrd", _triangle),
    "hetrd": ("sytrd", _triangle),
    "gtsv": ("gtsv", _plain),
    "trsm": ("trsm", _triangular_solve),
}
# Full target name → function, reader of its options.
_OTHERS: dict[str, tuple[str, _Read]] = {
    "cusolver_potrf_ffi": ("potrf", _triangle),
    "cusolver_getrf_ffi": ("getrf", _plain),
    "cusolver_geqrf_ffi": ("geqrf", _plain),
    "cuhybrid_geqp3": ("geqp3", _plain),
    "cusolver_orgqr_ffi": ("orgqr", _plain),
    "cusolver_ormqr_ffi": ("ormqr", _product),
    "cusolver_syevd_ffi": ("syevd", _triangle),
    "cusolver_gesvd_ffi": ("svd", _svd),
    "cusolver_gesdd_ffi": ("svd", _svd),
    "cusolver_gesvdj_ffi": ("svd", _jacobi_svd),
    "cusolver_gesvdp_ffi": ("svd", _jacobi_svd),
    "cusolver_geev_ffi": ("geev_packed", _general_vectors),
    "cuhybrid_eig_real": ("geev", _general_vectors),
    "cuhybrid_eig_comp": ("geev", _general_vectors),
    "cusolver_sytrd_ffi": ("sytrd", _triangle),
    "cusolver_syrk_ffi": ("syrk", _transposed),
    "cusparse_gtsv2_ffi": ("gtsv", _plain),
    "cu_lu_pivots_to_permutation": ("pivots", _plain),
    "cu_cholesky_update_ffi": ("cholesky_update", _plain),
    "cpu_csr_sparse_dense_ffi": ("csr_product", _plain),
}
_LAPACK_TARGET = re.compile(r"lapack_[sdcz](\w+)_ffi")
_OPTION = re.compile(r'(\w+) = ("[^"]*"|[^\s,}]+)')


def matrix_call(target: str, config: str) -> MatrixCall | None:
    """Return the function that a custom call computes, or None if it is not one of a linear algebra library.

    `config` is the text of its backend_config, an MLIR dictionary.
    """
    match = _LAPACK_TARGET.fullmatch(target)
    found = _OTHERS.get(target) if match is None else _LAPACK.get(match[1])
    if found is None:
        return None
    function, read = found
    return read(MatrixCall(function), dict(_OPTION.findall(config)))
