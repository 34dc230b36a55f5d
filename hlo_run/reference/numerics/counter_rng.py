"""The counter-based generators of rng-bit-generator, bit for bit: Philox-4x32 and Threefry-2x32, vectorized in numpy."""

from __future__ import annotations

import numpy as np

from hlo_run.reference.values import Array

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
_THREEFRY_PARITY = 0x1BD11BDA
_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def philox_words(key: int, counter: int, blocks: int) -> Array:
    """Return u32[blocks, 4]: the words of consecutive 128-bit counters from `counter` on, for a 64-bit key."""
    low, high = counter & (2**64 - 1), counter >> 64
    lows = np.uint64(low) + np.arange(blocks, dtype=np.uint64)
    highs = np.uint64(high) + (lows < np.uint64(low)).astype(np.uint64)
    # 32-bit words in 64 bits, so that products keep their upper halves.
    words = [lows & _LOW, lows >> _HALF, highs & _LOW, highs >> _HALF]
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(_PHILOX_ROUNDS):
        first, second = words[0] * _PHILOX_MULTIPLIERS[0], words[2] * _PHILOX_MULTIPLIERS[1]
        words = [
            (second >> _HALF) ^ words[1] ^ np.uint64(keys[0]),
            second & _LOW,
            (first >> _HALF) ^ words[3] ^ np.uint64(keys[1]),
            first & _LOW,
        ]
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, _PHILOX_STEPS, strict=True)]
    return np.stack(words, axis=-1).astype(np.uint32)


def threefry_words(key: int, counters: Array) -> tuple[Array, Array]:
    """Return the two u32 words of each 64-bit counter, for a 64-bit key; 20 rounds."""
    keys = [key & 0xFFFFFFFF, key >> 32]
    keys.append(keys[0] ^ keys[1] ^ _THREEFRY_PARITY)
    schedule = [np.uint32(k) for k in keys]
    x = (counters & _LOW).astype(np.uint32) + schedule[0]
    y = (counters >> _HALF).astype(np.uint32) + schedule[1]
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x = x + y
            y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y
