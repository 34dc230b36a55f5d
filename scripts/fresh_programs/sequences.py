"""Sequences: transformers, recurrent networks, decoding, embeddings."""

from __future__ import annotations

import importlib
from typing import Any

from fresh_programs.program import (
    Array,
    Program,
    bf16,
    cross_entropy,
    f32,
    flags,
    flax_training,
    inference,
    jax,
    jnp,
    lax,
    optax,
    s32,
    training,
)

nn: Any = importlib.import_module("flax.linen")


class LanguageModel(nn.Module):
    """A causal transformer of one block; the logits use the embedding."""

    words: int
    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        embedding = nn.Embed(self.words, self.width, dtype=self.dtype, param_dtype=self.dtype)
        x = embedding(tokens)
        x = x + self.param("places", nn.initializers.normal(0.02), (tokens.shape[1], self.width), self.dtype)
        mask = nn.make_causal_mask(tokens)
        kinds = {"dtype": self.dtype, "param_dtype": self.dtype}
        x = x + nn.MultiHeadDotProductAttention(2, **kinds)(nn.RMSNorm(**kinds)(x), mask=mask)
        y = nn.RMSNorm(**kinds)(x)
        x = x + nn.Dense(self.width, **kinds)(
            nn.silu(nn.Dense(2 * self.width, **kinds)(y)) * nn.Dense(2 * self.width, **kinds)(y)
        )
        return embedding.attend(nn.LayerNorm(**kinds)(x)).astype(jnp.float32)


def next_token(logits: Array, targets: Array) -> Array:
    """Return the loss of next tokens; token 0 is padding."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    weights = (targets != 0).astype(jnp.float32)
    return (losses * weights).sum() / jnp.maximum(weights.sum(), 1.0)


class Tagger(nn.Module):
    """An LSTM that reads up to each sequence's length, then a GRU backwards."""

    @nn.compact
    def __call__(self, tokens: Array, lengths: Array) -> Array:
        x = nn.Embed(30, 8)(tokens)
        x = nn.RNN(nn.LSTMCell(10))(x, seq_lengths=lengths)
        x = nn.RNN(nn.GRUCell(6), reverse=True, keep_order=True)(x)
        return nn.Dense(5)(x)


class Translator(nn.Module):
    """A GRU encoder, and a decoder with additive attention to the encoder's states."""

    @nn.compact
    def __call__(self, source: Array, target: Array) -> Array:
        states = nn.RNN(nn.GRUCell(12))(nn.Embed(20, 8)(source))
        queries = nn.RNN(nn.GRUCell(12))(nn.Embed(18, 8)(target))
        scores = nn.Dense(1)(nn.tanh(nn.Dense(8)(states)[:, None] + nn.Dense(8)(queries)[:, :, None]))[..., 0]
        scores = jnp.where((source != 0)[:, None], scores, -1e9)
        context = nn.softmax(scores) @ states
        return nn.Dense(18)(jnp.concatenate([queries, context], -1))


class Experts(nn.Module):
    """Two of four experts per token, chosen by a router, and the loss that balances them."""

    @nn.compact
    def __call__(self, x: Array) -> Any:
        weights = nn.softmax(nn.Dense(4, use_bias=False)(x))
        best, places = lax.top_k(weights, 2)
        best = best / best.sum(-1, keepdims=True)
        gates = (nn.one_hot(places, 4) * best[..., None]).sum(-2)
        w1 = self.param("w1", nn.initializers.lecun_normal(), (4, x.shape[-1], 16))
        w2 = self.param("w2", nn.initializers.lecun_normal(), (4, 16, x.shape[-1]))
        hidden = nn.gelu(jnp.einsum("nd,edh->neh", x, w1))
        out = jnp.einsum("neh,ehd,ne->nd", hidden, w2, gates)
        balance = 4 * (weights.mean(0) * (gates > 0).mean(0)).sum()
        return out, balance


class StateSpace(nn.Module):
    """A diagonal linear recurrence, computed by an associative scan."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        decay = jnp.exp(-jnp.exp(self.param("decay", nn.initializers.normal(0.5), (8,))))
        u = nn.Dense(8)(x)

        def combine(one: Any, two: Any) -> Any:
            return one[0] * two[0], two[0] * one[1] + two[1]

        _, states = lax.associative_scan(combine, (jnp.broadcast_to(decay, u.shape), u), axis=1)
        return nn.Dense(x.shape[-1])(states * nn.sigmoid(nn.Dense(8)(x))) + x


class LinearAttention(nn.Module):
    """Causal linear attention with a feature map, as a scan over time."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        q, k, v = (nn.Dense(6)(x) for _ in range(3))
        q, k = nn.elu(q) + 1.0, nn.elu(k) + 1.0

        def turn(state: Any, now: Any) -> Any:
            sums, norms = state
            q, k, v = now
            sums, norms = sums + k[:, :, None] * v[:, None], norms + k
            return (sums, norms), jnp.einsum("bk,bkv->bv", q, sums) / (q * norms).sum(-1, keepdims=True)

        batch = x.shape[0]
        start = (jnp.zeros((batch, 6, 6)), jnp.zeros((batch, 6)))
        _, out = lax.scan(turn, start, tuple(jnp.swapaxes(part, 0, 1) for part in (q, k, v)))
        return nn.Dense(x.shape[-1])(jnp.swapaxes(out, 0, 1))


