"""JAX functions as modules: the reference computes the values of JAX itself, through HLO and through StableHLO."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# The functions under test are lambdas, and jax is untyped here.

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.formats.read import read_module
from hlo_run.hlo.graph import HloModule

jax: Any = pytest.importorskip("jax")
jnp: Any = jax.numpy

RNG = np.random.default_rng(23)
A = RNG.standard_normal((4, 6)).astype(np.float32)
B = RNG.standard_normal((6, 3)).astype(np.float32)
V = RNG.standard_normal(6).astype(np.float32)
N = RNG.integers(-50, 50, (5, 4)).astype(np.int32)


def _loss(w: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w) - 0.5) ** 2)


def _fibonacci(n: Any) -> Any:
    return jax.lax.fori_loop(0, 10, lambda _, pair: (pair[1], pair[0] + pair[1]), (n, n + 1))


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul_and_sum": (lambda a, b: (jnp.tanh(a) @ b, a.sum()), (A, B)),
    "softmax": (lambda a: jax.nn.softmax(a, axis=-1), (A,)),
    "layer_norm": (lambda a: (a - a.mean(-1, keepdims=True)) / jnp.sqrt(a.var(-1, keepdims=True) + 1e-5), (A,)),
    "gradient": (jax.grad(_loss), (B, RNG.standard_normal((5, 6)).astype(np.float32))),
    "sort": (lambda n: (jnp.sort(n, axis=0), jnp.argsort(n, axis=1)), (N,)),
    "loop": (_fibonacci, (np.int32(1),)),
    "scan": (lambda v: jax.lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.float32(0), v), (V,)),
    "switch": (lambda i, v: jax.lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 3], v), (np.int32(2), V)),
    "take": (lambda a, n: jnp.take(a, jnp.abs(n) % 4, axis=0), (A, N)),
    "scatter": (lambda a: a.at[jnp.array([0, 2])].add(1.0), (A,)),
    "cumulative": (lambda a: (jnp.cumsum(a, 1), jnp.cumprod(a, 0)), (A,)),
    "half": (lambda a: (a.astype(jnp.bfloat16) * 2).astype(jnp.float32), (A,)),
    "integers": (lambda n: (n // 7, n % 7, n >> 1, jnp.bitwise_xor(n, 3)), (N,)),
    "window": (lambda a: jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (2, 2), (1, 2), "VALID"), (A,)),
    "nested": (lambda tree: {"sum": tree["a"] + tree["b"][0], "neg": -tree["b"][1]}, ({"a": V, "b": [V, V]},)),
}


def _leaves(value: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(value)]


def _results(module: HloModule, leaves: list[Any]) -> list[Any]:
    result = hlo_run.evaluate(module, *leaves)
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_jax_function_gives_jaxs_values(name: str, tmp_path: Path) -> None:
    function, arguments = FUNCTIONS[name]
    module = hlo_run.from_jax(function, *arguments)
    expected = _leaves(jax.jit(function)(*arguments))
    results = _results(module, _leaves(arguments))
    # The same function through StableHLO, as a file.
    file = tmp_path / "module.mlir"
    file.write_text(jax.jit(function, keep_unused=True).trace(*arguments).lower(lowering_platforms=("cpu",)).as_text())
    through_mlir = hlo_run.load(str(file))
    assert _opcodes(through_mlir) == _opcodes(module)
    assert len(results) == len(expected)
    for found, again, wanted in zip(results, _results(through_mlir, _leaves(arguments)), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
        np.testing.assert_array_equal(found, again)


def _opcodes(module: HloModule) -> Counter[str]:
    return Counter(instruction.opcode for instruction in module.instructions)


def test_mhlo_bytecode_and_portable_artifacts(tmp_path: Path) -> None:
    lowered = jax.jit(lambda a: jnp.tanh(a) + 1).lower(A)
    bytecode = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(bytecode)
    exported = jax.export.export(jax.jit(lambda a: jnp.tanh(a) + 1))(A).mlir_module_serialized
    mhlo = (
        "func.func @main(%a: tensor<4x6xf32>) -> tensor<4x6xf32> {\n  %0 = mhlo.tanh %a : tensor<4x6xf32>\n"
        "  %one = mhlo.constant dense<1.0> : tensor<4x6xf32>\n  %1 = mhlo.add %0, %one : tensor<4x6xf32>\n"
        "  return %1 : tensor<4x6xf32>\n}"
    )
    files = {"a.mlirbc": bytecode.getvalue(), "b.mlir": bytecode.getvalue(), "c.stablehlo": exported, "d.mhlo": mhlo.encode()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        np.testing.assert_allclose(hlo_run.evaluate(hlo_run.load(str(tmp_path / name)), A), np.tanh(A) + 1, rtol=1e-6)


def test_several_results_are_one_tuple_as_in_xla(tmp_path: Path) -> None:
    text = "func.func @main(%a: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) { return %a, %a : tensor<2xf32>, tensor<2xf32> }"
    (tmp_path / "m.mlir").write_text(text)
    assert "ROOT %tuple" in read_module(str(tmp_path / "m.mlir")).text


def test_only_shapes_matter_and_unused_arguments_stay() -> None:
    abstract = jax.ShapeDtypeStruct((4, 6), jnp.float32)
    module = hlo_run.from_jax(lambda a, unused, scale: a * scale, abstract, abstract, scale=2.0)
    assert [str(p.shape) for p in module.entry.parameters] == ["f32[4,6]{1,0}", "f32[4,6]{1,0}", "f32[]"]
    np.testing.assert_allclose(hlo_run.evaluate(module, A, A, 2.0), A * 2)


def test_a_jitted_function_is_lowered_as_it_is() -> None:
    module = hlo_run.from_jax(jax.jit(lambda a, unused: a + 1), A, A)
    assert len(module.entry.parameters) == 1, "jax.jit drops what is not used"


def test_the_platform_decides_between_hlo_and_custom_calls() -> None:
    def factor(a: Any) -> Any:
        return jnp.linalg.cholesky(a)

    square = jnp.eye(3)
    assert _opcodes(hlo_run.from_jax(factor, square))["custom-call"]
    assert not _opcodes(hlo_run.from_jax(factor, square, jax_platform="tpu"))["custom-call"]


def test_what_the_function_raises_passes_through() -> None:
    def broken(_: Any) -> Any:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        hlo_run.from_jax(broken, A)
