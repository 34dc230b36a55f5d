"""Images: convolutions, pooling, normalisation, attention."""

from __future__ import annotations

import importlib
from typing import Any

from fresh_programs.program import (
    Array,
    Program,
    Tree,
    cross_entropy,
    f32,
    flax_training,
    inference,
    jax,
    jnp,
    key,
    optax,
    s8,
    s32,
    shapes_of,
)

nn: Any = importlib.import_module("flax.linen")


class LeNet(nn.Module):
    """LeNet with average pooling and tanh."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.avg_pool(nn.tanh(nn.Conv(6, (5, 5))(x)), (2, 2), (2, 2))
        x = nn.avg_pool(nn.tanh(nn.Conv(12, (5, 5), padding="VALID")(x)), (2, 2), (2, 2))
        x = nn.tanh(nn.Dense(32)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


class MaxPoolNet(nn.Module):
    """Two convolutions with max pooling, dropout left out."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.max_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.max_pool(nn.relu(nn.Conv(16, (3, 3))(x)), (3, 3), (2, 2), "SAME")
        return nn.Dense(5)(x.mean((1, 2)))


class DenseBlock(nn.Module):
    """A block of a DenseNet in training: every layer normalises and reads all before it."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(3):
            y = nn.BatchNorm(use_running_average=False)(x)
            y = nn.Conv(4, (3, 3), use_bias=False)(nn.relu(y))
            x = jnp.concatenate([x, y], -1)
        x = nn.Conv(6, (1, 1))(nn.relu(nn.GroupNorm(3)(x)))
        return nn.Dense(7)(nn.avg_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1))


class ResidualNet(nn.Module):
    """Residual blocks with batch normalisation."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for features, stride in ((8, 1), (12, 2)):
            y = nn.Conv(features, (3, 3), (stride, stride), use_bias=False)(x)
            y = nn.relu(nn.BatchNorm(use_running_average=False)(y))
            y = nn.BatchNorm(use_running_average=False)(nn.Conv(features, (3, 3), use_bias=False)(y))
            x = nn.relu(y + nn.Conv(features, (1, 1), (stride, stride))(x))
        return nn.Dense(6)(x.mean((1, 2)))


class UNet(nn.Module):
    """Down and up once, with a skip."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        a = nn.silu(nn.GroupNorm(2)(nn.Conv(8, (3, 3))(x)))
        b = nn.silu(nn.Conv(12, (3, 3), (2, 2))(a))
        b = nn.silu(nn.GroupNorm(3)(nn.Conv(12, (3, 3))(b)))
        c = nn.ConvTranspose(8, (2, 2), (2, 2))(b)
        return nn.Conv(1, (3, 3))(nn.silu(nn.Conv(8, (3, 3))(jnp.concatenate([a, c], -1))))


class VisionTransformer(nn.Module):
    """Patches, positions, one block, the class token."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.Conv(16, (4, 4), (4, 4))(x).reshape(x.shape[0], -1, 16)
        token = self.param("token", nn.initializers.zeros, (1, 1, 16))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], 1)
        x = x + self.param("places", nn.initializers.normal(0.02), (1, x.shape[1], 16))
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.Dense(8)(nn.LayerNorm()(x[:, 0]))


class SqueezeNet(nn.Module):
    """Depthwise convolutions and gates of channels."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.hard_swish(nn.Conv(8, (3, 3), (2, 2))(x))
        y = nn.relu6(nn.Conv(24, (1, 1))(x))
        y = nn.relu6(nn.Conv(24, (3, 3), feature_group_count=24)(y))
        gate = nn.hard_sigmoid(nn.Dense(24)(nn.relu(nn.Dense(6)(y.mean((1, 2))))))
        x = x + nn.Conv(8, (1, 1))(y * gate[:, None, None])
        return nn.softmax(nn.Dense(10)(x.max((1, 2))))


class Encoder(nn.Module):
    """A small network that maps images to directions."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.relu(nn.Conv(8, (3, 3), (2, 2))(x)).reshape(x.shape[0], -1)
        x = nn.Dense(12)(nn.relu(nn.Dense(16)(x)))
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def densenet() -> Program:
    """Training with batch statistics; only the parameters are updated."""
    model, optimizer, x = DenseBlock(), optax.sgd(0.1, 0.9, nesterov=True), f32(4, 8, 8, 3)
    return _with_statistics(model, optimizer, x, s32(4))


