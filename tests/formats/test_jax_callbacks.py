"""Python callbacks of JAX programs, when hlo-run runs their modules."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# The functions under test are lambdas, and jax is untyped here.

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.errors import DeviceError

jax: Any = pytest.importorskip("jax")
jnp: Any = jax.numpy
io_callback: Any = pytest.importorskip("jax.experimental").io_callback

X = np.arange(3, dtype=np.float32)


def _pure(function: Any, *operands: Any) -> Any:
    return jax.pure_callback(function, operands[0], *operands)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("platform", ["Host", "Interpreter"])
def test_callbacks_run(platform: str, jitted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []

    def note(a: Any) -> Any:
        seen.append(float(a.sum()))
        return a * 2, np.int32(len(seen))

    def program(x: Any) -> Any:
        jax.debug.print("x is {x}", x=x[1])
        doubled, count = io_callback(note, (x, jnp.int32(0)), x, ordered=True)
        io_callback(lambda a: seen.append(float(a[0])), None, doubled, ordered=True)
        looped = jax.lax.fori_loop(0, 3, lambda _, v: _pure(lambda a: a + 1, v), x)
        return {"looped": looped, "pair": (count, _pure(np.add, doubled, x))}

    module = hlo_run.from_jax(jax.jit(program) if jitted else program, X)
    looped, count, total = hlo_run.run(module, X, platform=platform)
    np.testing.assert_array_equal(looped, X + 3)
    np.testing.assert_array_equal(total, X * 3)
    assert count == 1
    assert seen == [3, 0], "in order, once each"
    assert capsys.readouterr().out == "x is 1.0\n"


def test_programs_do_not_mix_their_functions() -> None:
    modules = [hlo_run.from_jax(lambda x, n=n: _pure(lambda a: a + np.float32(n), x), X) for n in range(3)]
    gc.collect()
    for n, module in enumerate(modules):
        np.testing.assert_array_equal(hlo_run.evaluate(module.clone(), X), X + n)


def test_what_a_function_raises_names_the_call() -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("not today")

    with pytest.raises(DeviceError, match="raised ValueError: not today"):
        hlo_run.run(hlo_run.from_jax(lambda x: _pure(refuse, x), X), X, platform="Host")


def test_a_program_that_is_gone_is_an_error() -> None:
    module = hlo_run.from_jax(lambda x: _pure(np.sin, x), X)
    read = hlo_run.parse(module.to_string())
    np.testing.assert_allclose(hlo_run.evaluate(read, X), np.sin(X), rtol=1e-6)
    del module
    # JAX keeps what it lowered.
    jax.clear_caches()
    gc.collect()
    with pytest.raises(DeviceError, match="was deleted"):
        hlo_run.evaluate(read, X)
