"""Equal computations have equal fingerprints, whatever their names; anything that changes a value changes it."""

from __future__ import annotations

import numpy as np
import pytest

import hlo_run
from hlo_run.analysis.fingerprint import computation_fingerprint
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.target import preset

BASE = """HloModule m
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY e {
  p = f32[4,6] parameter(0)
  c = f32[4,6] constant({ {1,2,3,4,5,6}, {1,2,3,4,5,6}, {1,2,3,4,5,6}, {1,2,3,4,5,7} })
  m = f32[4,6] multiply(p, c), metadata={op_name="here"}
  z = f32[] constant(0)
  ROOT r = f32[4] reduce(m, z), dimensions={1}, to_apply=add
}
"""


def _fingerprint(text: str) -> str:
    return computation_fingerprint(hlo_run.parse(text).entry)


@pytest.mark.parametrize(("old", "new"), [("op_name", "source_file"), (" m = ", " other = "), ("add {", "plus {")])
def test_names_and_metadata_do_not_count(old: str, new: str) -> None:
    text = BASE.replace(old, new).replace("to_apply=add", "to_apply=plus" if "plus {" in new else "to_apply=add")
    text = text.replace("reduce(m,", "reduce(other,") if "other" in new else text
    assert text != BASE
    assert _fingerprint(text) == _fingerprint(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("5,7}", "5,8}"),
        ("multiply(p, c)", "multiply(c, p)"),
        ("multiply(p", "divide(p"),
        ("add(a, b)", "maximum(a, b)"),
        ("f32[4,6] parameter(0)", "f32[4,6]{0,1} parameter(0)"),
        ("constant(0)", "constant(-0.0)"),
    ],
)
def test_meaning_counts(old: str, new: str) -> None:
    assert old in BASE
    assert _fingerprint(BASE.replace(old, new)) != _fingerprint(BASE)


def test_equal_fusions_share_a_kernel() -> None:
    text = """HloModule m, is_scheduled=true
    ENTRY e {
      p = f32[40] parameter(0)
      q = f32[40] parameter(1)
      x = f32[40] add(p, q)
      y = f32[40] add(q, p)
      z = f32[40] add(x, y)
      ROOT t = (f32[40], f32[40], f32[40]) tuple(x, y, z)
    }"""
    module = hlo_run.parse(text)
    executable = compile_module(PassContext(preset("h100"), Options()), module)
    # x and y read parameters, which promise less alignment than what we allocate: z has a kernel of its own.
    assert [kernel.name for kernel in executable.kernels] == ["wrapped_add", "wrapped_add_2"]
    rng = np.random.default_rng(5)
    p, q = (rng.standard_normal(40).astype(np.float32) for _ in range(2))
    result = open_backend("Host", Options()).run(executable, [p, q])
    assert isinstance(result, tuple)
    for actual, expected in zip(result, (p + q, p + q, (p + q) + (q + p)), strict=True):
        np.testing.assert_array_equal(actual, expected)
