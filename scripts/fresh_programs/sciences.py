"""Simulations, statistics, sorts and integers, and networks for other data than images and text."""

from __future__ import annotations

import importlib
from typing import Any

from fresh_programs.program import (
    Array,
    Program,
    Tree,
    bf16,
    f32,
    flags,
    flax_training,
    jax,
    jnp,
    key,
    lax,
    optax,
    s8,
    s32,
    shapes_of,
    training,
)

nn: Any = importlib.import_module("flax.linen")
haiku: Any = importlib.import_module("haiku")
equinox: Any = importlib.import_module("equinox")
jraph: Any = importlib.import_module("jraph")


def attractor(start: Array, end: Array) -> Any:
    """Lorenz's equations with adaptive steps of an embedded Runge-Kutta pair, until a time."""

    def slope(y: Array) -> Array:
        return jnp.stack([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])

    def turn(state: Any) -> Any:
        y, time, step, taken = state
        step = jnp.minimum(step, end - time)
        first = slope(y)
        second = slope(y + 0.5 * step * first)
        third = slope(y + 0.75 * step * second)
        new = y + step * (2.0 * first + 3.0 * second + 4.0 * third) / 9.0
        other = y + step * (7.0 * first / 24 + second / 4 + third / 3 + slope(new) / 8)
        error = jnp.sqrt(jnp.mean(((new - other) / (1e-2 + 1e-2 * jnp.abs(new))) ** 2))
        is_good = error <= 1.0
        factor = jnp.clip(0.9 * jnp.maximum(error, 1e-6) ** (-1 / 3), 0.3, 3.0)
        return jnp.where(is_good, new, y), jnp.where(is_good, time + step, time), step * factor, taken + 1

    def goes_on(state: Any) -> Array:
        return (state[1] < end) & (state[3] < 40)

    return lax.while_loop(goes_on, turn, (start + 1.0, jnp.float32(0), jnp.float32(0.05), jnp.int32(0)))


def wave(velocity: Array, source: Array, measured: Array) -> Any:
    """The gradient of a wave's misfit at some receivers with respect to the velocity of a plane, by scan and checkpoint."""

    def misfit(velocity: Array) -> Array:
        @jax.checkpoint
        def turn(fields: Any, now: Array) -> Any:
            before, here = fields
            around = sum(jnp.roll(here, shift, axis) for axis in (0, 1) for shift in (1, -1)) - 4.0 * here
            after = 2.0 * here - before + 0.1 * velocity**2 * around
            after = after.at[3, 4].add(now) * 0.98
            return (here, after), after[2, ::3]

        rest = jnp.zeros_like(velocity)
        return ((lax.scan(turn, (rest, rest), source)[1] - measured) ** 2).sum()

    return jax.value_and_grad(misfit)(velocity)


def order_statistics(x: Array, groups: Array, query: Array) -> Any:
    """Ranks, runs of equal groups, a median, quantiles, a cumulative share, and the places of queries in a sorted row."""
    order = jnp.argsort(x, axis=-1)
    ranks = jnp.argsort(order, axis=-1)
    by_group = jnp.argsort(groups, stable=True)
    grouped = groups[by_group]
    starts = jnp.concatenate([jnp.ones(1, bool), grouped[1:] != grouped[:-1]])
    runs = jnp.cumsum(starts) - 1
    totals = jax.ops.segment_sum(x[0, by_group], runs, 6)
    sorted_x = jnp.take_along_axis(x, order, -1)
    share = jnp.cumsum(jnp.exp(sorted_x), -1) / jnp.exp(sorted_x).sum(-1, keepdims=True)
    best, places = lax.top_k(x, 3)
    return (
        ranks,
        totals,
        jnp.median(x, -1),
        jnp.quantile(x, jnp.array([0.1, 0.7]), axis=-1),
        share,
        best,
        places,
        jnp.searchsorted(sorted_x[0], query),
    )


def particles(states: Array, weights: Array, seen: Array, random: Array) -> Any:
    """A step of a particle filter: normal moves, likelihoods, systematic resampling, and an estimate."""
    move, offset = jax.random.split(random)
    states = 0.9 * states + 0.3 * jax.random.normal(move, states.shape)
    scores = weights - 0.5 * ((seen - jnp.sin(states).sum(-1)) ** 2)
    weights = jax.nn.softmax(scores)
    points = (jnp.arange(len(weights)) + jax.random.uniform(offset)) / len(weights)
    chosen = jnp.clip(jnp.searchsorted(jnp.cumsum(weights), points), 0, len(weights) - 1)
    estimate = weights @ states
    return states[chosen], jnp.full_like(weights, -jnp.log(len(weights))), estimate, 1.0 / (weights**2).sum()


