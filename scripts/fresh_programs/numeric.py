"""Optimisers of their own, statistics and scientific programs."""

from __future__ import annotations

from typing import Any

from fresh_programs.program import Array, Program, Tree, cross_entropy, f32, jax, jnp, key, lax, optax, s32, training

_LAYERS = {"w": f32(6, 12), "b": f32(12), "v": f32(12, 4)}


def _network(parameters: Tree, x: Array) -> Array:
    return jax.nn.gelu(x @ parameters["w"] + parameters["b"]) @ parameters["v"]


def _loss(parameters: Tree, x: Array, labels: Array) -> Array:
    return cross_entropy(_network(parameters, x), labels)


def shampoo(w: Array, left: Array, right: Array, x: Array, y: Array) -> Any:
    """A step of Shampoo for one matrix: inverse fourth roots of both sums of products of gradients."""

    def loss(w: Array) -> Array:
        return ((jnp.tanh(x @ w) - y) ** 2).mean()

    def root(m: Array) -> Array:
        values, vectors = jnp.linalg.eigh(m + 1e-2 * jnp.eye(len(m)))
        return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T

    gradient = jax.grad(loss)(w)
    left, right = 0.9 * left + gradient @ gradient.T, 0.9 * right + gradient.T @ gradient
    symmetric = [(m + m.T) / 2 for m in (left, right)]
    return w - 0.1 * root(symmetric[0]) @ gradient @ root(symmetric[1]), left, right


def muon(w: Array, momentum: Array, x: Array, y: Array) -> Any:
    """A step along the momentum, made orthogonal by five Newton-Schulz iterations."""
    gradient = jax.grad(lambda w: ((jax.nn.relu(x @ w) - y) ** 2).mean())(w)
    momentum = 0.95 * momentum + gradient
    u = momentum / (jnp.linalg.norm(momentum) + 1e-7)
    for _ in range(5):
        product = u @ u.T
        u = 3.4445 * u + (-4.775 * product + 2.0315 * product @ product) @ u
    return w - 0.02 * u, momentum


def gaussian_process(x: Array, y: Array, logs: Array) -> Any:
    """The likelihood of a Gaussian process with its gradients, and predictions at the middle points."""

    def covariance(a: Array, b: Array, logs: Array) -> Array:
        distances = ((a[:, None] - b[None]) ** 2 * jnp.exp(logs[:2])).sum(-1)
        return jnp.exp(logs[2]) * jnp.exp(-0.5 * distances)

    def likelihood(logs: Array) -> Any:
        factor = jnp.linalg.cholesky(covariance(x, x, logs) + (jnp.exp(logs[3]) + 1e-2) * jnp.eye(len(x)))
        half = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        weights = jax.scipy.linalg.solve_triangular(factor.T, half, lower=False)
        return 0.5 * half @ half + jnp.log(jnp.diagonal(factor)).sum(), weights

    (value, weights), gradient = jax.value_and_grad(likelihood, has_aux=True)(logs)
    middle = (x[1:] + x[:-1]) / 2
    return value, gradient, covariance(middle, x, logs) @ weights


def cluster(points: Array, centres: Array) -> Any:
    """A step of k-means: nearest centres, their means, and empty ones kept."""
    distances = ((points[:, None] - centres[None]) ** 2).sum(-1)
    nearest = distances.argmin(-1)
    counts = jnp.zeros(len(centres)).at[nearest].add(1.0)
    sums = jnp.zeros_like(centres).at[nearest].add(points)
    return jnp.where(counts[:, None] > 0, sums / jnp.maximum(counts, 1)[:, None], centres), nearest, distances.min(-1).sum()


def kalman(measured: Array, gains: Array, start: Array) -> Any:
    """A Kalman filter over a sequence, with the log-likelihood."""
    move = jnp.eye(3) + 0.1 * jnp.diag(jnp.ones(2), 1)

    def turn(state: Any, z: Array) -> Any:
        mean, spread = state
        mean, spread = move @ mean, move @ spread @ move.T + 0.05 * jnp.eye(3)
        error = z - gains @ mean
        within = gains @ spread @ gains.T + 0.5 * jnp.eye(2)
        gain = jnp.linalg.solve(within, gains @ spread).T
        score = -0.5 * (error @ jnp.linalg.solve(within, error) + jnp.linalg.slogdet(within)[1])
        return (mean + gain @ error, spread - gain @ gains @ spread), (mean, score)

    (mean, spread), (means, scores) = lax.scan(turn, (start, jnp.eye(3)), measured)
    return mean, spread, means, scores.sum()


def hidden_states(starts: Array, moves: Array, emissions: Array, seen: Array) -> Any:
    """The forward and the backward pass of a hidden Markov model in logarithms, and the expected states."""
    first, between, emit = jax.nn.log_softmax(starts), jax.nn.log_softmax(moves), jax.nn.log_softmax(emissions)
    likely = emit[:, seen].T

    def forward(a: Array, now: Array) -> Any:
        a = jax.nn.logsumexp(a[:, None] + between, axis=0) + now
        return a, a

    def backward(b: Array, now: Array) -> Any:
        return jax.nn.logsumexp(between + (now + b)[None], axis=1), b

    last, rest = lax.scan(forward, first + likely[0], likely[1:])
    alphas = jnp.concatenate([(first + likely[0])[None], rest])
    b, betas = lax.scan(backward, jnp.zeros_like(first), likely[1:], reverse=True)
    joint = alphas + jnp.concatenate([b[None], betas])
    return jax.nn.softmax(joint, -1), jax.nn.logsumexp(last)


