"""Helpers shared by the programs: the declaration of a program, and the usual steps of training."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

# The types of JAX and of the libraries on it are partly unknown, so their modules are Any.
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")
optax: Any = importlib.import_module("optax")
Array = Any
Tree = Any


class Program(NamedTuple):
    """A function, and trees of the shapes and types of its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Tree, ...]


def f32(*dims: int) -> Any:
    """Return the type of an array of f32."""
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def bf16(*dims: int) -> Any:
    """Return the type of an array of bf16."""
    return jax.ShapeDtypeStruct(dims, jnp.bfloat16)


def s32(*dims: int) -> Any:
    """Return the type of an array of s32."""
    return jax.ShapeDtypeStruct(dims, jnp.int32)


def s8(*dims: int) -> Any:
    """Return the type of an array of s8."""
    return jax.ShapeDtypeStruct(dims, jnp.int8)


def flags(*dims: int) -> Any:
    """Return the type of an array of truth values."""
    return jax.ShapeDtypeStruct(dims, jnp.bool_)


def key() -> Any:
    """Return the type of a key of random numbers."""
    return jax.ShapeDtypeStruct((2,), jnp.uint32)


def shapes_of(function: Callable[..., Any], *arguments: Tree) -> Tree:
    """Return the types of what a function returns."""
    return jax.eval_shape(function, *arguments)


def training(loss: Callable[..., Any], optimizer: Any, parameters: Tree, *batch: Tree) -> Program:
    """Return a step of training: (parameters, state, *batch) to new parameters, new state and the loss."""

    def step(parameters: Tree, state: Tree, *batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return Program(step, (parameters, shapes_of(optimizer.init, parameters), *batch))


def flax_training(model: Any, loss: Callable[..., Any], optimizer: Any, inputs: tuple[Tree, ...], *rest: Tree) -> Program:
    """Return a step of training of a model of flax. `loss` maps (the model's result, *rest) to a number."""
    variables = shapes_of(model.init, key(), *inputs)

    def whole(parameters: Tree, *batch: Tree) -> Array:
        return loss(model.apply(parameters, *batch[: len(inputs)]), *batch[len(inputs) :])

    return training(whole, optimizer, variables, *inputs, *rest)


def inference(model: Any, *inputs: Tree, then: Callable[..., Any] = lambda result: result) -> Program:
    """Return the application of a model of flax."""
    variables = shapes_of(model.init, key(), *inputs)
    return Program(lambda variables, *inputs: then(model.apply(variables, *inputs)), (variables, *inputs))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean cross entropy of labels that are integers."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
