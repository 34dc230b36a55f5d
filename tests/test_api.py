"""The interface of `import hlo_run`: running modules with arrays, loading files, and names that are imported when first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run.errors import ParseError, UsageError

GELU = Path(__file__).resolve().parent.parent / "examples" / "gelu.hlo"
MODULE = """HloModule pair
ENTRY e {
  x = f32[2,3] parameter(0)
  s = (s32[], bf16[2]) parameter(1)
  i = s32[] get-tuple-element(s), index=0
  h = bf16[2] get-tuple-element(s), index=1
  c = f32[] convert(i)
  b = f32[2,3] broadcast(c), dimensions={}
  a = f32[2,3] add(x, b)
  ROOT t = (f32[2,3], bf16[2]) tuple(a, h)
}
"""
X = np.random.default_rng(3).standard_normal((2, 3)).astype(np.float32)
HALF = np.array([1.5, -2], ml_dtypes.bfloat16)


def test_evaluate_takes_arrays_numbers_and_tuples() -> None:
    module = hlo_run.parse(MODULE)
    for arguments in ((X, (4, HALF)), (X.tolist(), [4, [1.5, -2]]), (X, (np.int32(4), HALF))):
        result: Any = hlo_run.evaluate(module, *arguments)
        np.testing.assert_allclose(result[0], X + 4, rtol=1e-6)
        np.testing.assert_array_equal(result[1], HALF)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), "'pair' takes 2 arguments, but the caller gives 1"),
        ((X.T, (4, HALF)), r"argument 0 \('x'\) has dimensions \[3, 2\], but the parameter is f32\[2,3\]"),
        ((X.astype(np.float64), (4, HALF)), r"argument 0 \('x'\) has elements of float64, but the parameter is f32\[2,3\]"),
        ((X, 4), "argument 1 .'s'. must be a tuple of 2 values, but has 1"),
        ((X, (4, HALF, 5)), "must be a tuple of 2 values, but has 3"),
        ((X, ("four", HALF)), "element 0, is not an array of s32"),
        (([[1.0], [2.0, 3.0]], (4, HALF)), "is not an array of f32"),
    ],
)
def test_arguments_that_do_not_fit_are_usage_errors(arguments: tuple[Any, ...], message: str) -> None:
    for call in (hlo_run.evaluate, hlo_run.run):
        with pytest.raises(UsageError, match=message):
            call(hlo_run.parse(MODULE), *arguments)


def test_run_compiles_for_a_platform() -> None:
    builder = hlo_run.HloBuilder("m")
    x = builder.parameter(0, X)
    module = builder.build(builder.tanh(x * 2.0) + 1.0)
    before = module.version
    for platform in ("Host", "host", "Interpreter"):
        np.testing.assert_allclose(hlo_run.run(module, X, platform=platform), np.tanh(X * 2) + 1, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(hlo_run.run(module, X, platform="Host", target="a100"), np.tanh(X * 2) + 1, rtol=2e-6, atol=1e-6)
    assert module.version == before, "the caller's module stays as it is"
    with pytest.raises(UsageError, match="unknown platform"):
        hlo_run.run(module, X, platform="abacus")
    with pytest.raises(UsageError):
        hlo_run.run(module, X, platform="Host", target="abacus")


def test_load_reads_a_file(tmp_path: Path) -> None:
    assert hlo_run.load(str(GELU)).name == "m"
    other = tmp_path / "module.dump"
    other.write_text(MODULE)
    assert hlo_run.load(str(other), "hlo").name == "pair"
    with pytest.raises(UsageError, match="format 'dump' is not supported"):
        hlo_run.load(str(other))
    other.write_text("HloModule broken\nENTRY e { x = f32[2 }")
    with pytest.raises(ParseError) as caught:
        hlo_run.load(str(other), "hlo")
    assert caught.value.where is not None
    assert caught.value.where.file == str(other)


def test_every_name_is_there_and_nothing_is_loaded_before_it_is_used() -> None:
    program = (
        "import sys, hlo_run\n"
        "heavy = ('numpy', 'xdsl', 'llvmlite', 'jax', 'jaxlib', 'click')\n"
        "assert not [name for name in heavy if name in sys.modules], 'importing hlo_run loads too much'\n"
        "hlo_run.HloBuilder\n"
        "hlo_run.evaluate\n"
        "assert not [name for name in heavy[1:] if name in sys.modules], 'building and evaluating load too much'\n"
        "assert all(getattr(hlo_run, name) for name in hlo_run.__all__)\n"
        "assert set(hlo_run.__all__) <= set(dir(hlo_run))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hlo_run.nonsense  # pyright: ignore[reportAttributeAccessIssue] - what the test is about
