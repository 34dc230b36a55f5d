"""Write large programs as HLO text, whole training steps of 18 families of models: input for `beside_xla.py` and others.

    python benchmarks/training_programs.py FOLDER [NAME ...] [--small]

Each step computes a loss, its gradients and an optimiser's update of all parameters. The text is JAX's input to XLA, before any
optimisation. `--small` writes the same programs with arrays small enough to run and compare with `hlo-run` on Host. Needs jax.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

# pyright: basic
# jax's functions have no precise types.

Array = Any
Tree = Any
_LAYOUT = re.compile(r"\{(\d+(?:,\d+)*)\}")


class Scope:
    """Parameters by name: the first pass through a model creates them, later passes read them."""

    def __init__(self, values: dict[str, Array] | None = None) -> None:
        self.values: dict[str, Array] = {} if values is None else values
        self._makes = values is None
        self.count = 0

    def __call__(self, *shape: int) -> Array:
        name = f"p{self.count}"
        self.count += 1
        if self._makes:
            self.values[name] = jnp.zeros(shape)
        return self.values[name]


def dense(p: Scope, x: Array, width: int, bias: bool = True) -> Array:
    y = x @ p(x.shape[-1], width)
    return y + p(width) if bias else y


def conv(p: Scope, x: Array, width: int, size: int, stride: int = 1, groups: int = 1, bias: bool = False) -> Array:
    kernel = p(size, size, x.shape[-1] // groups, width)
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups)
    return y + p(width) if bias else y


def normed(x: Array, axes: tuple[int, ...] | int) -> Array:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + 1e-6)


def layer_norm(p: Scope, x: Array) -> Array:
    return normed(x, -1) * (1 + p(x.shape[-1])) + p(x.shape[-1])


def batch_norm(p: Scope, x: Array) -> Array:
    return normed(x, tuple(range(x.ndim - 1))) * (1 + p(x.shape[-1])) + p(x.shape[-1])


def group_norm(p: Scope, x: Array, groups: int = 4) -> Array:
    *outer, width = x.shape
    y = normed(x.reshape(*outer, groups, width // groups), (1, 2, 4)).reshape(x.shape)
    return y * (1 + p(width)) + p(width)


def rms_norm(p: Scope, x: Array) -> Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * (1 + p(x.shape[-1]))


def attention(p: Scope, x: Array, heads: int, source: Array | None = None, causal: bool = False) -> Array:
    source = x if source is None else source
    width = x.shape[-1]
    q, k, v = (jnp.einsum("btd,dhk->bthk", a, p(width, heads, width // heads)) for a in (x, source, source))
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / np.sqrt(width // heads).astype(np.float32)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqs,bshk->bqhk", nn.softmax(scores), v), p(heads, width // heads, width))


def mlp(p: Scope, x: Array, factor: int = 4) -> Array:
    return dense(p, nn.gelu(dense(p, x, factor * x.shape[-1])), x.shape[-1])


def block(p: Scope, x: Array, heads: int, causal: bool = False) -> Array:
    x = x + attention(p, layer_norm(p, x), heads, causal=causal)
    return x + mlp(p, layer_norm(p, x))


def cross_entropy(logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(nn.log_softmax(logits), labels[..., None], -1).mean()


Update = Callable[[Tree, Tree, Tree], "tuple[Tree, Tree]"]


def _zeros(params: Tree) -> Tree:
    return jax.tree.map(jnp.zeros_like, params)


def nesterov() -> tuple[Callable[[Tree], Tree], Update]:
    def update(grads: Tree, trace: Tree, params: Tree) -> tuple[Tree, Tree]:
        grads = jax.tree.map(lambda g, w: g + 1e-4 * w, grads, params)
        trace = jax.tree.map(lambda g, t: g + 0.9 * t, grads, trace)
        return jax.tree.map(lambda w, g, t: w - 0.1 * (g + 0.9 * t), params, grads, trace), trace

    return _zeros, update


def adam(decay: float = 0.0, clips: bool = False, trusts: bool = False) -> tuple[Callable[[Tree], Tree], Update]:
    """Adam; AdamW with `decay`; LAMB with `trusts`, which scales steps by the ratio of norms. `clips` limits the global norm."""

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        count, mean, square = state
        count = count + 1
        if clips:
            norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: jnp.where(norm < 1, g, g / norm), grads)
        mean = jax.tree.map(lambda g, m: 0.1 * g + 0.9 * m, grads, mean)
        square = jax.tree.map(lambda g, v: 0.001 * g**2 + 0.999 * v, grads, square)

        def step(w: Array, m: Array, v: Array) -> Array:
            move = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-6) + decay * w
            if trusts:
                size, length = jnp.sqrt(jnp.square(w).sum()), jnp.sqrt(jnp.square(move).sum())
                move = move * jnp.where((size == 0) | (length == 0), 1.0, size / length)
            return w - 1e-3 * move

        return jax.tree.map(step, params, mean, square), (count, mean, square)

    return lambda params: (jnp.zeros(()), _zeros(params), _zeros(params)), update


def adafactor() -> tuple[Callable[[Tree], Tree], Update]:
    def start(w: Array) -> Tree:
        return (jnp.zeros(w.shape[:-1]), jnp.zeros(w.shape[:-2] + w.shape[-1:])) if w.ndim > 1 else jnp.zeros(w.shape)

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        made, new = {}, {}
        for name, w in params.items():
            g = grads[name]
            square = jnp.square(g) + 1e-30
            if w.ndim > 1:
                row = 0.9 * state[name][0] + 0.1 * square.mean(-1)
                column = 0.9 * state[name][1] + 0.1 * square.mean(-2)
                scale = lax.rsqrt(row / row.mean(-1, keepdims=True))[..., None] * lax.rsqrt(column)[..., None, :]
                new[name] = (row, column)
            else:
                new[name] = 0.9 * state[name] + 0.1 * square
                scale = lax.rsqrt(new[name])
            move = g * scale
            move = move / jnp.maximum(1.0, jnp.sqrt(jnp.square(move).mean()))
            made[name] = w - 1e-2 * jnp.maximum(jnp.sqrt(jnp.square(w).mean()), 1e-3) * move
        return made, new

    return lambda params: {name: start(w) for name, w in params.items()}, update


def training(
    loss: Callable[..., Array], optimiser: tuple[Any, Update], *batch: Array
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a training step, and its arguments by shape."""
    start, update = optimiser

    def made() -> Tree:
        scope = Scope()
        loss(scope, *(jnp.zeros(a.shape, a.dtype) for a in batch))
        return scope.values

    def step(params: Tree, state: Tree, *batch: Array) -> Any:
        value, grads = jax.value_and_grad(lambda p: loss(Scope(p), *batch))(params)
        return value, *update(grads, state, params)

    params = jax.eval_shape(made)
    return step, (params, jax.eval_shape(start, params), *batch)


