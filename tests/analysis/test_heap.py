"""The heap: events of a schedule, peaks, packings."""

from __future__ import annotations

import random

import pytest

import hlo_run
from hlo_run.analysis.buffers.alias_analysis import analyze_aliases
from hlo_run.analysis.buffers.best_fit_heap import BestFitHeap
from hlo_run.analysis.buffers.dataflow import analyze_dataflow
from hlo_run.analysis.buffers.dataflow_values import HloValue
from hlo_run.analysis.buffers.heap_simulator import PeakHeap
from hlo_run.analysis.buffers.live_range import flatten_schedule, live_ranges
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape


def _value(number: int) -> HloValue:
    return HloValue(number, HloInstruction(f"v{number}", "iota", Shape.array("f32", (1,))), ())


@pytest.mark.parametrize("seed", range(20))
def test_packed_values_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    heap, peak = BestFitHeap(), PeakHeap()
    alive: list[tuple[HloValue, int]] = []
    lives: dict[HloValue, tuple[int, int, int]] = {}
    for time in range(120):
        if alive and rng.random() < 0.45:
            value, size = alive.pop(rng.randrange(len(alive)))
            lives[value] = (lives[value][0], time, size)
            heap.free(value, size)
            peak.free(value, size)
        else:
            value, size = _value(time), rng.choice((0, 4, 100, 256, 300, 4096))
            lives[value] = (time, 10**6, size)
            alive.append((value, size))
            heap.allocate(value, size)
            peak.allocate(value, size)
    for value, size in alive:
        heap.free(value, size)
    (packing,) = heap.pack(256)
    assert packing.size_bytes >= peak.peak_bytes
    places = [(*lives[value], packing.offsets[value]) for value in lives]
    for n, (begin, end, size, offset) in enumerate(places):
        assert offset % 256 == 0
        assert offset + size <= packing.size_bytes or size == 0
        for begin_2, end_2, size_2, offset_2 in places[n + 1 :]:
            is_apart = end <= begin_2 or end_2 <= begin or offset + size <= offset_2 or offset_2 + size_2 <= offset
            assert is_apart or not size or not size_2


def test_gap_is_filled_and_shared_places_stay_together() -> None:
    heap = BestFitHeap()
    a, b, c, d = map(_value, range(4))
    heap.allocate(a, 512)
    heap.allocate(b, 512)
    heap.free(a, 512)
    heap.allocate(c, 256)  # fits where a was
    heap.share(d, b, 512)
    heap.free(b, 512)
    heap.free(c, 256)
    heap.free(d, 512)
    (packing,) = heap.pack(256)
    assert packing.size_bytes == 1024
    assert packing.offsets[c] == packing.offsets[a]
    assert packing.offsets[d] == packing.offsets[b]


def test_values_that_share_count_once_until_the_last_is_free() -> None:
    heap = PeakHeap()
    a, b = _value(0), _value(1)
    heap.allocate(a, 100)
    heap.share(b, a, 100)
    assert heap.peak_bytes == 100
    heap.free(a, 100)
    heap.allocate(_value(2), 30)
    assert heap.peak_bytes == 130
    heap.free(b, 100)
    heap.allocate(_value(3), 40)
    assert heap.peak_bytes == 130


def test_live_ranges_of_a_chain() -> None:
    module = hlo_run.parse("""
HloModule m, is_scheduled=true
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  b = f32[4] abs(a)
  c = f32[4] bitcast(a)
  ROOT d = f32[4] add(b, c)
}""")
    analysis = analyze_aliases(analyze_dataflow(module))
    assert module.schedule is not None
    live = live_ranges(analysis, flatten_schedule(module.entry, module.schedule.__getitem__))
    found = {value.instruction.name: (bound.start, bound.end) for value, bound in live.ranges.items()}
    assert found == {"p": (0, 5), "a": (1, 4), "b": (2, 4), "d": (4, 5)}
