"""HighwayHash with 128 bits of result, as defined by Alakuijala, Cox and Wassenberg, "Fast keyed hash/pseudo-random function"."""

from __future__ import annotations

from collections.abc import Sequence

_MASK = (1 << 64) - 1
_LOW = 0xFFFFFFFF
_INIT_0: tuple[int, ...] = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT_1: tuple[int, ...] = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_PACKET_BYTES = 32
_FINAL_ROUNDS = 6


def highway_hash_128(data: bytes, key: tuple[int, int, int, int]) -> tuple[int, int]:
    """Return the two 64-bit halves of the hash, the low one first; `key` has four 64-bit numbers."""
    state = _State(key)
    whole = len(data) - len(data) % _PACKET_BYTES
    for start in range(0, whole, _PACKET_BYTES):
        state.update(_lanes(data[start : start + _PACKET_BYTES]))
    if whole < len(data):
        state.remainder(data[whole:])
    return state.finish()


def _lanes(packet: bytes) -> list[int]:
    return [int.from_bytes(packet[start : start + 8], "little") for start in range(0, _PACKET_BYTES, 8)]


class _State:
    """Four lanes of four 64-bit numbers."""

    def __init__(self, key: tuple[int, int, int, int]) -> None:
        self._mul0: list[int] = [*_INIT_0]
        self._mul1: list[int] = [*_INIT_1]
        self._v0 = [init ^ part for init, part in zip(_INIT_0, key, strict=True)]
        self._v1 = [init ^ _swapped(part) for init, part in zip(_INIT_1, key, strict=True)]

    def update(self, lanes: Sequence[int]) -> None:
        """Mix in one packet."""
        v0, v1, mul0, mul1 = self._v0, self._v1, self._mul0, self._mul1
        for lane in range(4):
            one = v1[lane] = (v1[lane] + mul0[lane] + lanes[lane]) & _MASK
            mul0[lane] ^= (one & _LOW) * (v0[lane] >> 32)
            zero = v0[lane] = (v0[lane] + mul1[lane]) & _MASK
            mul1[lane] ^= (zero & _LOW) * (one >> 32)
        for source, target in ((v1, v0), (v0, v1)):
            for lane in (0, 2):
                low, high = _zipped(source[lane], source[lane + 1])
                target[lane] = (target[lane] + low) & _MASK
                target[lane + 1] = (target[lane + 1] + high) & _MASK

    def remainder(self, rest: bytes) -> None:
        """Mix in the last bytes, fewer than a packet."""
        count = len(rest)
        for lane in range(4):
            self._v0[lane] = (self._v0[lane] + (count << 32) + count) & _MASK
            self._v1[lane] = _rotated(self._v1[lane] >> 32, count) << 32 | _rotated(self._v1[lane] & _LOW, count)
        words, odd = count & ~3, count & 3
        packet = bytearray(_PACKET_BYTES)
        packet[:words] = rest[:words]
        if count & 16:
            packet[28:] = rest[-4:]
        elif odd:
            tail = rest[words:]
            packet[16:19] = bytes((tail[0], tail[odd >> 1], tail[odd - 1]))
        self.update(_lanes(bytes(packet)))

    def finish(self) -> tuple[int, int]:
        """Return the hash."""
        for _ in range(_FINAL_ROUNDS):
            self.update([_swapped(self._v0[lane]) for lane in (2, 3, 0, 1)])
        low, high = (self._v0[lane] + self._mul0[lane] + self._v1[lane + 2] + self._mul1[lane + 2] for lane in (0, 1))
        return low & _MASK, high & _MASK


def _swapped(value: int) -> int:
    return value >> 32 | (value & _LOW) << 32


def _rotated(half: int, bits: int) -> int:
    return (half << bits | half >> (32 - bits)) & _LOW


def _zipped(zero: int, one: int) -> tuple[int, int]:
    """Return the bytes of two lanes mixed, so that every byte of a product reaches others."""
    low = (
        ((zero & 0xFF000000) | (one & 0xFF00000000)) >> 24
        | ((zero & 0xFF0000000000) | (one & 0xFF000000000000)) >> 16
        | zero & 0xFF0000
        | (zero & 0xFF00) << 32
        | (one & 0xFF00000000000000) >> 8
        | zero << 56 & _MASK
    )
    high = (
        ((one & 0xFF000000) | (zero & 0xFF00000000)) >> 24
        | one & 0xFF0000
        | (one & 0xFF0000000000) >> 16
        | (one & 0xFF00) << 24
        | (zero & 0xFF000000000000) >> 8
        | (one & 0xFF) << 48
        | zero & 0xFF00000000000000
    )
    return low, high