def floats(*shape: int) -> Array:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def words(*shape: int) -> Array:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def resnet(sizes: tuple[int, ...], deep: bool, width: int) -> Callable[..., Array]:
    def loss(p: Scope, x: Array, labels: Array) -> Array:
        x = nn.relu(batch_norm(p, conv(p, x, width, 7, 2)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for stage, count in enumerate(sizes):
            for place in range(count):
                stride, inner, kept = 2 if stage and not place else 1, width * 2**stage, x
                y = nn.relu(batch_norm(p, conv(p, x, inner, 1 if deep else 3, 1 if deep else stride)))
                y = batch_norm(p, conv(p, y, inner, 3, stride if deep else 1))
                if deep:
                    y = batch_norm(p, conv(p, nn.relu(y), 4 * inner, 1))
                if kept.shape != y.shape:
                    kept = batch_norm(p, conv(p, kept, y.shape[-1], 1, stride))
                x = nn.relu(kept + y)
        return cross_entropy(dense(p, x.mean((1, 2)), 16 * width), labels)

    return loss


def resnet50_nesterov(small: bool) -> Any:
    size, batch, stages = (16, 2, (1, 1)) if small else (224, 32, (3, 4, 6, 3))
    return training(resnet(stages, True, 8 if small else 64), nesterov(), floats(batch, size, size, 3), words(batch))


def resnet18_adamw(small: bool) -> Any:
    size, batch, stages = (16, 2, (1, 1)) if small else (64, 32, (2, 2, 2, 2))
    return training(resnet(stages, False, 8 if small else 64), adam(1e-4), floats(batch, size, size, 3), words(batch))


def _vit(layers: int, width: int, heads: int, patch: int) -> Callable[..., Array]:
    def loss(p: Scope, x: Array, labels: Array) -> Array:
        x = conv(p, x, width, patch, patch, bias=True)
        x = x.reshape(x.shape[0], -1, width)
        x = jnp.concatenate([jnp.tile(p(1, 1, width), (x.shape[0], 1, 1)), x], 1)
        x = x + p(1, x.shape[1], width)
        for _ in range(layers):
            x = block(p, x, heads)
        return cross_entropy(dense(p, layer_norm(p, x)[:, 0], 100), labels)

    return loss


def vit_adamw(small: bool) -> Any:
    model = _vit(1, 16, 2, 4) if small else _vit(6, 384, 6, 16)
    size, batch = (8, 2) if small else (224, 16)
    return training(model, adam(1e-4, clips=True), floats(batch, size, size, 3), words(batch))


def vit_lamb(small: bool) -> Any:
    model = _vit(1, 16, 2, 4) if small else _vit(4, 192, 3, 8)
    size, batch = (8, 2) if small else (64, 16)
    return training(model, adam(1e-4, trusts=True), floats(batch, size, size, 3), words(batch))


def gpt_adamw(small: bool) -> Any:
    layers, width, heads, vocabulary, length = (1, 16, 2, 32, 8) if small else (12, 768, 12, 50257, 512)

    def loss(p: Scope, tokens: Array, labels: Array) -> Array:
        table = p(vocabulary, width)
        x = table[tokens] + p(length, width)
        for _ in range(layers):
            x = block(p, x, heads, causal=True)
        return cross_entropy(layer_norm(p, x) @ table.T, labels)

    return training(loss, adam(1e-4, clips=True), words(2, length), words(2, length))


def bert_lamb(small: bool) -> Any:
    layers, width, heads, vocabulary, length = (1, 16, 2, 32, 8) if small else (6, 512, 8, 30522, 128)

    def loss(p: Scope, tokens: Array, labels: Array) -> Array:
        x = layer_norm(p, p(vocabulary, width)[tokens] + p(length, width))
        for _ in range(layers):
            x = layer_norm(p, x + attention(p, x, heads))
            x = layer_norm(p, x + mlp(p, x))
        return cross_entropy(dense(p, layer_norm(p, nn.gelu(dense(p, x, width))), vocabulary), labels)

    return training(loss, adam(1e-4, trusts=True), words(4, length), words(4, length))


def t5_adafactor(small: bool) -> Any:
    layers, width, heads, vocabulary, length = (1, 16, 2, 32, 8) if small else (3, 256, 4, 8000, 64)

    def gated(p: Scope, x: Array) -> Array:
        return dense(p, nn.gelu(dense(p, x, 4 * width, False)) * dense(p, x, 4 * width, False), width, False)

    def loss(p: Scope, source: Array, target: Array, labels: Array) -> Array:
        table = p(vocabulary, width)
        x, y = table[source], table[target]
        for _ in range(layers):
            x = x + attention(p, rms_norm(p, x), heads)
            x = x + gated(p, rms_norm(p, x))
        x = rms_norm(p, x)
        for _ in range(layers):
            y = y + attention(p, rms_norm(p, y), heads, causal=True)
            y = y + attention(p, rms_norm(p, y), heads, x)
            y = y + gated(p, rms_norm(p, y))
        return cross_entropy(rms_norm(p, y) @ p(width, vocabulary), labels)

    return training(loss, adafactor(), words(8, length), words(8, length), words(8, length))


def unet_adam(small: bool) -> Any:
    widths, size, batch = ((8, 16), 8, 2) if small else ((64, 128, 256), 32, 8)

    def residual(p: Scope, x: Array, time: Array, width: int) -> Array:
        y = conv(p, nn.silu(group_norm(p, x)), width, 3) + dense(p, time, width)[:, None, None]
        y = conv(p, nn.silu(group_norm(p, y)), width, 3)
        return y + (x if x.shape[-1] == width else conv(p, x, width, 1))

    def loss(p: Scope, x: Array, time: Array, noise: Array) -> Array:
        angles = time[:, None] * jnp.exp(-jnp.arange(16) / 4.0)
        time = dense(p, nn.silu(dense(p, jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1), 64)), 64)
        x = conv(p, x, widths[0], 3)
        kept = []
        for width in widths:
            x = residual(p, x, time, width)
            kept.append(x)
            x = conv(p, x, width, 3, 2)
        flat = x.reshape(batch, -1, x.shape[-1])
        x = x + attention(p, layer_norm(p, flat), 4).reshape(x.shape)
        for width, skip in zip(reversed(widths), reversed(kept), strict=True):
            x = conv(p, jax.image.resize(x, (*skip.shape[:3], x.shape[-1]), "nearest"), width, 3)
            x = residual(p, jnp.concatenate([x, skip], -1), time, width)
        return jnp.square(conv(p, nn.silu(group_norm(p, x)), 3, 3) - noise).mean()

    return training(loss, adam(clips=True), floats(batch, size, size, 3), floats(batch), floats(batch, size, size, 3))


def mixer_nesterov(small: bool) -> Any:
    layers, width, size, batch = (1, 16, 16, 2) if small else (6, 256, 64, 16)

    def loss(p: Scope, x: Array, labels: Array) -> Array:
        x = conv(p, x, width, 8, 8, bias=True).reshape(batch, -1, width)
        for _ in range(layers):
            x = x + mlp(p, layer_norm(p, x).swapaxes(1, 2)).swapaxes(1, 2)
            x = x + mlp(p, layer_norm(p, x))
        return cross_entropy(dense(p, layer_norm(p, x).mean(1), 10), labels)

    return training(loss, nesterov(), floats(batch, size, size, 3), words(batch))


def convnext_adamw(small: bool) -> Any:
    depths, widths, size, batch = ((1, 1), (8, 16), 16, 2) if small else ((2, 2, 4, 2), (48, 96, 192, 384), 128, 8)

    def loss(p: Scope, x: Array, labels: Array) -> Array:
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            x = conv(p, layer_norm(p, x) if stage else x, width, 2 if stage else 4, 2 if stage else 4, bias=True)
            for _ in range(depth):
                y = layer_norm(p, conv(p, x, width, 7, groups=width, bias=True))
                x = x + mlp(p, y) * p(width)
        return cross_entropy(dense(p, layer_norm(p, x.mean((1, 2))), 100), labels)

    return training(loss, adam(1e-4), floats(batch, size, size, 3), words(batch))


def lstm_adam(small: bool) -> Any:
    width, vocabulary, length, batch = (8, 16, 5, 2) if small else (256, 5000, 40, 16)

    def lstm(p: Scope, x: Array, state: tuple[Array, Array]) -> tuple[Any, Array]:
        kernel, recurrent, bias = p(width, 4 * width), p(width, 4 * width), p(4 * width)

        def cell(state: tuple[Array, Array], x: Array) -> tuple[Any, Array]:
            h, c = state
            i, f, g, o = jnp.split(x @ kernel + h @ recurrent + bias, 4, -1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        state, y = lax.scan(cell, state, x.swapaxes(0, 1))
        return state, y.swapaxes(0, 1)

    def loss(p: Scope, source: Array, target: Array, labels: Array) -> Array:
        zero = (jnp.zeros((batch, width)), jnp.zeros((batch, width)))
        x = p(vocabulary, width)[source]
        _, x = lstm(p, x, zero)
        state, x = lstm(p, x, zero)
        _, y = lstm(p, p(vocabulary, width)[target], state)
        seen = jnp.einsum("bts,bsd->btd", nn.softmax(jnp.einsum("btd,bsd->bts", y, x)), x)
        return cross_entropy(dense(p, jnp.tanh(dense(p, jnp.concatenate([y, seen], -1), width)), vocabulary), labels)

    return training(loss, adam(clips=True), words(batch, length), words(batch, length), words(batch, length))


def mamba_adamw(small: bool) -> Any:
    layers, width, states, vocabulary, length = (2, 8, 4, 16, 8) if small else (4, 256, 16, 8000, 64)
    batch, inner = 2, 2 * width

    def join(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def walk(held: Array, pair: Any) -> Any:
        held = pair[0] * held + pair[1]
        return held, held

    def loss(p: Scope, tokens: Array, labels: Array) -> Array:
        x = p(vocabulary, width)[tokens]
        for layer in range(layers):
            u, gate = jnp.split(dense(p, rms_norm(p, x), 2 * inner, False), 2, -1)
            padded = jnp.pad(u, ((0, 0), (3, 0), (0, 0)))
            u = nn.silu(sum(padded[:, k : k + length] * p(inner) for k in range(4)))
            step = nn.softplus(dense(p, dense(p, u, 8, False), inner))
            into, out = jnp.split(dense(p, u, 2 * states, False), 2, -1)
            decay = jnp.exp(-step[..., None] * jnp.exp(p(inner, states)))
            drive = step[..., None] * into[:, :, None] * u[..., None]
            if layer % 2:
                held = lax.associative_scan(join, (decay, drive), axis=1)[1]
            else:
                pairs = (decay.swapaxes(0, 1), drive.swapaxes(0, 1))
                held = lax.scan(walk, jnp.zeros((batch, inner, states)), pairs)[1].swapaxes(0, 1)
            y = jnp.einsum("btdn,btn->btd", held, out) + u * p(inner)
            x = x + dense(p, y * nn.silu(gate), width, False)
        return cross_entropy(rms_norm(p, x) @ p(width, vocabulary), labels)

    return training(loss, adam(1e-4), words(batch, length), words(batch, length))


def moe_adamw(small: bool) -> Any:
    layers, width, experts, vocabulary, length = (1, 8, 4, 16, 8) if small else (3, 256, 8, 8000, 128)
    room = 2 * 2 * length // experts

    def loss(p: Scope, tokens: Array, labels: Array) -> Array:
        x = p(vocabulary, width)[tokens]
        for _ in range(layers):
            x = x + attention(p, layer_norm(p, x), 4, causal=True)
            h = layer_norm(p, x).reshape(-1, width)
            gates, chosen = lax.top_k(nn.softmax(dense(p, h, experts, False)), 2)
            hot = nn.one_hot(chosen, experts)
            place = (jnp.cumsum(hot.reshape(-1, experts), 0).reshape(hot.shape) - 1) * hot
            slots = nn.one_hot(place.astype(jnp.int32), room) * (hot * (place < room))[..., None]
            inputs = jnp.einsum("nkec,nd->ecd", slots, h)
            made = jnp.einsum(
                "ecf,efd->ecd",
                nn.gelu(jnp.einsum("ecd,edf->ecf", inputs, p(experts, width, 4 * width))),
                p(experts, 4 * width, width),
            )
            x = x + jnp.einsum("nk,nkec,ecd->nd", gates, slots, made).reshape(x.shape)
        return cross_entropy(dense(p, layer_norm(p, x), vocabulary), labels)

    return training(loss, adam(1e-4), words(2, length), words(2, length))


def vae_adam(small: bool) -> Any:
    widths, size, batch = ((8, 16), 8, 2) if small else ((32, 64, 128), 32, 32)

    def loss(p: Scope, x: Array, noise: Array) -> Array:
        y = x
        for width in widths:
            y = nn.relu(conv(p, y, width, 3, 2, bias=True))
        inner, flat = y.shape[1], y.reshape(batch, -1)
        mean, spread = dense(p, flat, 16), dense(p, flat, 16)
        y = nn.relu(dense(p, mean + jnp.exp(0.5 * spread) * noise, flat.shape[1])).reshape(batch, inner, inner, -1)
        for width in (*reversed(widths[:-1]), 3):
            y = lax.conv_transpose(nn.relu(y), p(3, 3, y.shape[-1], width), (2, 2), "SAME")
        kept = 0.5 * (jnp.exp(spread) + mean**2 - 1 - spread).sum(-1).mean()
        return (nn.softplus(y) - x * y).sum((1, 2, 3)).mean() + kept

    return training(loss, adam(), floats(batch, size, size, 3), floats(batch, 16))


def dcgan_adam(small: bool) -> Any:
    widths, batch = ((8, 4), 2) if small else ((128, 64), 32)
    size = 4 * 2 ** (len(widths) + 1)

    def generated(p: Scope, z: Array) -> Array:
        x = nn.relu(batch_norm(p, dense(p, z, 32 * widths[0], False).reshape(batch, 4, 4, -1)))
        for width in widths:
            x = nn.relu(batch_norm(p, lax.conv_transpose(x, p(4, 4, x.shape[-1], width), (2, 2), "SAME")))
        return jnp.tanh(lax.conv_transpose(x, p(4, 4, x.shape[-1], 3), (2, 2), "SAME"))

    def judged(p: Scope, x: Array) -> Array:
        for place, width in enumerate(reversed(widths)):
            x = conv(p, x, width, 4, 2)
            x = nn.leaky_relu(batch_norm(p, x) if place else x, 0.2)
        return dense(p, x.reshape(batch, -1), 1)

    def loss(p: Scope, z: Array, x: Array) -> Array:
        made = generated(p, z)
        first = p.count
        real = judged(p, x)
        p.count = first  # the same parameters again
        fake = judged(p, made)
        return (nn.softplus(-real) + nn.softplus(fake)).mean()

    return training(loss, adam(), floats(batch, 64), floats(batch, size, size, 3))


def gnn_adam(small: bool) -> Any:
    nodes, edges, width, layers = (8, 16, 8, 2) if small else (1024, 4096, 128, 4)

    def loss(p: Scope, x: Array, e: Array, sender: Array, receiver: Array, y: Array) -> Array:
        h, e = dense(p, x, width), dense(p, e, width)
        for _ in range(layers):
            made = dense(p, nn.relu(dense(p, jnp.concatenate([e, h[sender], h[receiver]], -1), width)), width)
            e = e + layer_norm(p, made)
            into = jax.ops.segment_sum(e, receiver, nodes)
            h = h + layer_norm(p, dense(p, nn.relu(dense(p, jnp.concatenate([h, into], -1), width)), width))
        return jnp.square(dense(p, h, 8) - y).mean()

    return training(loss, adam(), floats(nodes, 16), floats(edges, 4), words(edges), words(edges), floats(nodes, 8))


def swin_adamw(small: bool) -> Any:
    width, size, batch, window = (8, 32, 2, 4) if small else (64, 64, 8, 4)

    def windows(x: Array) -> Array:
        b, h, w, c = x.shape
        parts = x.reshape(b, h // window, window, w // window, window, c)
        return parts.transpose(0, 1, 3, 2, 4, 5).reshape(-1, window * window, c)

    def joined(y: Array, shape: tuple[int, ...]) -> Array:
        b, h, w, c = shape
        parts = y.reshape(b, h // window, w // window, window, window, c)
        return parts.transpose(0, 1, 3, 2, 4, 5).reshape(shape)

    def loss(p: Scope, x: Array, labels: Array) -> Array:
        x = layer_norm(p, conv(p, x, width, 4, 4, bias=True))
        for stage in range(2):
            for shifted in (False, True):
                y = layer_norm(p, x)
                y = jnp.roll(y, (-2, -2), (1, 2)) if shifted else y
                y = joined(attention(p, windows(y), 2 * (stage + 1)), x.shape)
                x = x + (jnp.roll(y, (2, 2), (1, 2)) if shifted else y)
                x = x + mlp(p, layer_norm(p, x))
            if not stage:
                b, h, w, c = x.shape
                x = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 4, 2, 5).reshape(b, h // 2, w // 2, 4 * c)
                x = dense(p, layer_norm(p, x), 2 * c, False)
        return cross_entropy(dense(p, layer_norm(p, x).mean((1, 2)), 100), labels)

    return training(loss, adam(1e-4), floats(batch, size, size, 3), words(batch))


def ppo_adam(small: bool) -> Any:
    size, batch, filters = (20, 4, ((4, 8, 4),)) if small else (84, 256, ((32, 8, 4), (64, 4, 2), (64, 3, 1)))

    def loss(p: Scope, seen: Array, action: Array, before: Array, gain: Array, target: Array) -> Array:
        x = seen / 255.0
        for width, window, stride in filters:
            x = nn.relu(conv(p, x, width, window, stride, bias=True))
        x = nn.relu(dense(p, x.reshape(batch, -1), 64))
        chances = nn.log_softmax(dense(p, x, 6))
        ratio = jnp.exp(jnp.take_along_axis(chances, action[:, None], 1)[:, 0] - before)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = jnp.maximum(-gain * ratio, -gain * jnp.clip(ratio, 0.9, 1.1)).mean()
        value = jnp.square(dense(p, x, 1)[:, 0] - target).mean()
        return policy + 0.25 * value + 0.01 * (jnp.exp(chances) * chances).sum(-1).mean()

    return training(loss, adam(clips=True), floats(batch, size, size, 4), words(batch), *[floats(batch)] * 3)


PROGRAMS = (
    *(resnet50_nesterov, resnet18_adamw, vit_adamw, vit_lamb, gpt_adamw, bert_lamb, t5_adafactor, unet_adam, mixer_nesterov),
    *(convnext_adamw, lstm_adam, mamba_adamw, moe_adamw, vae_adam, dcgan_adam, gnn_adam, swin_adamw, ppo_adam),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_intermixed_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        if not arguments.names or program.__name__ in arguments.names:
            step, shapes = program(arguments.small)
            text = jax.jit(step).lower(*shapes).as_text("hlo")
            (arguments.folder / f"{program.__name__}.hlo").write_text(with_default_layouts(text), encoding="utf-8")


def with_default_layouts(text: str) -> str:
    """Give the entry default layouts, as JAX requests when it compiles. Its text shows other layouts for transposed results."""
    header, _, rest = text.partition("\n")
    return _LAYOUT.sub(lambda found: "{" + ",".join(map(str, range(found[1].count(","), -1, -1))) + "}", header) + "\n" + rest


if __name__ == "__main__":
    main()
