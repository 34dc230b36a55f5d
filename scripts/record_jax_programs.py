"""Record small JAX programs and real XLA:CPU's results, for tests/backends/host/test_jax_programs.py.

    python3 scripts/venv.py python scripts/record_jax_programs.py

For each function below it stores the HLO text that JAX lowers it to, random arguments, and the results of its jitted form in
tests/data/jax_programs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

# JAX's types are partly unknown, so its modules are Any here.
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")
_TARGET = Path(__file__).parent.parent / "tests" / "data" / "jax_programs"
Array = Any


def keys_and_values(x: Array, i: Array) -> Any:
    """A stable sort by bf16 keys, and an unstable one by two keys, one of them descending."""
    return lax.sort((x, i), num_keys=1, is_stable=True), lax.sort((i % 5, -x.astype(jnp.float32)), num_keys=2)


def transposed_convolution(x: Array, w: Array) -> Any:
    """Base dilation in the input and dilation in the weights."""
    dilated = lax.conv_general_dilated(x, w, (1, 1), [(2, 2), (2, 2)], lhs_dilation=(3, 2), rhs_dilation=(1, 2))
    return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NCHW", "IOHW", "NCHW")), dilated


def grouped_gradient(x: Array, w: Array) -> Any:
    """Gradients of a grouped, strided convolution."""

    def loss(x: Array, w: Array) -> Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return (lax.conv_general_dilated(x, w, (2, 2), "SAME", feature_group_count=2, dimension_numbers=numbers) ** 2).sum()

    return jax.grad(loss, (0, 1))(x, w)


def open_loops(x: Array, n: Array) -> Any:
    """Loops whose trip counts are arguments."""

    def turn(i: Array, v: Array) -> Array:
        return jnp.sin(v) + i

    def put(i: Array, v: Array) -> Array:
        return v.at[i % 6].set(1.5 * i)

    return lax.fori_loop(0, n, turn, x), lax.fori_loop(n, n + 3, put, x)


def scan_in_scan(a: Array, h: Array) -> Any:
    """Loops in a loop, the outer one backwards and unrolled."""

    def outer(c: Array, row: Array) -> Any:
        def inner(d: Array, v: Array) -> Any:
            d = jnp.tanh(d * v + c)
            return d, d.sum()

        d, sums = lax.scan(inner, c, row)
        return d, (sums, d)

    return lax.scan(outer, h, a, reverse=True, unroll=2)


def several_windows(x: Array) -> Any:
    """Windows with dilation, with padding, and a gradient through a maximum."""
    holes = lax.reduce_window(
        x,
        np.float32(0),
        lax.add,
        (1, 2, 4),
        (1, 1, 1),
        ((0, 0), (1, 0), (2, 1)),
        base_dilation=(1, 2, 1),
        window_dilation=(1, 1, 2),
    )

    def loss(x: Array) -> Array:
        return (lax.reduce_window(x, np.float32(-np.inf), lax.max, (1, 2, 2), (1, 2, 2), "VALID") ** 2).sum()

    return holes, jax.grad(loss)(x)


def places(x: Array, i: Array, u: Array) -> Any:
    """Gathers and scatters with indices out of bounds, dropped, clipped and filled."""
    j = jnp.abs(i) % 9
    return (
        x.at[j].add(u, mode="drop"),
        x.at[j].max(u, mode="clip"),
        x.at[j].get(mode="fill", fill_value=7.0),
        x[j[:2], j[2:4] % 5],
    )


PROGRAMS: tuple[tuple[Callable[..., Any], tuple[tuple[str, tuple[int, ...]], ...]], ...] = (
    (keys_and_values, (("bfloat16", (40,)), ("int32", (40,)))),
    (transposed_convolution, (("float32", (2, 4, 5, 5)), ("float32", (4, 4, 3, 3)))),
    (grouped_gradient, (("float32", (2, 9, 9, 4)), ("float32", (3, 3, 2, 6)))),
    (open_loops, (("float32", (6,)), ("int32", ()))),
    (scan_in_scan, (("float32", (4, 5)), ("float32", (5,)))),
    (several_windows, (("float32", (2, 6, 8)),)),
    (places, (("float32", (8, 5)), ("int32", (6,)), ("float32", (6, 5)))),
)


def main() -> int:
    """Record all programs and return the exit code."""
    _TARGET.mkdir(parents=True, exist_ok=True)
    for function, kinds in PROGRAMS:
        random = np.random.default_rng(len(function.__name__))
        arguments = [_argument(random, kind, dims) for kind, dims in kinds]
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
        text = lowered.compiler_ir("hlo").as_hlo_text()
        results = [np.asarray(leaf) for leaf in jax.tree.leaves(lowered.compile()(*arguments))]
        (_TARGET / f"{function.__name__}.hlo").write_text(text, encoding="utf-8")
        entries: dict[str, Any] = {}
        for prefix, arrays in (("arg", arguments), ("out", results)):
            for number, array in enumerate(arrays):
                entries |= _stored(f"{prefix}{number}", array)
        np.savez_compressed(_TARGET / f"{function.__name__}.npz", **entries)
    return 0


def _argument(random: np.random.Generator, kind: str, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if kind == "int32":
        return random.integers(0, 1000 if dims else 6, dims).astype(np.int32)
    values = np.asarray(random.normal(size=dims), np.float32)
    return values.astype(ml_dtypes.bfloat16) if kind == "bfloat16" else values


def _stored(key: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the entries of an array. Types that numpy lacks are stored as their bits."""
    if array.dtype.isbuiltin == 1:
        return {key: array}
    return {key: array.view(f"u{array.dtype.itemsize}"), f"{key}.dtype": np.array(array.dtype.name)}


if __name__ == "__main__":
    sys.exit(main())