def sparse_code(atoms: Array, x: Array) -> Any:
    """A step of dictionary learning: thirty shrinking steps, and atoms of unit length along the gradient."""
    atoms = atoms / jnp.maximum(jnp.linalg.norm(atoms, axis=0), 1e-6)

    def turn(_: int, codes: Array) -> Array:
        moved = codes - 0.1 * (codes @ atoms.T - x) @ atoms
        return jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - 0.02, 0.0)

    codes = lax.fori_loop(0, 30, turn, jnp.zeros((x.shape[0], atoms.shape[1])))
    gradient = jax.grad(lambda atoms: ((codes @ atoms.T - x) ** 2).mean())(atoms)
    return atoms - gradient, codes, (codes != 0).sum()


def hashes(words: Array, lengths: Array) -> Any:
    """Hashes of rows of integers, their bits, a Bloom filter, and a checksum."""

    def mix(h: Array, word: Array) -> Any:
        k = word * jnp.uint32(0xCC9E2D51)
        k = ((k << 15) | (k >> 17)) * jnp.uint32(0x1B873593)
        h = h ^ k
        return ((h << 13) | (h >> 19)) * jnp.uint32(5) + jnp.uint32(0xE6546B64), h

    rows = words.astype(jnp.uint32)
    last, between = lax.scan(mix, jnp.zeros(rows.shape[0], jnp.uint32), rows.T)
    last = last ^ lengths.astype(jnp.uint32)
    last = (last ^ (last >> 16)) * jnp.uint32(0x85EBCA6B)
    last = last ^ (last >> 13)
    table = jnp.zeros(32, jnp.bool_).at[(last % 32).astype(jnp.int32)].set(True)
    return last, lax.population_count(last), lax.clz(last), table, lax.reduce(between, jnp.uint32(0), lax.bitwise_xor, (0,))


def edge_network() -> Program:
    """A network on a graph that updates edges, nodes and the whole, in jraph; edges are to be predicted."""
    nodes, edges = 8, 18

    def forward(x: Array, e: Array, senders: Array, receivers: Array) -> Array:
        graph = jraph.GraphsTuple(
            nodes=haiku.Linear(6)(x),
            edges=haiku.Linear(5)(e),
            senders=senders,
            receivers=receivers,
            globals=jnp.zeros((1, 3)),
            n_node=jnp.array([nodes]),
            n_edge=jnp.array([edges]),
        )

        def update(width: int) -> Any:
            def made(*parts: Array) -> Array:
                joined = jnp.concatenate(parts, -1)
                return haiku.LayerNorm(-1, True, True)(jax.nn.silu(haiku.Linear(width)(joined)))

            return made

        for _ in range(2):
            graph = jraph.GraphNetwork(
                lambda e, s, r, g: update(5)(e, s, r, g),
                lambda x, s, r, g: update(6)(x, s, r, g),
                lambda x, e, g: update(3)(x, e, g),
            )(graph)
        return haiku.Linear(1)(graph.edges)[:, 0]

    model = haiku.transform(forward)
    batch = (f32(nodes, 4), f32(edges, 2), s32(edges), s32(edges))

    def loss(parameters: Tree, x: Array, e: Array, senders: Array, receivers: Array, target: Array) -> Array:
        return optax.huber_loss(model.apply(parameters, None, x, e, senders, receivers), target).mean()

    return training(loss, optax.adamw(1e-2), shapes_of(model.init, key(), *batch), *batch, f32(edges))