def connectionist() -> Program:
    """The loss of connectionist temporal classification, by optax."""

    def loss(parameters: Any, x: Array, paddings: Array, labels: Array, label_paddings: Array) -> Array:
        logits = jnp.tanh(x @ parameters["w"] + parameters["b"]) @ parameters["v"]
        return optax.ctc_loss(logits, paddings, labels, label_paddings).mean()

    parameters = {"w": f32(6, 12), "b": f32(12), "v": f32(12, 9)}
    return training(loss, optax.adam(1e-3), parameters, f32(3, 10, 6), f32(3, 10), s32(3, 4), f32(3, 4))


def beam_search(scores: Array, logits: Array, history: Array, finished: Array) -> Any:
    """One step of a beam search: the best continuations of four beams, and their histories."""
    beams, words = logits.shape
    steps = nn.log_softmax(logits)
    only_end = jnp.full((words,), -jnp.inf).at[0].set(0.0)
    totals = scores[:, None] + jnp.where(finished[:, None], only_end, steps)
    best, places = lax.top_k(totals.reshape(-1), beams)
    parents, tokens = places // words, places % words
    history = jnp.concatenate([history[parents, 1:], tokens[:, None]], 1)
    return best, history, finished[parents] | (tokens == 0)


def decode(x: Array, keys: Array, values: Array, place: Array, w: Array) -> Any:
    """One step of decoding with a cache of keys and values that ends at `place`."""
    q, k, v = jnp.split(x @ w, 3, -1)
    keys = lax.dynamic_update_slice(keys, k[:, None], (0, place, 0))
    values = lax.dynamic_update_slice(values, v[:, None], (0, place, 0))
    scores = jnp.einsum("bd,btd->bt", q, keys) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(jnp.arange(keys.shape[1]) <= place, scores, -jnp.inf)
    return jnp.einsum("bt,btd->bd", nn.softmax(scores), values), keys, values


def nucleus(logits: Array, key: Array) -> Any:
    """Sample from the most probable tokens that hold nine tenths of the probability."""
    order = jnp.argsort(-logits, -1)
    ranked = jnp.take_along_axis(nn.softmax(logits), order, -1)
    kept = jnp.cumsum(ranked, -1) - ranked < 0.9
    masked = jnp.where(kept, jnp.log(ranked), -jnp.inf)
    chosen = jax.random.categorical(key, masked)
    return jnp.take_along_axis(order, chosen[:, None], -1)[:, 0], kept.sum(-1)


def word_pairs() -> Program:
    """Skip-grams with negative samples: rows of embeddings are read and updated."""

    def loss(parameters: Any, centres: Array, contexts: Array, others: Array) -> Array:
        x = parameters["in"][centres]
        good = (x * parameters["out"][contexts]).sum(-1)
        bad = jnp.einsum("bd,bnd->bn", x, parameters["out"][others])
        return -(nn.log_sigmoid(good) + nn.log_sigmoid(-bad).sum(-1)).mean()

    return training(loss, optax.adagrad(0.1), {"in": f32(40, 8), "out": f32(40, 8)}, s32(12), s32(12), s32(12, 3))


def bag_of_words() -> Program:
    """Sums of embeddings by segment, then a classifier."""

    def loss(parameters: Any, tokens: Array, documents: Array, labels: Array) -> Array:
        words = parameters["table"][tokens]
        sums = jax.ops.segment_sum(words, documents, 6)
        counts = jax.ops.segment_sum(jnp.ones(len(tokens)), documents, 6)
        means = sums / jnp.maximum(counts, 1.0)[:, None]
        return cross_entropy(means @ parameters["w"] + parameters["b"], labels)

    return training(loss, optax.sgd(0.5), {"table": f32(50, 6), "w": f32(6, 4), "b": f32(4)}, s32(40), s32(40), s32(6))


def experts() -> Program:
    """A step of training of a mixture of experts."""

    def loss(result: Any, target: Array) -> Array:
        out, balance = result
        return ((out - target) ** 2).mean() + 0.01 * balance

    return flax_training(Experts(), loss, optax.adam(1e-3), (f32(10, 8),), f32(10, 8))


def programs() -> dict[str, Program]:
    """Return the programs by name."""
    squared = lambda result, target: ((result - target) ** 2).mean()  # noqa: E731
    model, half = LanguageModel(32, 16), LanguageModel(32, 16, jnp.bfloat16)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return {
        "language_model": flax_training(model, next_token, clipped, (s32(2, 8),), s32(2, 8)),
        "language_model_bf16": flax_training(half, next_token, optax.adam(1e-3), (s32(2, 8),), s32(2, 8)),
        "lstm_tagger": flax_training(Tagger(), cross_entropy, optax.sgd(0.1), (s32(3, 7), s32(3)), s32(3, 7)),
        "translator": flax_training(Translator(), next_token, optax.adam(1e-3), (s32(3, 6), s32(3, 5)), s32(3, 5)),
        "connectionist": connectionist(),
        "experts": experts(),
        "state_space": flax_training(StateSpace(), squared, optax.adam(1e-3), (f32(2, 12, 5),), f32(2, 12, 5)),
        "linear_attention": inference(LinearAttention(), f32(2, 9, 5)),
        "beam_search": Program(beam_search, (f32(4), f32(4, 30), s32(4, 6), flags(4))),
        "decode_bf16": Program(decode, (bf16(3, 8), bf16(3, 10, 8), bf16(3, 10, 8), s32(), bf16(8, 24))),
        "nucleus_sampling": Program(nucleus, (f32(4, 25), jax.ShapeDtypeStruct((2,), jnp.uint32))),
        "word_pairs": word_pairs(),
        "bag_of_words": bag_of_words(),
    }
