"""Eigendecompositions by the expander; eigenvectors may have any sign, so the tests check their defining equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hlo_run import parse
from hlo_run.hlo_passes.linalg.eigh_expander import EighExpander
from hlo_run.ops.verify import verify
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.target import DEFAULT_TARGET, preset


def _symmetric(a: Any, lower: bool) -> Any:
    """Return the full matrix of a triangle."""
    triangle = np.tril(a, -1) if lower else np.triu(a, 1)
    diagonal = np.einsum("...i,ij->...ij", np.einsum("...ii->...i", a), np.eye(a.shape[-1]))
    return triangle + np.conj(np.swapaxes(triangle, -1, -2)) + diagonal


@pytest.mark.parametrize(
    ("dims", "element_type", "lower"), [((3, 6, 6), "f32", True), ((5, 5), "c128", False), ((1, 1), "f32", True)]
)
def test_vectors_and_values(dims: tuple[int, ...], element_type: str, lower: bool) -> None:
    real = "f32" if element_type == "f32" else "f64"
    shape, values = (",".join(map(str, sizes)) for sizes in (dims, dims[:-1]))
    module = parse(f"""HloModule m
ENTRY e {{
  x = {element_type}[{shape}] parameter(0)
  ROOT q = ({element_type}[{shape}], {real}[{values}]) custom-call(x), custom_call_target="Eigh",
    backend_config="{int(lower)},1,100,1e-6"
}}""")
    rng = np.random.default_rng(3)
    x: Any = rng.standard_normal(dims)
    if element_type == "c128":
        off_diagonal = 1 - np.eye(dims[-1])
        x = x + 1j * rng.standard_normal(dims) * off_diagonal
    x = x.astype(np.float32) if element_type == "f32" else x
    EighExpander().apply(PassContext(preset(DEFAULT_TARGET), Options()), module)
    assert all(instruction.opcode != "custom-call" for instruction in module.instructions)
    verify(module)
    result: Any = evaluate(module, [x])
    vectors, found = result
    bound = 1e-5 if element_type == "f32" else 1e-12
    whole = _symmetric(x, lower)
    assert np.abs(found - np.linalg.eigvalsh(whole)).max() < bound
    assert np.abs(whole @ vectors - vectors * found[..., None, :]).max() < bound
    assert np.abs(np.conj(np.swapaxes(vectors, -1, -2)) @ vectors - np.eye(dims[-1])).max() < bound