def recommender() -> Program:
    """Tables of several features, their pairwise products, and clicks as labels."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, dense: Array, features: Array) -> Array:
            rows = [nn.Embed(size, 5)(features[:, n]) for n, size in enumerate((11, 7, 30))]
            stacked = jnp.stack([nn.relu(nn.Dense(5)(dense)), *rows], 1)
            products = jnp.einsum("bik,bjk->bij", stacked, stacked)
            upper = products[:, *jnp.triu_indices(4, 1)]
            return nn.Dense(1)(nn.relu(nn.Dense(9)(jnp.concatenate([upper, stacked[:, 0]], -1))))[:, 0]

    def loss(logits: Array, clicks: Array) -> Array:
        return optax.sigmoid_binary_cross_entropy(logits, clicks.astype(jnp.float32)).mean()

    return flax_training(Model(), loss, optax.adagrad(0.05), (f32(10, 6), s32(10, 3)), flags(10))


def operators() -> Program:
    """A step of a Fourier neural operator in equinox: complex weights on the low frequencies of a plane."""

    def forward(p: Tree, field: Array) -> Array:
        x = field[..., None] @ p["lift"]
        for n in range(2):
            modes = jnp.fft.rfft2(x, axes=(1, 2))
            low = jnp.einsum("bxyi,xyio->bxyo", modes[:, :3, :3], lax.complex(p[f"re{n}"], p[f"im{n}"]))
            wide = jnp.zeros_like(modes).at[:, :3, :3].set(low)
            x = jax.nn.gelu(jnp.fft.irfft2(wide, s=x.shape[1:3], axes=(1, 2)) + x @ p[f"w{n}"])
        return (x @ p["down"])[..., 0]

    def loss(p: Tree, field: Array, target: Array) -> Array:
        made = forward(p, field)
        return (jnp.linalg.norm((made - target).reshape(2, -1), axis=1) / jnp.linalg.norm(target.reshape(2, -1), axis=1)).mean()

    weights = {f"{part}{n}": f32(3, 3, 4, 4) for part in ("re", "im") for n in range(2)}
    parameters = {"lift": f32(1, 4), "down": f32(4, 1), "w0": f32(4, 4), "w1": f32(4, 4), **weights}
    return training(loss, optax.adam(1e-3), parameters, f32(2, 8, 8), f32(2, 8, 8))


def mixer() -> Program:
    """A mixer of patches and channels in equinox, trained with LAMB and warm restarts."""

    class Block(equinox.Module):
        tokens: Any
        channels: Any
        first: Any
        second: Any

        def __init__(self, random: Array) -> None:
            keys = jax.random.split(random, 2)
            self.tokens = equinox.nn.MLP(9, 9, 12, 1, jax.nn.gelu, key=keys[0])
            self.channels = equinox.nn.MLP(8, 8, 10, 1, jax.nn.gelu, key=keys[1])
            self.first, self.second = equinox.nn.LayerNorm(8), equinox.nn.LayerNorm(8)

        def __call__(self, x: Array) -> Array:
            x = x + jax.vmap(self.tokens, 1, 1)(jax.vmap(self.first)(x))
            return x + jax.vmap(self.channels)(jax.vmap(self.second)(x))

    class Model(equinox.Module):
        patches: Any
        blocks: list[Any]
        head: Any

        def __init__(self, random: Array) -> None:
            keys = jax.random.split(random, 4)
            self.patches = equinox.nn.Conv2d(3, 8, 4, 4, key=keys[0])
            self.blocks = [Block(k) for k in keys[1:3]]
            self.head = equinox.nn.Linear(8, 5, key=keys[3])

        def __call__(self, image: Array) -> Array:
            x = self.patches(image).reshape(8, 9).T
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(0))

    shapes, fixed = equinox.partition(equinox.filter_eval_shape(Model, key()), lambda leaf: hasattr(leaf, "dtype"))

    def loss(parameters: Tree, images: Array, labels: Array) -> Array:
        logits = jax.vmap(equinox.combine(parameters, fixed))(images)
        smooth = optax.smooth_labels(jax.nn.one_hot(labels, 5), 0.1)
        return optax.softmax_cross_entropy(logits, smooth).mean()

    optimizer = optax.lamb(optax.cosine_decay_schedule(1e-2, 50))
    return training(loss, optimizer, shapes, f32(4, 3, 12, 12), s32(4))


def labelled_chain() -> Program:
    """A conditional random field over words: the loss, by a scan of logsumexp, and Viterbi's best labels."""

    def energies(p: Tree, words: Array) -> Array:
        return jnp.tanh(p["table"][words] @ p["w"]) @ p["v"]

    def loss(p: Tree, words: Array, labels: Array, lengths: Array) -> Array:
        e = energies(p, words)
        valid = jnp.arange(words.shape[1])[None] < lengths[:, None]

        def turn(alpha: Array, now: Any) -> Any:
            energy, goes_on = now
            new = jax.nn.logsumexp(alpha[:, :, None] + p["moves"][None], 1) + energy
            return jnp.where(goes_on[:, None], new, alpha), None

        alpha, _ = lax.scan(turn, e[:, 0], (e[:, 1:].swapaxes(0, 1), valid[:, 1:].T))
        steps = jnp.take_along_axis(e, labels[..., None], -1)[..., 0]
        moves = p["moves"][labels[:, :-1], labels[:, 1:]]
        score = (steps * valid).sum(1) + (moves * valid[:, 1:]).sum(1)
        return (jax.nn.logsumexp(alpha, 1) - score).mean()

    parameters = {"table": f32(20, 6), "w": f32(6, 8), "v": f32(8, 4), "moves": f32(4, 4)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9, nesterov=True))
    return training(loss, optimizer, parameters, s32(5, 7), s32(5, 7), s32(5))


