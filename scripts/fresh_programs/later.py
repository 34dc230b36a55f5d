"""Programs that were written after the checks of kernels, for a score of programs that no check was fitted to."""

from __future__ import annotations

import importlib
from typing import Any

from fresh_programs.program import (
    Array,
    Program,
    Tree,
    bf16,
    cross_entropy,
    f32,
    jax,
    jnp,
    key,
    lax,
    optax,
    s32,
    training,
)

nnx: Any = importlib.import_module("flax.nnx")
equinox: Any = importlib.import_module("equinox")
diffrax: Any = importlib.import_module("diffrax")
optimistix: Any = importlib.import_module("optimistix")
numpyro: Any = importlib.import_module("numpyro")
tinygp: Any = importlib.import_module("tinygp")
e3nn: Any = importlib.import_module("e3nn_jax")
mctx: Any = importlib.import_module("mctx")
sparse: Any = importlib.import_module("jax.experimental.sparse")


class ConvNext(nnx.Module):
    """Depthwise convolutions with a layer norm, a wide layer between, and a learned scale of the branch."""

    def __init__(self, rngs: Any) -> None:
        self.stem = nnx.Conv(3, 8, (2, 2), strides=(2, 2), rngs=rngs)
        self.depthwise = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.wide, self.narrow = nnx.Linear(8, 24, rngs=rngs), nnx.Linear(24, 8, rngs=rngs)
        self.scale = nnx.Param(jnp.full(8, 0.1))
        self.head = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = self.stem(x)
        x = x + self.narrow(jax.nn.gelu(self.wide(self.norm(self.depthwise(x))))) * self.scale[...]
        return self.head(x.mean((1, 2)))


def conv_next() -> Program:
    """A step with smoothed labels, a clipped norm and a decayed average of the weights."""
    graph, state = nnx.split(nnx.eval_shape(lambda: ConvNext(nnx.Rngs(0))))
    state = nnx.to_pure_dict(state)

    def logits(parameters: Tree, x: Array) -> Array:
        full = nnx.split(nnx.eval_shape(lambda: ConvNext(nnx.Rngs(0))))[1]
        nnx.replace_by_pure_dict(full, parameters)
        return nnx.merge(graph, full)(x)

    def loss(parameters: Tree, x: Array, labels: Array) -> Array:
        targets = optax.smooth_labels(jax.nn.one_hot(labels, 5), 0.1)
        return optax.softmax_cross_entropy(logits(parameters, x), targets).mean()

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.9))
    return training(loss, optimizer, state, f32(4, 12, 12, 3), s32(4))


def hierarchical() -> Program:
    """A step of variational inference for a logistic regression with effects of groups."""
    dist, handlers = numpyro.distributions, numpyro.handlers

    def model(x: Array, groups: Array, y: Array) -> None:
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        effects = numpyro.sample("effects", dist.Normal(0, spread).expand([4]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + effects[groups]).to_event(1), obs=y)

    def loss(guide: Tree, random: Array, x: Array, groups: Array, y: Array) -> Array:
        names = ("spread", "weights", "effects")
        keys = dict(zip(names, jax.random.split(random, 3), strict=True))
        draws = {
            n: guide[n]["at"] + jax.nn.softplus(guide[n]["width"]) * jax.random.normal(keys[n], guide[n]["at"].shape)
            for n in names
        }
        entropy = sum(jnp.log(jax.nn.softplus(guide[n]["width"])).sum() for n in names)
        values = {**draws, "spread": jnp.exp(draws["spread"])}
        trace = handlers.trace(handlers.substitute(handlers.seed(model, 0), values)).get_trace(x, groups, y)
        joint = sum(site["fn"].log_prob(site["value"]).sum() for site in trace.values() if site["type"] == "sample")
        return -(joint + draws["spread"] + entropy)

    sizes = {"spread": (), "weights": (3,), "effects": (4,)}
    guide = {name: {"at": f32(*size), "width": f32(*size)} for name, size in sizes.items()}
    return training(loss, optax.adam(1e-2), guide, key(), f32(20, 3), s32(20), f32(20))


