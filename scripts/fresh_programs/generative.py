"""Graphs, generative models and reinforcement learning."""

from __future__ import annotations

import importlib
from typing import Any

from fresh_programs.program import (
    Array,
    Program,
    Tree,
    f32,
    flags,
    flax_training,
    jax,
    jnp,
    key,
    lax,
    optax,
    s32,
    shapes_of,
    training,
)

nn: Any = importlib.import_module("flax.linen")
haiku: Any = importlib.import_module("haiku")
distrax: Any = importlib.import_module("distrax")
equinox: Any = importlib.import_module("equinox")
_NODES, _EDGES = 9, 20


def _haiku(function: Any) -> Any:
    return haiku.transform(function)


def graph_convolution() -> Program:
    """Two rounds of messages along edges, with sums and degrees by segment; nodes are classified."""

    def forward(nodes: Array, senders: Array, receivers: Array) -> Array:
        ones = jnp.ones(senders.shape[0])
        degrees = jnp.maximum(jax.ops.segment_sum(ones, receivers, _NODES), 1.0)
        for width in (8, 4):
            nodes = haiku.Linear(width)(nodes)
            sums = jax.ops.segment_sum(nodes[senders] / jnp.sqrt(degrees[senders])[:, None], receivers, _NODES)
            nodes = jax.nn.relu(sums / jnp.sqrt(degrees)[:, None] + nodes)
        return haiku.Linear(3)(nodes)

    model = _haiku(forward)
    batch = (f32(_NODES, 5), s32(_EDGES), s32(_EDGES))
    parameters = shapes_of(model.init, key(), *batch)

    def loss(parameters: Tree, nodes: Array, senders: Array, receivers: Array, labels: Array, known: Array) -> Array:
        logits = model.apply(parameters, None, nodes, senders, receivers)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.where(known, losses, 0.0).sum() / jnp.maximum(known.sum(), 1)

    return training(loss, optax.adam(1e-2), parameters, *batch, s32(_NODES), flags(_NODES))


def graph_attention() -> Program:
    """A softmax over the edges of each node, and the largest message of each; one number per graph."""

    def forward(nodes: Array, edges: Array, senders: Array, receivers: Array) -> Array:
        x = haiku.Linear(6)(nodes)
        scores = haiku.Linear(1)(jnp.concatenate([x[senders], x[receivers], edges], -1))[:, 0]
        scores = jax.nn.leaky_relu(scores)
        scores = jnp.exp(scores - jax.ops.segment_max(scores, receivers, _NODES)[receivers])
        weights = scores / (jax.ops.segment_sum(scores, receivers, _NODES)[receivers] + 1e-9)
        x = jax.nn.elu(jax.ops.segment_sum(weights[:, None] * x[senders], receivers, _NODES))
        return haiku.Linear(1)(x.mean(0))[0]

    model = _haiku(forward)
    batch = (f32(_NODES, 5), f32(_EDGES, 2), s32(_EDGES), s32(_EDGES))
    parameters = shapes_of(model.init, key(), *batch)

    def loss(parameters: Tree, *batch: Array) -> Array:
        return optax.huber_loss(model.apply(parameters, None, *batch[:-1]), batch[-1])

    return training(loss, optax.adamw(1e-3), parameters, *batch, f32())


class Autoencoder(nn.Module):
    """A variational autoencoder: means and deviations, a sample, logits of pixels."""

    @nn.compact
    def __call__(self, x: Array, key: Array) -> Any:
        hidden = nn.relu(nn.Dense(16)(x))
        posterior = distrax.MultivariateNormalDiag(nn.Dense(4)(hidden), nn.softplus(nn.Dense(4)(hidden)) + 1e-3)
        sample = posterior.sample(seed=key)
        logits = nn.Dense(x.shape[-1])(nn.relu(nn.Dense(16)(sample)))
        prior = distrax.MultivariateNormalDiag(jnp.zeros(4), jnp.ones(4))
        return logits, posterior.kl_divergence(prior)


