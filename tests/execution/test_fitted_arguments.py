"""Ranges of random floats that keep a module's values useful, and what a run says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import hlo_run
from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.cli import run
from hlo_run.execution.arguments import Arguments
from hlo_run.execution.console import FilePosition
from hlo_run.options import Options
from hlo_run.reference.arguments.recipes import Leaf, Recipe
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.values import Array, as_array

POSITIVE = Recipe(positive=True)


def _arguments(body: str, computations: str = "") -> tuple[hlo_run.HloModule, Arguments]:
    module = hlo_run.parse(f"HloModule m\n{computations}\nENTRY e {{\n{body}\n}}")
    return module, Arguments(Options(), module, [], FilePosition(0, 1))


def _chosen(body: str, computations: str = "") -> tuple[Mapping[Leaf, Recipe], Array]:
    """Return the recipes that are chosen for a module, and its result."""
    module, arguments = _arguments(body, computations)
    values, _ = arguments.next(1)
    assert arguments.chosen is not None
    return arguments.chosen.recipes, as_array(evaluate(module, values))


SECOND_MOMENT = """
  nu = f32[40] parameter(0)
  g = f32[40] parameter(1)
  keep = f32[] constant(0.999)
  keeps = f32[40] broadcast(keep), dimensions={}
  add = f32[] constant(0.001)
  adds = f32[40] broadcast(add), dimensions={}
  kept = f32[40] multiply(keeps, nu)
  scaled = f32[40] multiply(adds, g)
  square = f32[40] multiply(scaled, g)
  new = f32[40] add(kept, square)
  ROOT r = f32[40] sqrt(new)"""


def test_the_second_moment_of_adam_is_positive_and_its_gradient_is_not() -> None:
    recipes, result = _chosen(SECOND_MOMENT)
    assert recipes == {(0, ()): POSITIVE}
    assert np.isfinite(result).all()


def test_a_matrix_gets_a_positive_diagonal_for_its_cholesky_factor() -> None:
    body = """
  n = f32[] parameter(0)
  row = s32[3,3] iota(), iota_dimension=0
  column = s32[3,3] iota(), iota_dimension=1
  same = pred[3,3] compare(row, column), direction=EQ
  zero = f32[] constant(0)
  zeros = f32[3,3] broadcast(zero), dimensions={}
  noise = f32[3,3] broadcast(n), dimensions={}
  matrix = f32[3,3]{0,1} select(same, noise, zeros)
  call = (f32[3,3]{0,1}, s32[]) custom-call(matrix), custom_call_target="lapack_spotrf_ffi", api_version=API_VERSION_TYPED_FFI,
    backend_config={uplo = 76 : ui8}
  ROOT info = s32[] get-tuple-element(call), index=1"""
    module = hlo_run.parse(f"HloModule m\nENTRY e {{\n{body}\n}}")
    for seed in range(6):
        values, _ = Arguments(Options(seed=seed), module, [], FilePosition(0, 1)).next(1)
        assert as_array(evaluate(module, values)) == 0


@pytest.mark.parametrize(
    "ops",
    [
        "ROOT r = f32[40] log(x)",
        "ROOT r = f32[40] rsqrt(x)",
        "n = f32[40] negate(y)\n m = f32[40] negate(n)\n p = f32[40] add(x, m)\n ROOT r = f32[40] log(p)",
        "ROOT r = f32[40] power(x, y)",
    ],
)
def test_what_logarithms_and_roots_take_is_positive(ops: str) -> None:
    recipes, result = _chosen(f"x = f32[40] parameter(0)\n y = f32[40] parameter(1)\n {ops}")
    assert recipes[0, ()].positive
    assert np.isfinite(result).all()


def test_a_variance_in_the_state_of_a_loop_is_positive() -> None:
    loop = """
