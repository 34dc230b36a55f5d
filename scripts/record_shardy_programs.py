"""Record JAX programs for eight devices and JAX's results, for tests/sharding/partitioning/test_shardy_programs.py.

    python3 scripts/venv.py python scripts/record_shardy_programs.py

For each function below it stores the HLO text with Shardy's annotations, random arguments, and the results of its jitted form
on eight CPU devices in tests/data/shardy_programs.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
# JAX's types are partly unknown, so its modules are Any here.
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")
sharding: Any = importlib.import_module("jax.sharding")
hlo: Any = importlib.import_module("jaxlib._hlo")
_TARGET = Path(__file__).parent.parent / "tests" / "data" / "shardy_programs"
Array = Any
P: Any = sharding.PartitionSpec
_MESH = sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
_SHUFFLED = sharding.Mesh(np.array(jax.devices())[[3, 1, 0, 2, 7, 6, 5, 4]].reshape(4, 2), ("a", "b"))


def _on(*axes: Any, mesh: Any = _MESH) -> Any:
    return sharding.NamedSharding(mesh, P(*axes))


def mlp(x: Array, up: Array, down: Array) -> Array:
    """Rows over data, hidden units over model."""
    return jax.nn.relu(x @ up) @ down


def attention(x: Array, query: Array, key: Array, value: Array, out: Array) -> Array:
    """Heads over model, with a constraint on the queries."""
    q, k, v = (jnp.einsum("bsd,dhe->bhse", x, w) for w in (query, key, value))
    q = lax.with_sharding_constraint(q, _on("data", "model"))
    weights = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", q, k) / 4.0, axis=-1)
    return jnp.einsum("bhse,hed->bsd", jnp.einsum("bhst,bhte->bhse", weights, v), out)


def shard_map(x: Array, w: Array) -> Array:
    """A product along a divided dimension, written by hand."""

    def product(x: Array, w: Array) -> Array:
        return lax.psum(x @ w, "model")

    specs = (P("data", "model"), P("model", None))
    return jax.shard_map(product, mesh=_MESH, in_specs=specs, out_specs=P("data", None))(x, w)


def constraint(x: Array, y: Array) -> Any:
    """Two axes on one dimension, then another one."""
    z = lax.with_sharding_constraint(x * 2 + 1, _on(("data", "model"), None))
    z = lax.with_sharding_constraint(jnp.sin(z) @ y, _on(None, "data"))
    return z, z.sum(axis=0)


def uneven(x: Array, w: Array) -> Array:
    """Sizes that no axis divides, and a dimension left open."""
    return jnp.tanh(lax.with_sharding_constraint(x @ w, _on("data", P.UNCONSTRAINED))).T


def partial_manual(x: Array, w: Array) -> Array:
    """A region in which one axis is manual."""

    def centre(v: Array) -> Array:
        return v - lax.pmean(v, "data")

    return jax.shard_map(centre, mesh=_MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})(x @ w) * 2


def scan(x: Array, w: Array) -> Any:
    """A loop with a constraint in its body."""

    def body(carry: Array, weights: Array) -> Any:
        carry = lax.with_sharding_constraint(jnp.tanh(carry @ weights), _on("data", "model"))
        return carry, carry.sum()

    return lax.scan(body, x, w)


def nested(x: Array) -> Array:
    """A manual region in another one."""

    def inner(y: Array) -> Array:
        return lax.psum(y, "model") + y

    def outer(y: Array) -> Array:
        spec = P(None, "model")
        made = jax.shard_map(inner, in_specs=spec, out_specs=spec, axis_names={"model"}, check_vma=False)(y * 2)
        return made - lax.pmean(made, "data")

    spec = P("data", None)
    return jax.shard_map(outer, mesh=_MESH, in_specs=spec, out_specs=spec, axis_names={"data"}, check_vma=False)(x)


def train(up: Array, down: Array, x: Array, y: Array) -> Any:
    """A step of training: the loss and the new weights."""

    def loss(up: Array, down: Array) -> Array:
        return ((jnp.tanh(x @ up) @ down - y) ** 2).mean()

    value, (up_gradient, down_gradient) = jax.value_and_grad(loss, (0, 1))(up, down)
    return value, up - up_gradient * 0.1, down - down_gradient * 0.1


def perm(x: Array, w: Array) -> Any:
    """A mesh with the devices in another order."""
    return lax.with_sharding_constraint(x @ w, _on("b", "a", mesh=_SHUFFLED)).sum(0), jnp.sort(x, axis=1)


def megatron(x: Array, norm: Array, qkv: Array, out: Array, up: Array, down: Array) -> Array:
    """A transformer block whose heads and hidden units are divided by model, and its sequence by model between the products."""
    normed = lax.with_sharding_constraint(x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * norm, _on("data", "model"))
    q, k, v = jnp.einsum("bsd,cdhe->cbhse", normed, qkv)
    scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), jnp.einsum("bhse,bhte->bhst", q, k) / 2.0, -1e9)
    mixed = jnp.einsum("bhst,bhte->bhse", jax.nn.softmax(scores), v)
    x = x + lax.with_sharding_constraint(jnp.einsum("bhse,hed->bsd", mixed, out), _on("data", "model"))
    return x + jax.nn.gelu(x @ up) @ down


def fsdp(up: Array, down: Array, x: Array) -> Any:
    """Weights divided over all devices, and gathered for each product; the gradients are divided again."""

    def loss(up: Array, down: Array) -> Array:
        up, down = (lax.with_sharding_constraint(w, _on()) for w in (up, down))
        return (lax.with_sharding_constraint(jax.nn.silu(x @ up) @ down, _on(("data", "model"))) ** 2).sum()

    return jax.grad(loss, (0, 1))(up, down)


def experts(x: Array, w: Array) -> Array:
    """A mixture of experts by hand: tokens go to the devices of their experts and back by all-to-all."""

    def local(x: Array, w: Array) -> Array:
        sent = lax.all_to_all(x.reshape(4, 4, 8), "model", 0, 0)
        made = jnp.einsum("ted,df->tef", sent, w[0])
        return lax.all_to_all(made, "model", 0, 0).reshape(16, 8)

    spec = P(("data", "model"))
    return jax.shard_map(local, mesh=_MESH, in_specs=(spec, P("model")), out_specs=spec)(x, w)


def pipeline(x: Array, w: Array) -> Array:
    """Four stages, between which a collective permute moves the activations; each device returns its own."""

    def stages(x: Array, w: Array) -> Array:
        for _ in range(4):
            x = lax.ppermute(jnp.tanh(x @ w[0]), "model", [(n, (n + 1) % 4) for n in range(4)])
        return x

    specs = P("data", None), P("model")
    return jax.shard_map(stages, mesh=_MESH, in_specs=specs, out_specs=P(("data", "model")), check_vma=False)(x, w)


def image(x: Array, kernel: Array) -> Array:
    """Two convolutions of an image that is divided along its height, and a sum over windows."""
    for _ in range(2):
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def routed(x: Array, gate: Array, w: Array) -> Array:
    """A mixture of experts by one-hot products, with a loop over the layers and a branch."""
    w = lax.with_sharding_constraint(w, _on(None, "model"))

    def double(v: Array) -> Array:
        return v * 2

    def lower(v: Array) -> Array:
        return v - 1

    def layer(x: Array, w: Array) -> Any:
        chosen = jax.nn.one_hot(jnp.argmax(x @ gate, -1), 4)
        moved = lax.with_sharding_constraint(jnp.einsum("te,td->etd", chosen, x), _on("model", "data"))
        x = jnp.einsum("te,etd->td", chosen, jnp.tanh(jnp.einsum("etd,edf->etf", moved, w)))
        return lax.cond(x.sum() > 0, double, lower, x), x.max()

    return lax.scan(layer, x, w)[0]


_HEADS = _on(None, "model")
_FLAT = _on(("data", "model"))
# Each: (function, shardings of the arguments, shardings of the result, shapes of the arguments).
PROGRAMS: tuple[tuple[Any, Any, Any, tuple[tuple[int, ...], ...]], ...] = (
    (mlp, (_on("data", None), _on(None, "model"), _on("model", None)), _on("data", None), ((16, 32), (32, 64), (64, 32))),
    (
        attention,
        (_on("data"), _HEADS, _HEADS, _HEADS, _on("model")),
        _on("data"),
        ((4, 8, 32), (32, 4, 8), (32, 4, 8), (32, 4, 8), (4, 8, 32)),
    ),
    (shard_map, None, None, ((8, 16), (16, 12))),
    (constraint, (_on("data"), _on()), None, ((16, 8), (8, 6))),
    (uneven, (_on(None, None), _on(None, None)), None, ((7, 10), (10, 13))),
    (partial_manual, (_on("data", None), _on(None, "model")), None, ((8, 16), (16, 12))),
    (scan, (_on("data", None), _on(None, None, "model")), None, ((8, 16), (3, 16, 16))),
    (nested, None, None, ((4, 8),)),
    (
        train,
        (_on("data"), _on("model"), _on(("data", "model")), _on("data")),
        (None, _on("data"), _on("model")),
        ((16, 32), (32, 8), (24, 16), (24, 8)),
    ),
    (
        megatron,
        (_on("data"), _on(), _on(None, None, "model"), _on("model"), _on(None, "model"), _on("model")),
        _on("data"),
        ((2, 8, 16), (16,), (3, 16, 4, 4), (4, 4, 16), (16, 32), (32, 16)),
    ),
    (fsdp, (_FLAT, _FLAT, _FLAT), (_FLAT, _FLAT), ((16, 32), (32, 8), (24, 16))),
    (experts, (_FLAT, _on("model")), _FLAT, ((128, 8), (4, 8, 8))),
    (pipeline, None, None, ((8, 6), (4, 6, 6))),
    (image, (_on("data", "model"), _on()), _on("data", "model"), ((2, 16, 8, 3), (3, 3, 3, 3))),
    (routed, (_on("data"), _on(), _on(None, "model")), _on("data"), ((16, 8), (8, 4), (2, 4, 8, 8))),
    (perm, (_on("a", mesh=_SHUFFLED), _on(None, "b", mesh=_SHUFFLED)), None, ((12, 8), (8, 10))),
)


def main() -> None:
    """Write the recordings."""
    _TARGET.mkdir(exist_ok=True)
    options = hlo.HloPrintOptions()
    options.print_metadata, options.print_large_constants = False, True
    for function, of_arguments, of_result, shapes in PROGRAMS:
        given = {"in_shardings": of_arguments, "out_shardings": of_result}
        jitted = jax.jit(function, **{key: value for key, value in given.items() if value is not None})
        rng = np.random.default_rng(len(function.__name__))
        arguments = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
        results = [np.asarray(leaf) for leaf in jax.tree.leaves(jitted(*arguments))]
        text: str = jitted.lower(*arguments).compiler_ir("hlo").get_hlo_module().to_string(options)
        header, _, rest = text.partition("\n")
        (_TARGET / f"{function.__name__}.hlo").write_text(f"{header}, num_partitions=8\n{rest.rstrip()}\n")
        arrays = {f"argument{number}": array for number, array in enumerate(arguments)}
        arrays |= {f"result{number}": array for number, array in enumerate(results)}
        np.savez_compressed(_TARGET / f"{function.__name__}.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
