"""The bytes of scratch memory that CUB's radix sort asks for, in version 3.1, which CUDA 13 has.

A sort of few elements needs none. A larger one takes one of two ways. The one-sweep way counts digits of 8 bits, one pass per
byte of a key. It keeps a table per pass and a row of counters per tile. The older way, which GPUs before Hopper take for keys of
1 and 2 bytes, keeps counters of every block. Both need copies of keys and values if they make several passes. A sort of several
rows keeps such copies, and the place of every row. The sizes of tiles are those of CUB's tuning for the types. The results agree
with XLA's tables for P100, V100, A100, H100 and B200.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from hlo_run.target import TargetSpec

_Sizes: TypeAlias = Mapping[tuple[int, int], int]
# (bytes of a key, bytes of a value or 0) -> elements of a tile in the one-sweep way, by compute capability.
_TILES_10: _Sizes = {
    **{(1, 0): 9728, (1, 2): 5632, (1, 4): 5760, (1, 8): 3456, (2, 0): 7680, (2, 2): 8640, (2, 4): 9216, (2, 8): 5632},
    **{(4, 0): 7296, (4, 2): 6528, (4, 4): 6528, (4, 8): 5376, (8, 0): 5760, (8, 2): 5760, (8, 4): 5760, (8, 8): 4608},
}
_TILES_9: _Sizes = {
    **{(1, 0): 9728, (1, 2): 7168, (1, 4): 7168, (1, 8): 3456, (2, 0): 9728, (2, 2): 7168, (2, 4): 6144, (2, 8): 5632},
    **{(4, 0): 7296, (4, 2): 6528, (4, 4): 6528, (4, 8): 5376, (8, 0): 5760, (8, 2): 5760, (8, 4): 5760, (8, 8): 4608},
}
_TILES_8: _Sizes = {
    **{(4, 0): 8064, (4, 2): 6528, (4, 4): 6528, (4, 8): 3072, (8, 0): 3840, (8, 2): 3840, (8, 4): 3840, (8, 8): 3840},
}
_TILES_7: _Sizes = {
    **{(4, 0): 5888, (4, 2): 5888, (4, 4): 11776, (4, 8): 2816, (8, 0): 2816, (8, 2): 2816, (8, 4): 2816, (8, 8): 2816},
}
_TILES_6: _Sizes = {
    **{(4, 0): 7424, (4, 2): 7424, (4, 4): 7424, (4, 8): 3584, (8, 0): 3584, (8, 2): 3584, (8, 4): 3584, (8, 8): 3584},
}
# The same types -> counters per SM in the older way.
_COUNTERS_7: _Sizes = {
    **{(1, 0): 640, (1, 2): 640, (1, 4): 640, (1, 8): 960, (2, 0): 1280, (2, 2): 1280, (2, 4): 1280, (2, 8): 1280},
}
_COUNTERS_6: _Sizes = {
    **{(1, 0): 640, (1, 2): 320, (1, 4): 320, (1, 8): 640, (2, 0): 1280, (2, 2): 1280, (2, 4): 1280, (2, 8): 2560},
}
_MORE_COUNTERS = 11264
# The elements of the only tile of a small sort, with elements of at most 4 bytes and of 8.
_SMALL, _SMALL_WIDE = 4864, 2304
_DIGITS, _ALIGNMENT, _MOST_AT_ONCE = 256, 256, (1 << 28) - 1


def radix_scratch_bytes(elements: int, rows: int, key_bytes: int, value_bytes: int, target: TargetSpec) -> int:
    """Return the bytes for a sort of `elements` in all, in `rows` rows of one length; `value_bytes` is 0 without values."""
    value_bytes = next((size for size in (0, 2, 4, 8) if size >= value_bytes), 8)
    copies = _aligned(elements * key_bytes) + _aligned(elements * value_bytes)
    if rows > 1:
        size = copies + _ALIGNMENT - 1
        return size + 4 - size % 4 + 4 * (rows + 1)
    if elements <= (_SMALL if max(key_bytes, value_bytes) <= 4 else _SMALL_WIDE):
        return 1
    kind = key_bytes, value_bytes
    major = target.compute_capability[0]
    counters = _COUNTERS_7 if major >= 7 else _COUNTERS_6
    if major < 9 and kind in counters:
        return copies + 4 * (counters[kind] * target.core_count + _MORE_COUNTERS) + _ALIGNMENT - 1
    tiles = {10: _TILES_10, 9: _TILES_9, 8: _TILES_8, 7: _TILES_7}.get(min(major, 10), _TILES_6)
    at_once = _MOST_AT_ONCE // tiles[kind] * tiles[kind]
    parts, blocks = -(-elements // at_once), -(-min(elements, at_once) // tiles[kind])
    tables = _aligned(parts * key_bytes * _DIGITS * 8) + _aligned(blocks * _DIGITS * 4) + _aligned(4 * parts * key_bytes)
    return tables + (copies if key_bytes > 1 else 0) + _ALIGNMENT - 1


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