def matern() -> Program:
    """The likelihood of a Gaussian process in time and its gradient, and predictions, by a scalable solver."""

    def loss(parameters: Tree, t: Array, y: Array) -> Array:
        kernel = tinygp.kernels.quasisep.Matern32(jnp.exp(parameters["scale"]), jnp.exp(parameters["size"]))
        process = tinygp.GaussianProcess(
            kernel, t, assume_sorted=True, diag=jnp.exp(parameters["noise"]), mean=parameters["mean"]
        )
        return -process.log_probability(y)

    def step(parameters: Tree, steps: Array, y: Array) -> Any:
        return jax.value_and_grad(loss)(parameters, jnp.cumsum(jnp.abs(steps) + 0.01), y)

    return Program(step, ({n: f32() for n in ("scale", "size", "noise", "mean")}, f32(12), f32(12)))


def equivariant() -> Program:
    """Messages of vectors and scalars along edges by tensor products with spherical harmonics; energies and forces."""
    irreps = e3nn.Irreps("4x0e + 3x1o")

    def energy(places: Array, parameters: Tree, senders: Array, receivers: Array) -> Array:
        offsets = places[receivers] - places[senders]
        harmonics = e3nn.spherical_harmonics("0e + 1o", offsets, normalize=True)
        length = jnp.sqrt((offsets**2).sum(-1) + 1e-6)
        nodes = e3nn.IrrepsArray(irreps, parameters["nodes"])
        messages = e3nn.tensor_product(nodes[senders], harmonics, filter_ir_out=("0e", "1o"))
        radial = jnp.tanh(e3nn.bessel(length, 4, 3.0) @ parameters["radial"])
        sums = e3nn.scatter_sum(messages * radial, dst=receivers, output_size=6)
        scalars = sums.filter("0e").array
        return (jnp.tanh(scalars) @ parameters["out"]).sum() + e3nn.norm(sums.filter("1o")).array.sum()

    width = e3nn.tensor_product(
        e3nn.IrrepsArray(irreps, jnp.zeros(13)), e3nn.IrrepsArray("0e + 1o", jnp.zeros(4)), filter_ir_out=("0e", "1o")
    )
    scalars = width.filter("0e").array.shape[-1]
    parameters = {"nodes": f32(6, 13), "radial": f32(4, 1), "out": f32(scalars)}
    return Program(jax.value_and_grad(energy, argnums=(0, 1)), (f32(6, 3), parameters, s32(11), s32(11)))


def tree_search() -> Program:
    """A search of a tree of actions with a learned model, and the chosen actions."""

    def step(parameters: Tree, random: Array, start: Array) -> Any:
        def recurrent(parameters: Tree, random: Array, action: Array, embedding: Array) -> Any:
            after = jnp.tanh(embedding @ parameters["move"] + parameters["actions"][action])
            output = mctx.RecurrentFnOutput(
                reward=after @ parameters["reward"],
                discount=jnp.full(action.shape, 0.9),
                prior_logits=after @ parameters["policy"],
                value=after @ parameters["value"],
            )
            return output, after

        root = mctx.RootFnOutput(prior_logits=start @ parameters["policy"], value=start @ parameters["value"], embedding=start)
        result = mctx.gumbel_muzero_policy(parameters, random, root, recurrent, num_simulations=6, max_num_considered_actions=3)
        return result.action, result.action_weights, result.search_tree.node_values

    sizes = {"move": (6, 6), "actions": (4, 6), "reward": (6,), "policy": (6, 4), "value": (6,)}
    return Program(step, ({name: f32(*size) for name, size in sizes.items()}, key(), f32(3, 6)))


def least_squares() -> Program:
    """A curve with four parameters is fitted by Levenberg and Marquardt's method."""

    def fit(start: Array, t: Array, y: Array) -> Any:
        def residuals(p: Array, data: Any) -> Array:
            times, values = data
            return p[0] * jnp.exp(-(p[1] ** 2) * times) * jnp.cos(p[2] * times + p[3]) - values

        solver = optimistix.LevenbergMarquardt(rtol=1e-3, atol=1e-3)
        found = optimistix.least_squares(residuals, solver, start, (t, y), max_steps=8, throw=False)
        return found.value, residuals(found.value, (t, y))

    return Program(fit, (f32(4), f32(15), f32(15)))


