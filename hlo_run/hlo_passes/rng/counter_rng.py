"""Build the counter-based generators Philox-4x32 and Threefry-2x32 in HLO, all blocks at once.

The instructions are those of XLA's `prng.cc`, in its order. Keys are u64 scalars; results are unsigned integers of 32 or 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.values.shape import Shape

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
_THREEFRY_PARITY = 0x1BD11BDA
_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def philox(b: HloBuilder, key: HloValue, state: HloValue, bits: int, dims: Sequence[int]) -> tuple[HloValue, HloValue]:
    """Return random integers of 32 or 64 `bits` with shape `dims`, and the advanced counter.

    The counter is a u64[2] of the low and the high half of 128 bits. The four words of a block are four consecutive elements,
    or two of 64 bits.
    """
    count = math.prod(dims)
    per_block = 128 // bits
    blocks = -(-count // per_block)
    keys = _split(b, key)
    low, high = (b.reshape(b.slice(state, [(n, n + 1)]), ()) for n in range(2))
    halves = (_split(b, low), _split(b, high))
    iota = b.iota(Shape.array("u64", (blocks,)))
    counter = [_join(b, *half) for half in halves]
    counters = _add_wide(b, counter, iota)
    first = [half for wide in counters for half in _split(b, wide)]
    after = [b.reshape(half, (1,)) for half in _add_wide(b, counter, b.constant(blocks, "u64"))]
    new_state = b.concatenate(after, 0)
    words = _philox_words(b, keys, first)
    if bits == 64:
        words = [_join(b, words[0], words[1]), _join(b, words[2], words[3])]
    columns = [b.reshape(word, (blocks, 1)) for word in words]
    flat = b.slice(b.reshape(b.concatenate(columns, 1), (blocks * per_block,)), [(0, count)])
    return b.reshape(flat, dims), new_state


def _add_wide(b: HloBuilder, counter: Sequence[HloValue], amount: HloValue) -> tuple[HloValue, HloValue]:
    """Add a u64 to a 128-bit number of two scalar u64 halves (low, high)."""
    low, high = counter
    total = low + amount
    one = b.constant(1, "u64")
    wraps = total < low
    return total, b.select(wraps, b.broadcast(high + one, amount.shape.dims), b.broadcast(high, amount.shape.dims))


def _philox_words(b: HloBuilder, keys: tuple[HloValue, HloValue], words: list[HloValue]) -> list[HloValue]:
    for _ in range(_PHILOX_ROUNDS):
        products = [_multiply(b, words[2 * half], _PHILOX_MULTIPLIERS[half]) for half in range(2)]
        (first_low, first_high), (second_low, second_high) = products
        even = second_high ^ words[1] ^ keys[0]
        words = [even, second_low, first_high ^ words[3] ^ keys[1], first_low]
        # Also after the last round, as in XLA: unused instructions take part in the numbers of names.
        keys = keys[0] + _PHILOX_STEPS[0], keys[1] + _PHILOX_STEPS[1]
    return words


def _multiply(b: HloBuilder, word: HloValue, factor: int) -> tuple[HloValue, HloValue]:
    """Return the low and high u32 halves of a product of 32-bit numbers."""
    product = b.convert(word, "u64") * factor
    low = b.convert(product, "u32")
    return low, b.convert(b.shift_right_logical(product, 32), "u32")


def three_fry(b: HloBuilder, key: HloValue, counter: HloValue, bits: int, dims: Sequence[int]) -> tuple[HloValue, HloValue]:
    """Return random integers of 32 or 64 `bits` with shape `dims`, and the advanced counter, a u64[1].

    A 64-bit element takes a block. Two 32-bit elements share a block; they are adjacent in the dimension that `halves` divides.
    """
    if bits == 64:
        inputs, after = _three_fry_inputs(b, counter, dims)
        return _join(b, *_three_fry_words(b, _split(b, key), inputs)), after
    inputs, after = _three_fry_inputs(b, counter, halves(dims).half)
    return interleave(b, _three_fry_words(b, _split(b, key), inputs), dims), after


def _three_fry_inputs(b: HloBuilder, counter: HloValue, dims: Sequence[int]) -> tuple[tuple[HloValue, HloValue], HloValue]:
    """Return the halves of `counter` plus the row-major index of each element, and the counter after them."""
    inputs = b.broadcast(b.reshape(counter, ()), dims)
    step = 1
    for dimension in reversed(range(len(dims))):
        if dims[dimension] > 1:
            inputs = inputs + b.iota(Shape.array("u64", tuple(dims)), dimension) * step
            step *= dims[dimension]
    after = counter + math.prod(dims)
    return _split(b, inputs), after


def _three_fry_words(
    b: HloBuilder, key: tuple[HloValue, HloValue], words: tuple[HloValue, HloValue]
) -> tuple[HloValue, HloValue]:
    keys = [b.bitcast_convert(half, "u32") for half in key]
    keys.append(b.constant(_THREEFRY_PARITY, "u32") ^ keys[0] ^ keys[1])
    x, y = words[0] + keys[0], words[1] + keys[1]
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x = x + y
            y = x ^ b.or_(b.shift_left(y, rotation), b.shift_right_logical(y, 32 - rotation))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + (group + 1)
    return x, y


class Halves(NamedTuple):
    """The layout of numbers that are made in pairs: dimension `place` has size 1 in `half` and 2 in `pair`."""

    half: tuple[int, ...]
    pair: tuple[int, ...]
    place: int


def halves(dims: Sequence[int]) -> Halves:
    """Return the dimensions of either half of an array: the first even dimension, else the largest, has half its size.

    The new dimension comes after it. A scalar is the first of a pair.
    """
    if not dims:
        return Halves((1,), (2,), 0)
    even = next((dim for dim, size in enumerate(dims) if size % 2 == 0), None)
    split = list(dims).index(max(dims)) if even is None else even
    before, after = (*dims[:split], -(-dims[split] // 2)), tuple(dims[split + 1 :])
    return Halves((*before, 1, *after), (*before, 2, *after), split + 1)


def interleave(b: HloBuilder, pair: tuple[HloValue, HloValue], dims: Sequence[int]) -> HloValue:
    """Return the elements of two arrays of the shape `halves(dims).half` alternately, cut to `dims`."""
    if not dims:
        return b.reshape(pair[0], ())
    place = halves(dims).place
    both = b.concatenate(pair, place)
    whole = b.reshape(both, [size + size % 2 if dim == place - 1 else size for dim, size in enumerate(dims)])
    return whole if whole.shape.dims == tuple(dims) else b.slice(whole, [(0, size) for size in dims])


def _split(b: HloBuilder, wide: HloValue) -> tuple[HloValue, HloValue]:
    """Return the low and high u32 halves of a u64."""
    width = b.constant(32, "u64")
    low = b.convert(wide, "u32")
    return low, b.convert(b.shift_right_logical(wide, width), "u32")


def _join(b: HloBuilder, low: HloValue, high: HloValue) -> HloValue:
    wide = b.convert(low, "u64")
    return b.or_(wide, b.shift_left(b.convert(high, "u64"), b.constant(32, "u64")))