def residual_lion() -> Program:
    """Training of residual blocks by Lion."""
    return _with_statistics(ResidualNet(), optax.lion(1e-3), f32(4, 8, 8, 3), s32(4))


def _with_statistics(model: Any, optimizer: Any, x: Any, labels: Any) -> Program:
    variables = shapes_of(model.init, key(), x)

    def step(parameters: Tree, statistics: Tree, state: Tree, x: Array, labels: Array) -> Any:
        def loss(parameters: Tree) -> Any:
            logits, new = model.apply({"params": parameters, "batch_stats": statistics}, x, mutable=["batch_stats"])
            return cross_entropy(logits, labels), new["batch_stats"]

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), new, state, value

    parameters = variables["params"]
    return Program(step, (parameters, variables["batch_stats"], shapes_of(optimizer.init, parameters), x, labels))


def contrastive() -> Program:
    """Two views of a batch, the loss of SimCLR in both directions."""

    def loss(result: Array) -> Array:
        one, two = jnp.split(result, 2)
        logits = one @ two.T / 0.2
        labels = jnp.arange(len(one))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    return flax_training(Encoder(), loss, optax.adamw(1e-3), (f32(12, 8, 8, 1),))


def distillation() -> Program:
    """A student learns the softened outputs of a teacher, and labels with smoothing."""

    def loss(logits: Array, teacher: Array, labels: Array) -> Array:
        soft = optax.kl_divergence(nn.log_softmax(logits / 3.0), nn.softmax(teacher / 3.0)).mean()
        smooth = optax.smooth_labels(nn.one_hot(labels, 5), 0.1)
        return 9.0 * 0.7 * soft + 0.3 * optax.softmax_cross_entropy(logits, smooth).mean()

    return flax_training(MaxPoolNet(), loss, optax.rmsprop(1e-3), (f32(4, 8, 8, 3),), f32(4, 5), s32(4))


def quantised(x: Array, w1: Array, s1: Array, w2: Array, s2: Array) -> Any:
    """Two layers of 8-bit weights with 8-bit activations that are scaled by their largest value."""

    def layer(x: Array, w: Array, scale: Array) -> Array:
        step = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-6) / 127.0
        q = jnp.clip(jnp.round(x / step), -127, 127).astype(jnp.int8)
        return jnp.dot(q, w, preferred_element_type=jnp.int32).astype(jnp.float32) * step * scale

    hidden = nn.relu(layer(x, w1, s1))
    logits = layer(hidden, w2, s2)
    return logits, logits.argmax(-1)


def programs() -> dict[str, Program]:
    """Return the programs by name."""
    images, labels = f32(4, 12, 12, 1), s32(4)
    squared = lambda result, target: ((result - target) ** 2).mean()  # noqa: E731
    return {
        "lenet_labels": flax_training(LeNet(), cross_entropy, optax.sgd(0.05, 0.9), (images,), labels),
        "max_pool_adam": flax_training(MaxPoolNet(), cross_entropy, optax.adam(1e-3), (f32(4, 12, 12, 3),), labels),
        "densenet": densenet(),
        "residual_lion": residual_lion(),
        "unet": flax_training(UNet(), squared, optax.adamw(1e-3), (f32(2, 8, 8, 1),), f32(2, 8, 8, 1)),
        "vision_transformer": flax_training(VisionTransformer(), cross_entropy, optax.adamw(1e-3), (f32(3, 12, 12, 3),), s32(3)),
        "squeeze_inference": inference(SqueezeNet(), f32(3, 12, 12, 3)),
        "contrastive": contrastive(),
        "distillation": distillation(),
        "quantised_inference": Program(quantised, (f32(8, 32), s8(32, 24), f32(24), s8(24, 10), f32(10))),
    }
