"""Fusions for Triton run as one row-by-row kernel on Host with all checks; ops that leave their row go to other kernels."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emitting import emit, fusion_analysis, run_on_host

CONFIG = 'backend_config={"fusion_backend_config":{"kind":"__triton"}}'
REDUCERS = """
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = f32[] maximum(a, b) }
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
"""


def module(parameters: list[str], result: str, body: str) -> str:
    """Return a module with one fusion for Triton. The body may use parameters p0, p1, .. and constants `lowest`, `zero`."""
    inner = "\n".join(f"  p{n} = {shape} parameter({n})" for n, shape in enumerate(parameters))
    constants = {"lowest": "-inf", "zero": "0"}
    used = "".join(f"  {name} = f32[] constant({value})\n" for name, value in constants.items() if name in body)
    operands = ", ".join(f"p{n}" for n in range(len(parameters)))
    return f"""HloModule m
{REDUCERS}
f {{
{inner}
{used}{body}
}}
ENTRY e {{
{inner}
  ROOT r = {result} fusion({operands}), kind=kCustom, calls=f, {CONFIG}
}}"""


def softmax(dims: list[int], rank_of_row: int = 1) -> str:
    kept = len(dims) - rank_of_row
    shape, rows = f"f32{dims}", f"f32{dims[:kept]}"
    along = ",".join(str(d) for d in range(kept, len(dims)))
    over = ",".join(str(d) for d in range(kept))
    return module(
        [shape],
        shape,
        f"""
  m = {rows} reduce(p0, lowest), dimensions={{{along}}}, to_apply=max
  bm = {shape} broadcast(m), dimensions={{{over}}}
  d = {shape} subtract(p0, bm)
  e = {shape} exponential(d)
  s = {rows} reduce(e, zero), dimensions={{{along}}}, to_apply=add
  bs = {shape} broadcast(s), dimensions={{{over}}}
  ROOT q = {shape} divide(e, bs)""",
    )


@pytest.mark.parametrize(
    ("dims", "rank_of_row", "lanes", "vector"),
    [
        ([5, 1], 1, 1, 1),
        ([7, 3], 1, 4, 1),
        ([2, 3, 16], 1, 16, 1),
        ([9, 33], 1, 64, 1),
        ([3, 64], 1, 32, 2),
        ([6, 10, 20], 2, 32, 4),
        ([2, 1000], 1, 64, 4),
        ([3, 1031], 1, 512, 1),
        ([77], 1, 32, 1),
        ([1, 20000], 1, 1024, 4),
    ],
)
def test_softmax(dims: list[int], rank_of_row: int, lanes: int, vector: int) -> None:
    rng = np.random.default_rng(1)
    emitted = run_on_host(softmax(dims, rank_of_row), rng.normal(0, 3, dims).astype(np.float32))
    assert emitted.kernel.kind == "rows"
    assert emitted.kernel.vector_size == vector
    assert emitted.kernel.launch.threads_per_block % lanes == 0
    assert emitted.text.count("xla_gpu.allocate_shared") == (2 if lanes > 1 else 0)


def test_normalisation_with_results_for_rows_and_elements() -> None:
    emitted = run_on_host(
        module(
            ["f32[2,6,40]", "f32[40]", "f32[12,40]"],
            "(f32[2,6,40], f32[12], f32[12,40], f32[2,6])",
            """
  b = f32[12,40] bitcast(p0)
  x = f32[12,40] add(b, p2)
  s = f32[12] reduce(x, zero), dimensions={1}, to_apply=add
  c = f32[] constant(0.025)
  bc = f32[12] broadcast(c), dimensions={}
  mean = f32[12] multiply(s, bc)
  bm = f32[12,40] broadcast(mean), dimensions={0}
  d = f32[12,40] subtract(x, bm)
  dd = f32[12,40] multiply(d, d)
  v = f32[12] reduce(dd, zero), dimensions={1}, to_apply=add
  rs = f32[12] rsqrt(v)
  br = f32[12,40] broadcast(rs), dimensions={0}
  n = f32[12,40] multiply(d, br)
  g = f32[12,40] broadcast(p1), dimensions={1}
  y = f32[12,40] multiply(n, g)
  yb = f32[2,6,40] bitcast(y)
  vb = f32[2,6] bitcast(v)
  ROOT t = (f32[2,6,40], f32[12], f32[12,40], f32[2,6]) tuple(yb, mean, x, vb)""",
        )
    )
    assert emitted.kernel.kind == "rows"


def test_rows_beyond_the_last_block_are_left_alone() -> None:
    # 4 rows per block, 6 rows: the threads of the last two rows only run the barriers.
    emitted = run_on_host(softmax([6, 32]))
    assert (emitted.kernel.launch.grid, emitted.kernel.launch.block) == ((2, 1, 1), (128, 1, 1))


OTHERS = {
    "another row": (
        """
  s = f32[8] reduce(p0, zero), dimensions={1}, to_apply=add
  r = f32[8] reverse(s), dimensions={0}
  b = f32[8,8] broadcast(r), dimensions={0}
  ROOT a = f32[8,8] add(p0, b)""",
        "a reads s of other rows",
    ),
    "columns of a square": (
        """
  s = f32[8] reduce(p0, zero), dimensions={1}, to_apply=add
  b = f32[8,8] broadcast(s), dimensions={1}
  ROOT a = f32[8,8] add(p0, b)""",
        "a reads s of other rows",
    ),
    "rows and columns": (
        """
  s = f32[8] reduce(p0, zero), dimensions={1}, to_apply=add
  c = f32[8] reduce(p0, zero), dimensions={0}, to_apply=add
  d = f32[8] add(s, c)
  ROOT a = f32[8,8] broadcast(d), dimensions={0}""",
        "c keeps a dimension that is minor to one it reduces",
    ),
    "other sizes": (
        """
  s = f32[8] reduce(p0, zero), dimensions={1}, to_apply=add
  c = f32[] reduce(p0, zero), dimensions={0,1}, to_apply=add
  bc = f32[8] broadcast(c), dimensions={}
  d = f32[8] add(s, bc)
  ROOT a = f32[8,8] broadcast(d), dimensions={0}""",
        "reduces go along rows of different sizes",
    ),
    "an init value that counts": (
        """
  one = f32[] constant(1)
  s = f32[8] reduce(p0, one), dimensions={1}, to_apply=add
  ROOT a = f32[8,8] broadcast(s), dimensions={0}""",
        "the init value of s counts",
    ),
    "a larger result": (
        """
  s = f32[8] reduce(p0, zero), dimensions={1}, to_apply=add
  ROOT a = f32[8,8,2] broadcast(s), dimensions={0}""",
        "a has neither an element for each row",
    ),
    "no reduce": ("  ROOT a = f32[8,8] negate(p0)", "the fusion has no reduce"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_go_along_rows(name: str) -> None:
    body, reason = OTHERS[name]
    text = module(["f32[8,8]"], "f32[8,8,2]" if "8,8,2" in body else "f32[8,8]", body)
    decision = fusion_analysis(text).decision("rows")
    assert decision is not None
    assert not decision
    assert re.sub(r"\.\d+", "", decision.reason).startswith(reason)


def test_a_fusion_for_our_own_emitters_is_not_asked() -> None:
    text = softmax([8, 8]).replace(f"kind=kCustom, calls=f, {CONFIG}", "kind=kInput, calls=f")
    assert emit(text).kernel.kind == "loop"