body {
  s = (s32[], f32[8]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  root = f32[8] sqrt(v)
  one = s32[] constant(1)
  next = s32[] add(k, one)
  ROOT r = (s32[], f32[8]) tuple(next, root)
}
condition {
  s = (s32[], f32[8]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT c = pred[] compare(k, three), direction=LT
}"""
    recipes, result = _chosen(
        """
  v = f32[8] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[8]) tuple(zero, v)
  w = (s32[], f32[8]) while(s), condition=condition, body=body
  ROOT r = f32[8] get-tuple-element(w), index=1""",
        loop,
    )
    assert recipes == {(0, ()): POSITIVE}
    assert np.isfinite(result).all()


def test_weights_of_long_sums_are_scaled_so_that_tanh_is_not_flat() -> None:
    recipes, result = _chosen("""
  x = f32[4,600] parameter(0)
  w = f32[600,600] parameter(1)
  v = f32[600,600] parameter(2)
  h = f32[4,600] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[4,600] dot(h, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[4,600] tanh(g)""")
    assert recipes == {(1, ()): Recipe(fan_in=600), (2, ()): Recipe(fan_in=600)}
    assert np.mean(np.abs(result) == 1) < 0.01


def test_an_exponential_does_not_overflow() -> None:
    recipes, result = _chosen("""
  x = f32[40] parameter(0)
  c = f32[] constant(1000)
  cs = f32[40] broadcast(c), dimensions={}
  y = f32[40] multiply(x, cs)
  ROOT r = f32[40] exponential(y)""")
    assert 0.001 < recipes[0, ()].scale < 0.1
    assert np.isfinite(result).all()
    assert result.all()


def test_what_is_subtracted_is_smaller_if_all_differences_are_negative() -> None:
    recipes, result = _chosen("""
  x = f32[40] parameter(0)
  k = f32[] parameter(1)
  tenth = f32[] constant(0.1)
  tenths = f32[40] broadcast(tenth), dimensions={}
  spot = f32[40] multiply(x, tenths)
  size = f32[] abs(k)
  strike = f32[40] broadcast(size), dimensions={}
  gain = f32[40] subtract(spot, strike)
  zero = f32[] constant(0)
  zeros = f32[40] broadcast(zero), dimensions={}
  ROOT r = f32[40] maximum(gain, zeros)""")
    assert recipes[0, ()] == POSITIVE
    assert recipes[1, ()].scale <= 0.125
    assert result.any()


@pytest.mark.parametrize(
    "body",
    [
        # The program chooses against the NaN.
        """
  x = f32[40] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[40] broadcast(zero), dimensions={}
  is_positive = pred[40] compare(x, zeros), direction=GT
  l = f32[40] log(x)
  ROOT r = f32[40] select(is_positive, l, zeros)""",
        "x = f32[40] parameter(0)\n y = f32[40] parameter(1)\n ROOT r = f32[40] multiply(x, y)",
        "x = s32[40] parameter(0)\n ROOT r = f16[40] convert(x)",
        # Masked numbers of a softmax are zero.
        """
  x = f32[40] parameter(0)
  m = pred[40] parameter(1)
  low = f32[] constant(-1e9)
  lows = f32[40] broadcast(low), dimensions={}
  masked = f32[40] select(m, x, lows)
  ROOT r = f32[40] exponential(masked)""",
    ],
)
def test_modules_without_special_needs_get_xlas_arguments(body: str) -> None:
    module, arguments = _arguments(body)
    values, _ = arguments.next(1)
    assert arguments.chosen is not None
    assert not arguments.chosen.recipes
    plain, _ = Arguments(Options(xla_arguments=True), module, [], FilePosition(0, 1)).next(1)
    for value, other in zip(values, plain, strict=True):
        np.testing.assert_array_equal(as_array(value), as_array(other))


def test_a_seed_gives_the_same_arguments_and_iterations_others() -> None:
    body = SECOND_MOMENT
    first, again = _arguments(body)[1], _arguments(body)[1]
    lines = [[as_array(value).tolist() for value in source.next(i)[0]] for source in (first, again) for i in (1, 2)]
    assert lines[:2] == lines[2:]
    assert lines[0] != lines[1]
    assert min(lines[1][0]) > 0


def test_later_tries_keep_to_the_ranges() -> None:
    _, arguments = _arguments(SECOND_MOMENT)
    arguments.next(1)
    smallest = [float(as_array(values[0]).min()) for values, _ in arguments.others(1)]
    assert len(smallest) == 4
    assert min(smallest) > 0


@pytest.mark.parametrize(("body", "runs"), [("x = f32[40] parameter(0)\n ROOT r = f32[40] sine(x)", 1), (SECOND_MOMENT, 2)])
def test_the_evaluation_that_chooses_is_the_expected_result(
    body: str, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, count = InterpreterBackend.run_module, 0

    def counted(self: InterpreterBackend, *values: object) -> object:
        nonlocal count
        count += values[3] == "native"  # what the comparison sees is measured in float64
        return original(self, *values)  # pyright: ignore[reportArgumentType] - passed on

    monkeypatch.setattr(InterpreterBackend, "run_module", counted)
    file, report = tmp_path / "m.hlo", tmp_path / "r.json"
    file.write_text(f"HloModule m\nENTRY e {{\n{body}\n}}")
    assert run(["--platform=Host", f"--report_json={report}", str(file)]) == 0
    assert count == runs
    chosen = json.loads(report.read_text())["files"][0]["iterations"][0]["chosen"]
    assert chosen == (["%nu in [0.0125, 0.2)"] if runs == 2 else [])
    assert ("arguments: %nu in [0.0125, 0.2)" in capsys.readouterr().err) == (runs == 2)


def test_xlas_arguments_are_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(f"HloModule m\nENTRY e {{{SECOND_MOMENT}\n}}")
    assert (
        run(["--platform=Interpreter", "--reference_platform=", "--xla_arguments", f"--save_inputs={file}.npz", str(file)]) == 0
    )
    with np.load(f"{file}.npz") as data:
        assert float(data["arg0"].min()) < -0.09
    assert "arguments:" not in capsys.readouterr().err