def controlled() -> Program:
    """A differential equation whose right side is a network, driven by data, with a solver of adaptive steps; a gradient."""

    def loss(parameters: Tree, start: Array, y: Array) -> Array:
        def field(t: Array, x: Array, p: Tree) -> Array:
            return jnp.tanh(x @ p["in"] + p["bias"] * t) @ p["out"]

        saved = diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 5))
        control = diffrax.PIDController(rtol=1e-2, atol=1e-2)
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            0.0,
            1.0,
            0.2,
            start,
            parameters,
            saveat=saved,
            stepsize_controller=control,
            max_steps=16,
            throw=False,
        )
        return ((found.ys - y) ** 2).mean()

    parameters = {"in": f32(3, 8), "bias": f32(8), "out": f32(8, 3)}
    return training(loss, optax.rmsprop(1e-2), parameters, f32(3), f32(5, 3))


class Gated(equinox.Module):
    """A linear recurrence with learned gates, all steps at once by an associative scan."""

    enter: Any
    gate: Any
    leave: Any
    decay: Array

    def __init__(self, width: int, random: Array) -> None:
        first, second, third = jax.random.split(random, 3)
        self.enter = equinox.nn.Linear(width, width, key=first)
        self.gate = equinox.nn.Linear(width, width, key=second)
        self.leave = equinox.nn.Linear(width, width, key=third)
        self.decay = jnp.linspace(0.1, 2.0, width)

    def __call__(self, x: Array) -> Array:
        gates = jax.nn.sigmoid(jax.vmap(self.gate)(x))
        kept = jnp.exp(-8.0 * gates * jax.nn.softplus(self.decay))
        added = jnp.sqrt(1 - kept**2 + 1e-6) * jax.vmap(self.enter)(x)

        def joined(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        _, states = lax.associative_scan(joined, (kept, added))
        return x + jax.vmap(self.leave)(states * jax.nn.gelu(x))


def recurrent_gates() -> Program:
    """Next symbols of a text, with two layers of gates and tied embeddings; weights are summed over two small batches."""
    layers = [equinox.filter_eval_shape(Gated, 8, jax.random.PRNGKey(0)) for _ in range(2)]

    def is_array(leaf: Any) -> bool:
        return hasattr(leaf, "shape")

    arrays, rest = equinox.partition(layers, is_array)

    def loss(parameters: Tree, text: Array) -> Array:
        stacked = equinox.combine(parameters["layers"], rest)

        def one(line: Array) -> Array:
            x = parameters["words"][line[:-1]]
            for layer in stacked:
                x = layer(x)
            return cross_entropy(x @ parameters["words"].T, line[1:])

        return jax.vmap(one)(text).mean()

    optimizer = optax.MultiSteps(optax.nadam(1e-2), 2).gradient_transformation()
    return training(loss, optimizer, {"layers": arrays, "words": f32(11, 8)}, s32(3, 10))


def grouped_query() -> Program:
    """A block of a decoder in bf16: turned positions, grouped heads with a window, experts by ragged products; inference."""

    def turned(x: Array, places: Array) -> Array:
        rates = 10000.0 ** (-jnp.arange(4) / 4.0)
        angle = places[:, None] * rates
        even, odd = jnp.split(x.astype(jnp.float32), 2, -1)
        sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]
        return jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], -1).astype(x.dtype)

    def block(p: Tree, x: Array, offset: Array) -> Any:
        places = jnp.arange(x.shape[0]) + offset
        normed = x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-6).astype(x.dtype) * p["norm"]
        q, k, v = (jnp.einsum("td,dhe->the", normed, p[n]) for n in ("q", "k", "v"))
        q, k = turned(q, places), turned(k, places)
        q = q.reshape(q.shape[0], 2, 2, 8)
        scores = jnp.einsum("tgre,sge->grts", q, k).astype(jnp.float32) * 8**-0.5
        far = places[:, None] - places[None]
        scores = jnp.where((far >= 0) & (far < 5), 30.0 * jnp.tanh(scores / 30.0), -1e9)
        mixed = jnp.einsum("grts,sge->tgre", jax.nn.softmax(scores).astype(x.dtype), v)
        x = x + jnp.einsum("tgre,gred->td", mixed, p["o"])
        gates = jax.nn.softmax((x @ p["router"]).astype(jnp.float32))
        chosen = jnp.argmax(gates, -1)
        order = jnp.argsort(chosen)
        counts = jnp.bincount(chosen, length=3)
        hidden = jax.nn.silu(lax.ragged_dot(x[order], p["up"], counts.astype(jnp.int32)))
        out = lax.ragged_dot(hidden, p["down"], counts.astype(jnp.int32))
        weight = jnp.take_along_axis(gates, chosen[:, None], -1)
        return x + jnp.zeros_like(x).at[order].set(out) * weight.astype(x.dtype), chosen

    sizes = {
        "norm": (16,),
        "q": (16, 4, 8),
        "k": (16, 2, 8),
        "v": (16, 2, 8),
        "o": (2, 2, 8, 16),
        "router": (16, 3),
        "up": (3, 16, 24),
        "down": (3, 24, 16),
    }
    return Program(block, ({name: bf16(*size) for name, size in sizes.items()}, bf16(9, 16), s32()))


