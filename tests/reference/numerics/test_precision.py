"""`--reference_precision=f64`: no intermediate rounding; bits and integers are unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
from reference_running import Array, array, assert_same

import hlo_run
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.numerics.precision import round_value, widen_module


def wide(text: str, *arguments: Array) -> Any:
    """Return the unrounded value of the root."""
    if "HloModule" not in text:
        text = "HloModule m\nENTRY e {\n" + text + "\n}"
    return evaluate(hlo_run.parse(text), arguments, precision="f64")


def test_a_chain_is_not_rounded() -> None:
    text = """x = bf16[3] parameter(0)
    one = bf16[] constant(1)
    b = bf16[3] broadcast(one), dimensions={}
    s = bf16[3] add(x, b)
    ROOT r = bf16[3] subtract(s, b)"""
    x = array("bf16", [0.001, 3, 1e-9])
    assert_same(wide(text, x), x.astype(np.float64) + 1.0 - 1.0)
    native = evaluate(hlo_run.parse("HloModule m\nENTRY e {\n" + text + "\n}"), [x])
    assert_same(np.asarray(native), array("bf16", [0, 3, 0]))


def test_ill_conditioning_shows() -> None:
    """The mean of squares minus the square of the mean loses the whole variance in f32."""
    text = """HloModule m
    add { a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT r = f32[] add(a, b) }
    ENTRY e {
      x = f32[1000] parameter(0)
      z = f32[] constant(0)
      n = f32[] constant(1000)
      s = f32[] reduce(x, z), dimensions={0}, to_apply=add
      q = f32[1000] multiply(x, x)
      t = f32[] reduce(q, z), dimensions={0}, to_apply=add
      mean = f32[] divide(s, n)
      square = f32[] multiply(mean, mean)
      all = f32[] divide(t, n)
      ROOT r = f32[] subtract(all, square)
    }"""
    x = (np.random.default_rng(1).normal(size=1000) + 1e4).astype(np.float32)
    true = np.var(x.astype(np.float64))
    assert abs(float(wide(text, x)) - true) < 1e-6 * true
    assert abs(float(np.asarray(evaluate(hlo_run.parse(text), [x]))) - true) > 0.1 * true


def test_results_of_every_kind() -> None:
    text = """x = f16[2] parameter(0)
    c = c64[2] complex(y, y)
    y = f32[2] convert(x)
    i = s8[2] convert(x)
    p = pred[2] compare(x, x), direction=EQ
    ROOT t = (f16[2], (c64[2], s8[2]), pred[2]) tuple(x, u, p)
    u = (c64[2], s8[2]) tuple(c, i)"""
    lines = text.splitlines()
    text = "\n".join([lines[0], lines[2], lines[1], *lines[3:5], lines[6], lines[5]])
    x = array("f16", [1.5, -2])
    found = wide(text, x)
    assert [leaf.dtype.name for leaf in (found[0], *found[1], found[2])] == ["float64", "complex128", "int8", "bool"]
    module = hlo_run.parse("HloModule m\nENTRY e {\n" + text + "\n}")
    rounded: Any = round_value(found, module.entry.root.shape)
    assert [leaf.dtype.name for leaf in (rounded[0], *rounded[1], rounded[2])] == ["float16", "complex64", "int8", "bool"]
    assert_same(rounded[0], x)


def test_bits_are_those_of_the_type() -> None:
    text = """x = f32[2] parameter(0)
    b = u32[2] bitcast-convert(x)
    one = u32[] constant(1)
    ones = u32[2] broadcast(one), dimensions={}
    n = u32[2] add(b, ones)
    y = f32[2] bitcast-convert(n)
    ROOT r = f32[2] add(y, y)"""
    x = array("f32", [1, -3])
    assert_same(wide(text, x), 2 * np.nextafter(x, np.copysign(array("f32", np.inf), x)).astype(np.float64))


def test_a_bitcast_of_the_same_type_does_not_round() -> None:
    text = """x = f32[2,3] parameter(0)
    third = f32[] constant(3)
    b = f32[2,3] broadcast(third), dimensions={}
    d = f32[2,3] divide(x, b)
    ROOT r = f32[6] bitcast(d)"""
    x = array("f32", np.arange(1, 7).reshape(2, 3))
    assert_same(wide(text, x), (x.astype(np.float64) / 3).reshape(-1))


def test_roundings_that_the_text_asks_for_are_dropped() -> None:
    text = """x = f32[2] parameter(0)
    h = f16[2] convert(x)
    y = f32[2] convert(h)
    ROOT r = f32[2] reduce-precision(y), exponent_bits=5, mantissa_bits=2"""
    x = array("f32", [1.2345678, 1e30])
    assert_same(wide(text, x), x.astype(np.float64))


def test_random_numbers_are_drawn_in_their_own_type() -> None:
    text = """a = f32[] constant(0)
    b = f32[] constant(1)
    ROOT r = f32[50] rng(a, b), distribution=rng_uniform"""
    native: Any = evaluate(hlo_run.parse("HloModule m\nENTRY e {\n" + text + "\n}"), [])
    assert native.dtype == np.float32
    found = wide(text)
    assert found.dtype == np.float64
    # The key depends on the position in the module, which the conversions do not change.
    assert_same(found, native.astype(np.float64))


def test_loops_reducers_and_collectives_are_wide_too() -> None:
    text = """HloModule m
    grow { a = bf16[] parameter(0)
      b = bf16[] parameter(1)
      s = bf16[] add(a, b)
      ROOT r = bf16[] multiply(s, s) }
    ENTRY e {
      x = bf16[2,3] parameter(0)
      z = bf16[] constant(0.1)
      ROOT r = bf16[2] reduce(x, z), dimensions={1}, to_apply=grow
    }"""
    x = array("bf16", np.arange(6).reshape(2, 3) / 8)
    total = np.full(2, float(array("bf16", 0.1)))
    for column in x.astype(np.float64).T:
        total = (total + column) ** 2
    np.testing.assert_allclose(wide(text, x), total, rtol=1e-15)


def test_the_module_itself_stays() -> None:
    module = hlo_run.parse("HloModule m\nENTRY e {\n  x = f32[2] parameter(0)\n  ROOT r = f32[2] exponential(x)\n}")
    version = module.version
    copy = widen_module(module)
    assert module.version == version
    assert [i.shape.element_type for i in module.instructions] == ["f32", "f32"]
    assert [i.shape.element_type for i in copy.instructions] == ["f64", "f64"]
