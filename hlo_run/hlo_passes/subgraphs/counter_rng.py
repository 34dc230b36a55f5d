"""Build the counter-based generators Philox-4x32 and Threefry-2x32 in HLO, all blocks at once.

The instructions are those of XLA's `prng.cc`. State words are u64 scalars; results are unsigned integers of 32 or 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.values.shape import Shape

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
_THREEFRY_PARITY = 0x1BD11BDA
_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def philox(
    b: HloBuilder, key: HloValue, counter: tuple[HloValue, HloValue], bits: int, dims: Sequence[int]
) -> tuple[HloValue, tuple[HloValue, HloValue]]:
    """Return random integers of 32 or 64 `bits` with shape `dims`, and the advanced counter (low and high half of 128 bits).

    The four words of a block are four consecutive elements, or two of 64 bits.
    """
    count = math.prod(dims)
    per_block = 128 // bits
    blocks = -(-count // per_block)
    low, high = counter
    words = _philox_words(b, key, _add_wide(b, counter, b.iota(Shape.array("u64", (blocks,)))))
    if bits == 64:
        words = [_join(b, words[0], words[1]), _join(b, words[2], words[3])]
    columns = [b.reshape(word, (blocks, 1)) for word in words]
    flat = b.reshape(b.concatenate(columns, 1), (blocks * per_block,))
    if count != blocks * per_block:
        flat = b.slice(flat, [(0, count)])
    return b.reshape(flat, dims), _add_wide(b, (low, high), b.constant(blocks, "u64"))


def _add_wide(b: HloBuilder, counter: tuple[HloValue, HloValue], amount: HloValue) -> tuple[HloValue, HloValue]:
    """Add a u64 to a 128-bit number of two u64 halves (low, high)."""
    low, high = (b.broadcast(half, amount.shape.dims) if amount.shape.rank else half for half in counter)
    total = low + amount
    return total, b.select(total < low, high + 1, high)


def _philox_words(b: HloBuilder, key: HloValue, counters: tuple[HloValue, HloValue]) -> list[HloValue]:
    words = [half for counter in counters for half in _split(b, counter)]
    keys = list(_split(b, key))
    for number in range(_PHILOX_ROUNDS):
        if number:
            keys = [k + step for k, step in zip(keys, _PHILOX_STEPS, strict=True)]
        (first_low, first_high), (second_low, second_high) = (
            _split(b, b.convert(words[2 * half], "u64") * _PHILOX_MULTIPLIERS[half]) for half in range(2)
        )
        words = [
            second_high ^ words[1] ^ keys[0],
            second_low,
            first_high ^ words[3] ^ keys[1],
            first_low,
        ]
    return words


def three_fry(b: HloBuilder, key: HloValue, counter: HloValue, bits: int, dims: Sequence[int]) -> tuple[HloValue, HloValue]:
    """Return random integers of 32 or 64 `bits` with shape `dims`, and the advanced counter.

    A 64-bit element takes a block. Two 32-bit elements share a block; they are adjacent in dimension `split_dim(dims)`.
    """
    if bits == 64:
        low, high = _three_fry_words(b, key, _consecutive(b, counter, dims))
        return _join(b, low, high), counter + math.prod(dims)
    split = split_dim(dims)
    halved = [(size + 1) // 2 if dim == split else size for dim, size in enumerate(dims)]
    pair = _three_fry_words(b, key, _consecutive(b, counter, halved))
    return interleave(b, pair, dims, split), counter + math.prod(halved)


def _consecutive(b: HloBuilder, counter: HloValue, dims: Sequence[int]) -> HloValue:
    """Return `counter` plus the row-major index of each element."""
    if not dims:
        return counter
    return counter + b.reshape(b.iota(Shape.array("u64", (math.prod(dims),))), dims)


def _three_fry_words(b: HloBuilder, key: HloValue, counters: HloValue) -> tuple[HloValue, HloValue]:
    keys = list(_split(b, key))
    keys.append(keys[0] ^ keys[1] ^ _THREEFRY_PARITY)
    x, y = _split(b, counters)
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x = x + y
            y = b.or_(b.shift_left(y, rotation), b.shift_right_logical(y, 32 - rotation)) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + (group + 1)
    return x, y


def split_dim(dims: Sequence[int]) -> int:
    """Return the first even dimension, else the largest (the first of equals); -1 for a scalar."""
    if not dims:
        return -1
    even = next((dim for dim, size in enumerate(dims) if size % 2 == 0), None)
    return list(dims).index(max(dims)) if even is None else even


def interleave(b: HloBuilder, pair: tuple[HloValue, HloValue], dims: Sequence[int], split: int) -> HloValue:
    """Return the elements of two arrays alternately along `split`, cut to `dims`; for a scalar (split -1) the first array."""
    if split < 0:
        return pair[0]
    halved = pair[0].shape.dims
    thin = (*halved[: split + 1], 1, *halved[split + 1 :])
    both = b.concatenate([b.reshape(value, thin) for value in pair], split + 1)
    whole = b.reshape(both, [2 * size if dim == split else size for dim, size in enumerate(halved)])
    return whole if whole.shape.dims == tuple(dims) else b.slice(whole, [(0, size) for size in dims])


def _split(b: HloBuilder, wide: HloValue) -> tuple[HloValue, HloValue]:
    """Return the low and high u32 halves of a u64."""
    return b.convert(wide, "u32"), b.convert(b.shift_right_logical(wide, 32), "u32")


def _join(b: HloBuilder, low: HloValue, high: HloValue) -> HloValue:
    return b.or_(b.convert(low, "u64"), b.shift_left(b.convert(high, "u64"), 32))