def autoencoder() -> Program:
    """A step on the evidence lower bound."""
    model = Autoencoder()

    def loss(parameters: Tree, x: Array, key: Array) -> Array:
        logits, divergence = model.apply(parameters, x, key)
        return (optax.sigmoid_binary_cross_entropy(logits, x).sum(-1) + divergence).mean()

    return training(loss, optax.adam(1e-3), shapes_of(model.init, key(), f32(5, 20), key()), f32(5, 20), key())


def flow() -> Program:
    """Coupling layers that alternate, and the likelihood of a batch."""
    parameters = [{"w": f32(2, 8), "b": f32(8), "v": f32(8, 4)} for _ in range(3)]

    def loss(parameters: Tree, x: Array) -> Array:
        total = jnp.zeros(x.shape[0])
        for layer in parameters:
            fixed, moved = jnp.split(x, 2, -1)
            shift, scale = jnp.split(jnp.tanh(fixed @ layer["w"] + layer["b"]) @ layer["v"], 2, -1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([moved * jnp.exp(scale) + shift, fixed], -1)
            total = total + scale.sum(-1)
        return -(distrax.Normal(0.0, 1.0).log_prob(x).sum(-1) + total).mean()

    return training(loss, optax.adam(1e-3), parameters, f32(10, 4))


class Denoiser(nn.Module):
    """A network that takes the time as sines and cosines."""

    @nn.compact
    def __call__(self, x: Array, times: Array) -> Array:
        angles = times[:, None] * jnp.exp(-jnp.arange(4) * 1.5)
        hidden = nn.Dense(16)(x) + nn.Dense(16)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        return nn.Dense(x.shape[-1])(nn.swish(nn.LayerNorm()(nn.Dense(16)(nn.swish(hidden)))))


def diffusion() -> Program:
    """Noise is added at random times and predicted; the mean of the parameters is kept."""
    model, optimizer = Denoiser(), optax.adam(1e-3)
    parameters = shapes_of(model.init, key(), f32(6, 8), f32(6))

    def step(parameters: Tree, average: Tree, state: Tree, x: Array, key: Array) -> Any:
        one, two = jax.random.split(key)
        times = jax.random.randint(one, (x.shape[0],), 0, 100)
        kept = jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.02, 100))[times][:, None]
        noise = jax.random.normal(two, x.shape)

        def loss(parameters: Tree) -> Array:
            noisy = jnp.sqrt(kept) * x + jnp.sqrt(1 - kept) * noise
            return ((model.apply(parameters, noisy, times.astype(jnp.float32)) - noise) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state)
        parameters = optax.apply_updates(parameters, updates)
        return parameters, optax.incremental_update(parameters, average, 0.01), state, value

    return Program(step, (parameters, parameters, shapes_of(optimizer.init, parameters), f32(6, 8), key()))


def differential_equation() -> Program:
    """A network is the right-hand side of an equation; gradients through eight steps of Runge and Kutta."""
    parameters = {"w": f32(3, 10), "b": f32(10), "v": f32(10, 3)}

    def loss(parameters: Tree, start: Array, target: Array) -> Array:
        def field(y: Array) -> Array:
            return jnp.tanh(y @ parameters["w"] + parameters["b"]) @ parameters["v"]

        def turn(y: Array, step: Array) -> Any:
            a = field(y)
            b = field(y + 0.5 * step * a)
            c = field(y + 0.5 * step * b)
            d = field(y + step * c)
            y = y + step / 6.0 * (a + 2.0 * b + 2.0 * c + d)
            return y, y

        end, path = lax.scan(turn, start, jnp.full(8, 0.125))
        return ((end - target) ** 2).mean() + 0.01 * (path**2).mean()

    return training(loss, optax.adam(1e-2), parameters, f32(4, 3), f32(4, 3))


