"""Write programs of several sizes as HLO text, with many instructions on small arrays: input for `compile_scaling.py --files`.

    python benchmarks/growing_programs.py FOLDER [NAME:SIZE ...]

NAME is one of the families below: an LSTM unrolled over SIZE steps, forwards and with its gradient; a training step of a
GPT of SIZE layers; a ResNet with SIZE blocks per stage; a step of Adam with SIZE parameters; SIZE nested loops; a stack of SIZE
layers of norms and products. Without names it writes every family in the sizes of docs/performance.md. Needs jax.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, nn
from training_programs import (
    Array,
    Scope,
    adam,
    block,
    cross_entropy,
    floats,
    layer_norm,
    mlp,
    resnet,
    training,
    with_default_layouts,
    words,
)

# pyright: basic
# jax's functions have no precise types.

_WIDTH = 16
_BATCH = 2
_SIZES = {
    "lstm": (50, 100, 200, 400),
    "lstm_grad": (25, 50, 100, 200),
    "gpt": (6, 12, 24, 48),
    "resnet": (1, 3, 6),
    "adam": (125, 250, 500, 1000),
    "loops": (2, 3, 4, 5),
    "stack": (250, 500, 1000),
}


def _lstm(params: dict[str, Array], xs: Array) -> Array:
    h = c = jnp.zeros((xs.shape[1], _WIDTH))
    outputs = []
    for x in xs:
        i, f, g, o = jnp.split(x @ params["w"] + h @ params["u"] + params["b"], 4, -1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        outputs.append(h)
    return jnp.stack(outputs)


def lstm(steps: int) -> Any:
    params = {"w": floats(_WIDTH, 4 * _WIDTH), "u": floats(_WIDTH, 4 * _WIDTH), "b": floats(4 * _WIDTH)}
    return _lstm, (params, floats(steps, _BATCH, _WIDTH))


def lstm_grad(steps: int) -> Any:
    _, shapes = lstm(steps)
    return jax.grad(lambda params, xs: jnp.square(_lstm(params, xs)).mean()), shapes


def gpt(layers: int) -> Any:
    def loss(p: Scope, tokens: Array, labels: Array) -> Array:
        table = p(32, _WIDTH)
        x = table[tokens] + p(8, _WIDTH)
        for _ in range(layers):
            x = block(p, x, 2, causal=True)
        return cross_entropy(layer_norm(p, x) @ table.T, labels)

    return training(loss, adam(1e-4, clips=True), words(_BATCH, 8), words(_BATCH, 8))


def resnet_fwd(blocks: int) -> Any:
    loss = resnet((blocks,) * 4, True, 8)
    _, (params, _, *batch) = training(loss, adam(), floats(_BATCH, 32, 32, 3), words(_BATCH))
    return lambda params, *batch: loss(Scope(params), *batch), (params, *batch)


def adam_step(count: int) -> Any:
    start, update = adam(1e-4)
    params = {f"p{number}": floats(_WIDTH, 1 + number % 7) for number in range(count)}
    return update, (params, jax.eval_shape(start, params), params)


def loops(depth: int) -> Any:
    def nested(x: Array, level: int) -> Array:
        if not level:
            return jnp.tanh(x @ x)
        return lax.fori_loop(0, 3, lambda i, value: nested(nn.softmax(value) + i * x, level - 1), jnp.cos(x))

    return lambda x: nested(x, depth), (floats(_WIDTH, _WIDTH),)


def stack(layers: int) -> Any:
    def forward(p: Scope, x: Array) -> Array:
        for _ in range(layers):
            x = x + mlp(p, layer_norm(p, x), 1)
        return x

    scope = Scope()
    jax.eval_shape(lambda: forward(scope, jnp.zeros((_BATCH, _WIDTH))))
    params = {name: floats(*value.shape) for name, value in scope.values.items()}
    return lambda params, x: forward(Scope(params), x), (params, floats(_BATCH, _WIDTH))


_FAMILIES: dict[str, Callable[[int], Any]] = {
    "lstm": lstm,
    "lstm_grad": lstm_grad,
    "gpt": gpt,
    "resnet": resnet_fwd,
    "adam": adam_step,
    "loops": loops,
    "stack": stack,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", nargs="*", metavar="NAME:SIZE")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for program in arguments.programs or [f"{name}:{size}" for name, sizes in _SIZES.items() for size in sizes]:
        name, _, size = program.partition(":")
        function, shapes = _FAMILIES[name](int(size))
        text = with_default_layouts(jax.jit(function).lower(*shapes).as_text("hlo"))
        (arguments.folder / f"{name}_{int(size):04}.hlo").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