def text_convolution() -> Program:
    """A network with convolutions over words, dropout and a maximum over time, in haiku."""

    def forward(words: Array) -> Array:
        x = haiku.Embed(25, 6)(words)
        parts = [jax.nn.relu(haiku.Conv1D(5, size)(x)).max(1) for size in (2, 3)]
        x = haiku.dropout(haiku.next_rng_key(), 0.3, jnp.concatenate(parts, -1))
        return haiku.Linear(3)(x)

    model = haiku.transform(forward)

    def loss(parameters: Tree, random: Array, words: Array, labels: Array) -> Array:
        logits = model.apply(parameters, random, words)
        weights = jax.nn.softmax(logits)[jnp.arange(labels.shape[0]), labels]
        return -(((1.0 - weights) ** 2) * jnp.log(weights + 1e-6)).mean()

    return training(loss, optax.rmsprop(1e-2), shapes_of(model.init, key(), s32(6, 9)), key(), s32(6, 9), s32(6))


def soft_actor() -> Program:
    """A step of a soft actor-critic: squashed normal actions, twin critics, and slowly moving targets."""

    def network(p: Tree, x: Array) -> Array:
        return jax.nn.relu(x @ p["w"] + p["b"]) @ p["v"]

    def action(p: Tree, x: Array, noise: Array) -> Any:
        mean, log_scale = jnp.split(network(p, x), 2, -1)
        log_scale = jnp.clip(log_scale, -5.0, 2.0)
        raw = mean + jnp.exp(log_scale) * noise
        density = (-0.5 * noise**2 - log_scale - 0.919 - 2.0 * (0.6931 - raw - jax.nn.softplus(-2.0 * raw))).sum(-1)
        return jnp.tanh(raw), density

    def step(p: Tree, targets: Tree, log_alpha: Array, batch: Tree, random: Array) -> Any:
        x, a, reward, done, following = batch
        noise = jax.random.normal(random, (2, *a.shape))

        def critics(p: Tree, x: Array, a: Array) -> Array:
            return jnp.stack([network(p[name], jnp.concatenate([x, a], -1))[:, 0] for name in ("one", "two")])

        def loss(p: Tree) -> Array:
            next_a, density = action(p["actor"], following, noise[0])
            best = critics(targets, following, next_a).min(0) - jnp.exp(log_alpha) * density
            wanted = lax.stop_gradient(reward + 0.99 * jnp.where(done, 0.0, best))
            made, own = action(p["actor"], x, noise[1])
            value = critics(lax.stop_gradient(p), x, made).min(0)
            return ((critics(p, x, a) - wanted) ** 2).mean() + (jnp.exp(log_alpha) * own - value).mean()

        value, gradient = jax.value_and_grad(loss)(p)
        p = jax.tree.map(lambda p, g: p - 3e-2 * g, p, gradient)
        return p, optax.incremental_update({name: p[name] for name in targets}, targets, 0.05), value

    def layer(inputs: int, outputs: int) -> Tree:
        return {"w": f32(inputs, 8), "b": f32(8), "v": f32(8, outputs)}

    parameters = {"actor": layer(4, 4), "one": layer(6, 1), "two": layer(6, 1)}
    targets = {"one": layer(6, 1), "two": layer(6, 1)}
    batch = (f32(7, 4), f32(7, 2), f32(7), flags(7), f32(7, 4))
    return Program(step, (parameters, targets, f32(), batch, key()))


def augmented(images: Array, shifts: Array, angles: Array, flips: Array) -> Any:
    """Images turned, shifted, mirrored, and changed in contrast, by bilinear samples with borders."""

    def one(image: Array, shift: Array, angle: Array, flip: Array) -> Array:
        rows, columns = jnp.meshgrid(jnp.arange(9.0), jnp.arange(9.0), indexing="ij")
        r, c = rows - 4.0, columns - 4.0
        turned = jnp.stack([jnp.cos(angle) * r - jnp.sin(angle) * c + 4.0, jnp.sin(angle) * r + jnp.cos(angle) * c + 4.0])
        made = jax.scipy.ndimage.map_coordinates(image, list(turned), order=1, mode="nearest")
        cut = lax.dynamic_slice(jnp.pad(made, 2, mode="edge"), shift, (9, 9))
        return jnp.where(flip, cut[:, ::-1], cut)

    made = jax.vmap(one)(images, shifts, angles, flips)
    means = made.mean((1, 2), keepdims=True)
    return jnp.clip((made - means) * 1.3 + means, 0.0, 1.0), lax.reduce_window(
        made, -jnp.inf, lax.max, (1, 3, 3), (1, 2, 2), "SAME"
    )