class Critic(nn.Module):
    """A spectral network would do; this one normalises its weights by columns."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.leaky_relu(nn.WeightNorm(nn.Dense(16))(x), 0.2)
        return nn.Dense(1)(x)[:, 0]


def adversarial() -> Program:
    """The hinge loss of a critic, with a penalty on its gradient at points between true and made samples."""
    model = Critic()
    parameters = shapes_of(model.init, key(), f32(5, 6))

    def loss(parameters: Tree, true: Array, made: Array, share: Array) -> Array:
        between = share[:, None] * true + (1 - share[:, None]) * made
        slopes = jax.vmap(jax.grad(lambda x: model.apply(parameters, x[None])[0]))(between)
        penalty = ((jnp.sqrt((slopes**2).sum(-1) + 1e-12) - 1.0) ** 2).mean()
        good, bad = model.apply(parameters, true), model.apply(parameters, made)
        return jax.nn.relu(1 - good).mean() + jax.nn.relu(1 + bad).mean() + 10.0 * penalty

    return training(loss, optax.adam(2e-4, 0.5), parameters, f32(5, 6), f32(5, 6), f32(5))


class ActorCritic(nn.Module):
    """Logits of actions and a value."""

    @nn.compact
    def __call__(self, x: Array) -> Any:
        x = nn.tanh(nn.Dense(16)(x))
        return nn.Dense(3)(x), nn.Dense(1)(x)[:, 0]


def proximal_policy() -> Program:
    """Advantages by a backward scan, clipped ratios and values, and an entropy bonus."""

    def loss(result: Any, actions: Array, old: Array, values: Array, rewards: Array, ends: Array) -> Array:
        logits, now = result
        following = jnp.concatenate([values[1:], values[-1:]])
        alive = 1.0 - ends.astype(jnp.float32)
        deltas = rewards + 0.99 * alive * following - values

        def turn(total: Array, item: Any) -> Any:
            delta, alive = item
            total = delta + 0.99 * 0.95 * alive * total
            return total, total

        _, advantages = lax.scan(turn, 0.0, (deltas, alive), reverse=True)
        goals = lax.stop_gradient(advantages + values)
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        logs = jax.nn.log_softmax(logits)
        ratios = jnp.exp(jnp.take_along_axis(logs, actions[:, None], 1)[:, 0] - old)
        gain = jnp.minimum(ratios * scaled, jnp.clip(ratios, 0.8, 1.2) * scaled).mean()
        clipped = values + jnp.clip(now - values, -0.2, 0.2)
        error = jnp.maximum((now - goals) ** 2, (clipped - goals) ** 2).mean()
        entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
        return -gain + 0.5 * error - 0.01 * entropy

    batch = (s32(12), f32(12), f32(12), f32(12), flags(12))
    return flax_training(ActorCritic(), loss, optax.chain(optax.clip(0.5), optax.adam(3e-4)), (f32(12, 5),), *batch)


def double_q() -> Program:
    """Double Q-learning with a target network that follows slowly."""
    model, optimizer = equinox.nn.MLP, optax.adam(1e-3)
    made = shapes_of(lambda key: equinox.filter(model(4, 3, 12, 2, key=key), equinox.is_array), key())
    static = equinox.filter_eval_shape(lambda: model(4, 3, 12, 2, key=jax.random.PRNGKey(0)))
    rest = equinox.partition(static, equinox.is_array_like)[1]

    def values(parameters: Tree, x: Array) -> Array:
        return jax.vmap(equinox.combine(parameters, rest))(x)

    def step(
        parameters: Tree, target: Tree, state: Tree, x: Array, action: Array, reward: Array, after: Array, ends: Array
    ) -> Any:
        def loss(parameters: Tree) -> Array:
            best = values(parameters, after).argmax(-1)
            goal = reward + 0.99 * jnp.where(ends, 0.0, jnp.take_along_axis(values(target, after), best[:, None], 1)[:, 0])
            now = jnp.take_along_axis(values(parameters, x), action[:, None], 1)[:, 0]
            return optax.huber_loss(now, lax.stop_gradient(goal)).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state)
        parameters = optax.apply_updates(parameters, updates)
        return parameters, optax.incremental_update(parameters, target, 0.05), state, value

    batch = (f32(8, 4), s32(8), f32(8), f32(8, 4), flags(8))
    return Program(step, (made, made, shapes_of(optimizer.init, made), *batch))


def programs() -> dict[str, Program]:
    """Return the programs by name."""
    return {
        "graph_convolution": graph_convolution(),
        "graph_attention": graph_attention(),
        "autoencoder": autoencoder(),
        "flow": flow(),
        "diffusion": diffusion(),
        "differential_equation": differential_equation(),
        "adversarial": adversarial(),
        "proximal_policy": proximal_policy(),
        "double_q": double_q(),
    }