def physics(parameters: Tree, points: Array, edges: Array) -> Any:
    """The loss of a network that solves a heat equation, by second derivatives."""

    def value(parameters: Tree, p: Array) -> Array:
        return (jnp.tanh(jnp.tanh(p @ parameters["w"] + parameters["b"]) @ parameters["v"]) @ parameters["u"])[0]

    def loss(parameters: Tree) -> Array:
        def residue(p: Array) -> Array:
            slope = jax.grad(value, 1)(parameters, p)
            curve = jax.hessian(value, 1)(parameters, p)
            return slope[1] - 0.3 * curve[0, 0]

        inside = jax.vmap(residue)(points)
        return (inside**2).mean() + (jax.vmap(lambda p: value(parameters, p))(edges) ** 2).mean()

    return jax.value_and_grad(loss)(parameters)


def alternating(ratings: Array, known: Array, items: Array) -> Any:
    """Least squares for the users of a matrix factorisation, then for the items."""

    def solved(ratings: Array, known: Array, fixed: Array) -> Array:
        def one(row: Array, mask: Array) -> Array:
            weighted = fixed * mask[:, None]
            return jnp.linalg.solve(weighted.T @ fixed + 0.5 * jnp.eye(fixed.shape[1]), weighted.T @ row)

        return jax.vmap(one)(ratings, known)

    users = solved(ratings, known, items)
    items = solved(ratings.T, known.T, users)
    return users, items, (known * (ratings - users @ items.T) ** 2).sum()


def hamiltonian(q: Array, scale: Array, x: Array, y: Array, key: Array) -> Any:
    """A step of Hamiltonian Monte Carlo for a logistic regression: leapfrog, then accepted or not."""

    def energy(q: Array) -> Array:
        logits = x @ q
        return -(y * logits - jax.nn.softplus(logits)).sum() + 0.5 * (q**2).sum()

    one, two = jax.random.split(key)
    start = jax.random.normal(one, q.shape) * jnp.abs(scale)

    def turn(_: Array, state: Any) -> Any:
        q, p = state
        p = p - 0.025 * jax.grad(energy)(q)
        q = q + 0.05 * p
        return q, p - 0.025 * jax.grad(energy)(q)

    end, p = lax.fori_loop(0, 6, turn, (q, start))
    change = energy(q) + 0.5 * (start**2).sum() - energy(end) - 0.5 * (p**2).sum()
    accepted = jnp.log(jax.random.uniform(two)) < change
    return jnp.where(accepted, end, q), accepted, change


def transport(costs: Array, left: Array, right: Array) -> Any:
    """Regularised optimal transport between two weightings, in logarithms, and the cost's gradient."""

    def cost(costs: Array) -> Array:
        a, b = jax.nn.log_softmax(left), jax.nn.log_softmax(right)

        def turn(state: Any, _: None) -> Any:
            f, g = state
            f = 0.1 * (a - jax.nn.logsumexp((g[None] - costs) / 0.1, axis=1))
            g = 0.1 * (b - jax.nn.logsumexp((f[:, None] - costs) / 0.1, axis=0))
            return (f, g), None

        (f, g), _ = lax.scan(turn, (jnp.zeros_like(left), jnp.zeros_like(right)), None, length=8)
        return (jnp.exp((f[:, None] + g[None] - costs) / 0.1) * costs).sum()

    return jax.value_and_grad(cost)(costs)


def programs() -> dict[str, Program]:
    """Return the programs by name."""
    physical = {"w": f32(2, 10), "b": f32(10), "v": f32(10, 8), "u": f32(8, 1)}
    return {
        "adafactor": training(_loss, optax.adafactor(1e-2, min_dim_size_to_factor=4), _LAYERS, f32(8, 6), s32(8)),
        "shampoo": Program(shampoo, (f32(6, 5), f32(6, 6), f32(5, 5), f32(9, 6), f32(9, 5))),
        "muon": Program(muon, (f32(6, 8), f32(6, 8), f32(10, 6), f32(10, 8))),
        "gaussian_process": Program(gaussian_process, (f32(9, 2), f32(9), f32(4))),
        "cluster": Program(cluster, (f32(30, 3), f32(5, 3))),
        "kalman": Program(kalman, (f32(8, 2), f32(2, 3), f32(3))),
        "hidden_states": Program(hidden_states, (f32(4), f32(4, 4), f32(4, 6), s32(9))),
        "physics": Program(physics, (physical, f32(7, 2), f32(4, 2))),
        "alternating": Program(alternating, (f32(6, 7), f32(6, 7), f32(7, 3))),
        "hamiltonian": Program(hamiltonian, (f32(4), f32(), f32(10, 4), f32(10), key())),
        "transport": Program(transport, (f32(6, 8), f32(6), f32(8))),
    }
