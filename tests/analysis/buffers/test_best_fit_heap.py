"""The packing of values into one block of memory."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.analysis.buffers.best_fit_heap import BestFitHeap
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.errors import Unsupported


def _pack(sizes: list[int], most_bytes: int = 1 << 62) -> list[int]:
    root = hlo_run.parse("ENTRY e { ROOT p = f32[4] parameter(0) }").entry.root
    heap = BestFitHeap()
    values = [HloValue(number, root, ()) for number in range(len(sizes))]
    for value, size in zip(values, sizes, strict=True):
        heap.allocate(value, size)
    for value, size in zip(values, sizes, strict=True):
        heap.free(value, size)
    return [block.size_bytes for block in heap.pack(256, most_bytes)]


def test_values_that_live_together_are_beside_each_other() -> None:
    assert _pack([100, 300]) == [612]


def test_blocks_of_limited_size() -> None:
    assert _pack([100, 300, 2000, 200], 700) == [2000, 612, 200], "a larger value has a block of its own"
    assert _pack([], 700) == [0]


@pytest.mark.parametrize("sizes", [[2**62, 2**62], [-(2**66)], [2**63]])
def test_sizes_beyond_64_bits(sizes: list[int]) -> None:
    with pytest.raises(Unsupported, match="no device can hold the buffer of p, or all buffers together"):
        _pack(sizes)


def test_of_equal_sizes_the_owner_that_lives_longest_goes_first() -> None:
    """`long` lives longer than `owner`, though what shares the memory of `owner` lives longer still."""
    root = hlo_run.parse("ENTRY e { ROOT p = f32[4] parameter(0) }").entry.root
    owner, long, sharing, large = (HloValue(number, root, ()) for number in range(4))
    heap = BestFitHeap()
    heap.allocate(long, 100)
    heap.allocate(owner, 100)
    heap.share(sharing, owner, 100)
    heap.free(owner, 100)
    heap.allocate(large, 400)
    heap.free(long, 100)
    heap.free(large, 400)
    heap.free(sharing, 100)
    (block,) = heap.pack(256)
    assert [block.offsets[value] for value in (large, long, owner, sharing)] == [0, 512, 768, 768]