def _overlaps(boxes: Array, others: Array) -> Array:
    low = jnp.maximum(boxes[:, None, :2], others[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = jnp.prod(jnp.maximum(high - low, 0.0), -1)
    area, other = (jnp.prod(jnp.maximum(b[:, 2:] - b[:, :2], 0.0), -1) for b in (boxes, others))
    return shared / jnp.maximum(area[:, None] + other[None] - shared, 1e-6)


def detector() -> Program:
    """A step of a detector: anchors are matched with boxes by their overlap, a focal loss and a smooth one."""

    def loss(p: Tree, image: Array, corners: Array, sizes: Array, labels: Array) -> Array:
        x = jax.nn.relu(lax.conv_general_dilated(image, p["conv"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        y = (x.reshape(-1, 8) @ p["head"]).reshape(-1, 3 + 4)
        grid = jnp.stack(jnp.meshgrid(jnp.arange(5.0), jnp.arange(5.0)), -1).reshape(-1, 2)
        anchors = jnp.concatenate([grid, grid + 2.0], -1)
        low = 5 * jax.nn.sigmoid(corners)
        boxes = jnp.concatenate([low, low + 1.0 + jax.nn.softplus(sizes)], -1)
        overlap = _overlaps(anchors, boxes)
        match, best = overlap.argmax(1), overlap.max(1)
        is_object = best > 0.3
        targets = jnp.where(is_object[:, None], jax.nn.one_hot(labels[match], 3), 0.0)
        focal = optax.sigmoid_focal_loss(y[:, :3], targets, alpha=0.25, gamma=2.0).sum()
        moved = optax.huber_loss(y[:, 3:], boxes[match] - anchors).sum(-1)
        return (focal + jnp.where(is_object, moved, 0.0).sum()) / jnp.maximum(is_object.sum(), 1)

    parameters = {"conv": f32(3, 3, 3, 8), "head": f32(8, 7)}
    return training(
        loss, optax.sgd(1e-2, momentum=0.9, nesterov=True), parameters, f32(1, 10, 10, 3), f32(4, 2), f32(4, 2), s32(4)
    )


def suppression() -> Program:
    """Boxes without those that overlap a better one, the best ten of each class."""

    def chosen(corners: Array, sizes: Array, scores: Array) -> Any:
        boxes = jnp.concatenate([corners, corners + jnp.abs(sizes) + 0.1], -1)
        overlap = _overlaps(boxes, boxes)

        def of_class(scores: Array) -> Any:
            order = jnp.argsort(-scores)

            def body(number: Array, kept: Array) -> Array:
                place = order[number]
                hidden = (overlap[place] > 0.4) & kept & (scores > scores[place])
                return kept.at[place].set(~hidden.any() & (scores[place] > 0))

            kept = lax.fori_loop(0, scores.shape[0], body, jnp.zeros(scores.shape[0], bool))
            values, places = lax.top_k(jnp.where(kept, scores, -1.0), 4)
            return values, boxes[places], kept.sum()

        return jax.vmap(of_class, 1)(scores)

    return Program(chosen, (f32(12, 2), f32(12, 2), f32(12, 3)))


def radiance() -> Program:
    """Colours of rays through a field with encoded positions, coarse and fine samples; a step of training."""

    def encoded(x: Array) -> Array:
        scaled = x[..., None, :] * (2.0 ** jnp.arange(3))[:, None]
        return jnp.concatenate([jnp.sin(scaled), jnp.cos(scaled)], -1).reshape(*x.shape[:-1], -1)

    def loss(p: Tree, origins: Array, directions: Array, colours: Array, random: Array) -> Array:
        ways = directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)
        depths = jnp.linspace(0.5, 3.0, 8) + 0.3 * jax.random.uniform(random, (origins.shape[0], 8))
        points = origins[:, None] + ways[:, None] * depths[..., None]
        hidden = jax.nn.relu(encoded(points) @ p["in"] + p["bias"])
        density, colour = jax.nn.softplus(hidden @ p["density"]), jax.nn.sigmoid(hidden @ p["colour"])
        steps = jnp.diff(depths, append=depths[:, -1:] + 1.0)
        opaque = 1 - jnp.exp(-density * steps)
        light = jnp.cumprod(jnp.concatenate([jnp.ones_like(opaque[:, :1]), 1 - opaque[:, :-1] + 1e-10], 1), 1)
        return ((((light * opaque)[..., None] * colour).sum(1) - colours) ** 2).mean()

    parameters = {"in": f32(18, 16), "bias": f32(16), "density": f32(16), "colour": f32(16, 3)}
    return training(loss, optax.adabelief(1e-3), parameters, f32(6, 3), f32(6, 3), f32(6, 3), key())


def vocoder() -> Program:
    """A waveform is fitted in its spectra of two window lengths, on a scale of hearing."""

    def spectrum(wave: Array, size: int) -> Array:
        starts = jnp.arange(0, wave.shape[0] - size + 1, size // 2)

        def frame(start: Array) -> Array:
            return lax.dynamic_slice(wave, (start,), (size,))

        frames = jax.vmap(frame)(starts)
        window = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(size) / size)
        return jnp.abs(jnp.fft.rfft(frames * window)) + 1e-3

    def loss(p: Tree, noise: Array, wave: Array) -> Array:
        x = jnp.tanh(lax.conv_general_dilated(noise[None], p["up"], (1,), [(3, 3)], lhs_dilation=(4,)))
        made = lax.conv_general_dilated(x, p["out"], (1,), "SAME", rhs_dilation=(3,))[0, 0]
        total = jnp.abs(made - wave).mean()
        for size in (16, 32):
            one, two = spectrum(made, size), spectrum(wave, size)
            total += jnp.abs(jnp.log(one) - jnp.log(two)).mean() + jnp.linalg.norm(one - two) / jnp.linalg.norm(two)
        return total

    parameters = {"up": f32(6, 4, 7), "out": f32(1, 6, 5)}
    return training(loss, optax.adamax(1e-3), parameters, f32(4, 24), f32(93))


def point_cloud() -> Program:
    """Farthest points, their nearest neighbours, the largest feature of each group; a class per cloud."""

    def loss(p: Tree, points: Array, labels: Array) -> Array:
        def one(cloud: Array) -> Array:
            def pick(distances: Array, _: None) -> Any:
                place = jnp.argmax(distances)
                return jnp.minimum(distances, ((cloud - cloud[place]) ** 2).sum(-1)), place

            _, centres = lax.scan(pick, jnp.full(cloud.shape[0], 1e9), None, length=4)
            squares = ((cloud[centres][:, None] - cloud[None]) ** 2).sum(-1)
            _, near = lax.top_k(-squares, 5)
            local = cloud[near] - cloud[centres][:, None]
            return jax.nn.relu(jax.nn.relu(local @ p["one"]) @ p["two"]).max((0, 1)) @ p["head"]

        return cross_entropy(jax.vmap(one)(points), labels)

    parameters = {"one": f32(3, 8), "two": f32(8, 12), "head": f32(12, 4)}
    return training(loss, optax.yogi(1e-2), parameters, f32(3, 16, 3), s32(3))


def molecules(places: Array, speeds: Array, box: Array) -> Any:
    """Steps of Verlet's method for particles with a cut-off force in a periodic box, with energies and a histogram."""
    side = 3.0 + jnp.abs(box)

    def energy(x: Array) -> Array:
        offsets = x[:, None] - x[None]
        offsets = offsets - side * jnp.round(offsets / side)
        squares = (offsets**2).sum(-1) + jnp.eye(x.shape[0])
        inverse = 1 / jnp.maximum(squares, 0.5) ** 3
        pairs = jnp.where((squares < 2.25) & ~jnp.eye(x.shape[0], dtype=bool), 4 * (inverse**2 - inverse), 0.0)
        return pairs.sum() / 2

    slope = jax.grad(energy)

    def step(state: Any, _: None) -> Any:
        x, v = state
        v = v + 0.005 * -slope(x)
        x = (x + 0.01 * v) % side
        v = v + 0.005 * -slope(x)
        return (x, v), energy(x) + 0.5 * (v**2).sum()

    (x, v), energies = lax.scan(step, (places % side, speeds), None, length=6)
    cells = jnp.floor(x / side * 3).astype(jnp.int32)
    counts = jnp.zeros((3, 3), jnp.int32).at[cells[:, 0], cells[:, 1]].add(1)
    return x, v, energies, counts


def conjugate_gradient(values: Array, rows: Array, columns: Array, b: Array) -> Any:
    """A sparse symmetric system is solved by conjugate gradients, with a diagonal preconditioner."""
    size = b.shape[0]
    matrix = sparse.BCOO((0.1 * values, jnp.stack([rows, columns], -1)), shape=(size, size))
    diagonal = 4.0 + jnp.zeros(size).at[rows].add(jnp.abs(values))

    def apply(x: Array) -> Array:
        return diagonal * x + matrix @ x + matrix.T @ x

    def preconditioned(r: Array) -> Array:
        return r / diagonal

    x, _ = jax.scipy.sparse.linalg.cg(apply, b, maxiter=6, M=preconditioned)
    return x, apply(x) - b


def forest(features: Array, thresholds: Array, chosen: Array, leaves: Array) -> Any:
    """Boosted trees: each sample walks down every tree; votes, probabilities, and the share of each leaf."""
    trees, inner = thresholds.shape

    def walk(sample: Array) -> Any:
        node = jnp.zeros(trees, jnp.int32)
        for _ in range(3):
            place = jnp.arange(trees), node
            right = sample[chosen[place]] > thresholds[place]
            node = 2 * node + 1 + right
        return node - inner

    ends = jax.vmap(walk)(features)
    scores = leaves[jnp.arange(trees)[None], ends].sum(1)

    def counted(column: Array) -> Array:
        return jnp.bincount(column, length=8)

    counts = jax.vmap(counted, 1)(ends)
    return jax.nn.softmax(scores), scores.argmax(-1), counts


def automaton(board: Array, masks: Array) -> Any:
    """Life on a torus in packed words, with population counts, and a checksum of each generation."""

    def generation(words: Array, _: None) -> Any:
        bits = (words[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
        around = sum(jnp.roll(bits, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
        alive = (around == 3) | ((around == 2) & (bits == 1))
        after = (alive.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(1, dtype=jnp.uint32) & masks
        check = lax.reduce(after * jnp.uint32(2654435761) ^ (after >> 15), jnp.uint32(0), lax.bitwise_xor, (0,))
        return after, (lax.population_count(after).sum(), check)

    return lax.scan(generation, board, None, length=5)


def programs() -> dict[str, Program]:
    """Return the programs of this family by name."""
    u32 = jax.ShapeDtypeStruct((12,), jnp.uint32)
    return {
        "conv_next": conv_next(),
        "hierarchical": hierarchical(),
        "matern": matern(),
        "equivariant": equivariant(),
        "tree_search": tree_search(),
        "least_squares": least_squares(),
        "controlled": controlled(),
        "recurrent_gates": recurrent_gates(),
        "grouped_query": grouped_query(),
        "detector": detector(),
        "suppression": suppression(),
        "radiance": radiance(),
        "vocoder": vocoder(),
        "point_cloud": point_cloud(),
        "molecules": Program(molecules, (f32(8, 2), f32(8, 2), f32())),
        "conjugate_gradient": Program(conjugate_gradient, (f32(20), s32(20), s32(20), f32(10))),
        "forest": Program(forest, (f32(9, 5), f32(4, 7), s32(4, 7), f32(4, 8, 3))),
        "automaton": Program(automaton, (u32, u32)),
    }