def prefill_bf16(p: Tree, words: Array, lengths: Array, cache: Array) -> Any:
    """The first pass of a decoder in bf16: rotated queries of groups, a sliding window, and keys written to a cache."""
    x = p["table"][words]

    def normal(x: Array, scale: Array) -> Array:
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(jnp.bfloat16) * scale

    def turned(x: Array) -> Array:
        half = x.shape[-1] // 2
        turns = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(half) / half)
        sine, cosine = jnp.sin(turns)[None, :, None].astype(x.dtype), jnp.cos(turns)[None, :, None].astype(x.dtype)
        return jnp.concatenate([x[..., :half] * cosine - x[..., half:] * sine, x[..., half:] * cosine + x[..., :half] * sine], -1)

    h = normal(x, p["scale"])
    query = turned(jnp.einsum("btd,dhk->bthk", h, p["q"]))
    keys, values = turned(jnp.einsum("btd,dgk->btgk", h, p["k"])), jnp.einsum("btd,dgk->btgk", h, p["v"])
    grouped = query.reshape(*query.shape[:2], 2, 2, -1)
    scores = jnp.einsum("btghk,bsgk->bghts", grouped, keys).astype(jnp.float32) * 0.5
    at = jnp.arange(words.shape[1])
    seen = (at[:, None] >= at[None]) & (at[:, None] - at[None] < 4) & (at[None, None] < lengths[:, None, None])
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e9)).astype(jnp.bfloat16)
    mixed = jnp.einsum("bghts,bsgk->btghk", weights, values).reshape(*x.shape[:2], -1)
    x = x + mixed @ p["o"]
    gate, up = jnp.split(normal(x, p["scale"]) @ p["up"], 2, -1)
    x = x + (jax.nn.silu(gate) * up) @ p["down"]
    last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None, None], 1)[:, 0]
    return (last @ p["table"].T).astype(jnp.float32), lax.dynamic_update_slice(cache, jnp.stack([keys, values]), (0, 0, 2, 0, 0))


def quantised_training(p: Tree, x: Array, labels: Array, stored: Array, scales: Array) -> Any:
    """A step with weights rounded to eight bits, whose gradients pass through, beside a stored layer of integers."""

    def rounded(w: Array) -> Array:
        step = jnp.abs(w).max(0, keepdims=True) / 127.0 + 1e-8
        return w + lax.stop_gradient(jnp.clip(jnp.round(w / step), -127, 127) * step - w)

    def loss(p: Tree) -> Array:
        h = jax.nn.relu(x @ rounded(p["w"]) + p["b"])
        step = h.max() / 127.0 + 1e-8
        whole = jnp.round(lax.stop_gradient(h / step)).astype(jnp.int8)
        product = lax.dot_general(whole, stored, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        logits = product.astype(jnp.float32) * lax.stop_gradient(step) * scales + h @ rounded(p["v"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, gradient = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda p, g: p - 0.1 * g, p, gradient), value


def programs() -> dict[str, Program]:
    """Return the programs by name."""
    decoder = {
        "table": bf16(30, 16),
        "scale": bf16(16),
        "q": bf16(16, 4, 4),
        "k": bf16(16, 2, 4),
        "v": bf16(16, 2, 4),
        "o": bf16(16, 16),
        "up": bf16(16, 40),
        "down": bf16(20, 16),
    }
    layers = {"w": f32(6, 10), "b": f32(10), "v": f32(10, 4)}
    return {
        "attractor": Program(attractor, (f32(3), f32())),
        "wave": Program(wave, (f32(8, 9), f32(10), f32(10, 3))),
        "order_statistics": Program(order_statistics, (f32(3, 11), s32(11), f32(5))),
        "particles": Program(particles, (f32(20, 2), f32(20), f32(), key())),
        "sparse_code": Program(sparse_code, (f32(8, 12), f32(6, 8))),
        "hashes": Program(hashes, (s32(7, 5), s32(7))),
        "edge_network": edge_network(),
        "recommender": recommender(),
        "operators": operators(),
        "mixer": mixer(),
        "labelled_chain": labelled_chain(),
        "text_convolution": text_convolution(),
        "soft_actor": soft_actor(),
        "augmented": Program(augmented, (f32(3, 9, 9), s32(3, 2), f32(3), flags(3))),
        "prefill_bf16": Program(prefill_bf16, (decoder, s32(2, 8), s32(2), bf16(2, 2, 12, 2, 4))),
        "quantised_training": Program(quantised_training, (layers, f32(8, 6), s32(8), s8(10, 4), f32(4))),
    }
