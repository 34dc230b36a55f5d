"""Decides which values share memory: parameters, constants and results first, then one packed block for all temporaries.

Mirrors XLA's `BufferAssigner`, with the same order of decisions and the same numbering of allocations.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from hlo_run.analysis.buffers.alias_analysis import AliasAnalysis, HloBuffer
from hlo_run.analysis.buffers.best_fit_heap import BestFitHeap
from hlo_run.analysis.buffers.buffer_sharing import BufferSharing
from hlo_run.analysis.buffers.dataflow_values import HloValue, buffer_size_bytes
from hlo_run.analysis.buffers.heap_simulator import simulate
from hlo_run.analysis.buffers.live_range import LiveRanges
from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import ShapeIndex
from hlo_run.hlo.verify.config import aliases
from hlo_run.runtime.concurrent_lives import ConcurrentOccupancy
from hlo_run.runtime.interference import Occupancy
from hlo_run.runtime.planned_allocation import PlannedAllocation

ALIGNMENT_BYTES = 256
_ANY_SIZE = (1 << 63) - 1


class Blocks(Struct, frozen=True):
    """The packing of temporaries: the memory space for the default space, and the most bytes of a block (-1: any).

    `ordering`: of thunks, as in `CompileOptions.thunk_ordering`; values share memory only where it allows it.
    """

    color: int = 0
    most_bytes: int = -1
    ordering: str = "schedule"


def plan_allocations(analysis: AliasAnalysis, live: LiveRanges, blocks: Blocks | None = None) -> list[PlannedAllocation]:
    """Return the allocations of a module in their final order, with the blocks of temporaries last."""
    blocks = blocks or Blocks()
    planned = _Assigner(analysis, live, blocks).run()
    for allocation in planned:
        if allocation.is_temp and not allocation.color:
            allocation.color = blocks.color
    return planned


class _Assigner:
    def __init__(self, analysis: AliasAnalysis, live: LiveRanges, blocks: Blocks) -> None:
        self._analysis = analysis
        self._live = live
        self._most_bytes = blocks.most_bytes if blocks.most_bytes >= 0 else _ANY_SIZE
        self._is_concurrent = blocks.ordering != "schedule"
        self._module = analysis.dataflow.module
        self._sharing = BufferSharing()
        self._live_out = analysis.live_out()
        self._aliased = {(number, index) for _, number, index, _ in aliases(self._module)}
        self._allocations: list[PlannedAllocation] = []
        self._home: dict[HloBuffer, PlannedAllocation] = {}
        self._occupancy = (
            ConcurrentOccupancy(analysis.dataflow, has_regions=blocks.ordering == "regions")
            if self._is_concurrent
            else Occupancy(live, self._sharing)
        )
        self._packed: list[HloValue] = []

    def run(self) -> list[PlannedAllocation]:
        embedded = set(self._analysis.dataflow.embedded)
        order = self._sorted(self._analysis.buffers)
        for buffer in order:
            if buffer.values[0].instruction.parent not in embedded:
                self._assign(buffer)
        self._pack()
        for buffer in sorted(self._analysis.buffers, key=lambda buffer: buffer.id):
            if buffer.values[0].instruction.parent in embedded:
                self._new(buffer, is_constant=_is_constant(buffer)).is_thread_local = not _is_constant(buffer)
        for buffer in self._live_out:
            self._home[buffer].is_live_out = True
        return _combined(self._allocations, self._most_bytes)

    def _sorted(self, buffers: Iterable[HloBuffer]) -> list[HloBuffer]:
        """Return the buffers ordered by size (largest first), live-out buffers first, then position, callers first."""
        places: dict[HloInstruction, int] = {}
        for computation in reversed(computation_post_order(self._module)):
            if not computation.is_fusion:
                for instruction in computation.post_order():
                    places[instruction] = len(places)
        return sorted(
            buffers,
            key=lambda b: (-_size(b), b not in self._live_out, min(places[value.instruction] for value in b.values), b.id),
        )

    def _assign(self, buffer: HloBuffer) -> None:
        if _is_constant(buffer):
            self._new(buffer, is_constant=True)
            return
        parameter = next((v for v in buffer.values if v.instruction.opcode == "parameter" and self._is_entry(v)), None)
        if parameter is not None:
            number = parameter.instruction.parameter_number
            made = self._new(buffer, parameter=(number, parameter.index), is_aliased=(number, parameter.index) in self._aliased)
            if made.is_aliased:
                self._occupancy.add_allocation(made, buffer.values)
        elif any(value.shape.is_tuple for value in buffer.values):
            self._new(buffer, is_tuple=True)
        elif not self._reuse(buffer):
            if buffer in self._live_out or self._is_concurrent:
                self._occupancy.add_allocation(self._new(buffer), buffer.values)
            else:
                self._packed += buffer.values

    def _is_entry(self, value: HloValue) -> bool:
        return value.instruction.parent is self._module.entry

    def _new(
        self,
        buffer: HloBuffer,
        parameter: tuple[int, ShapeIndex] | None = None,
        is_aliased: bool = False,
        is_constant: bool = False,
        is_tuple: bool = False,
    ) -> PlannedAllocation:
        made = PlannedAllocation(
            _size(buffer), dict.fromkeys(buffer.values, 0), parameter, is_aliased, is_constant, is_tuple=is_tuple
        )
        made.color = buffer.values[0].color
        self._allocations.append(made)
        self._home[buffer] = made
        return made

    def _reuse(self, buffer: HloBuffer) -> bool:
        """Put a buffer into an allocation that is free while it lives. Returns False if no allocation fits.

        Allocations of the operands come first, then the latest allocation. A live-out buffer needs one of its exact size.
        """
        size, exact = _size(buffer), buffer in self._live_out
        for place in self._occupancy.free_for(buffer.values, self._operand_homes(buffer)):
            if place.color == buffer.values[0].color and place.size_bytes >= size and (not exact or place.size_bytes == size):
                place.offsets.update(dict.fromkeys(buffer.values, 0))
                self._home[buffer] = place
                self._occupancy.add_values(place, buffer.values)
                return True
        return False

    def _operand_homes(self, buffer: HloBuffer) -> list[PlannedAllocation]:
        trees = self._analysis.dataflow.trees
        operands = [trees[o].value for value in buffer.values for o in value.instruction.operands]
        homes = [self._home.get(self._analysis.buffer_of[operand]) for operand in operands]
        return [home for home in dict.fromkeys(homes) if home is not None and home.is_reusable]

    def _pack(self) -> None:
        """Pack the values of each memory space into blocks, one unless their size is limited."""
        spaces: dict[int, list[HloValue]] = {}
        for value in self._packed:
            spaces.setdefault(value.color, []).append(value)
        for color, values in sorted(spaces.items()):
            heap = BestFitHeap()
            simulate(heap, values, self._analysis, self._live, buffer_size_bytes, self._sharing)
            for packing in heap.pack(ALIGNMENT_BYTES, self._most_bytes):
                self._allocations.append(PlannedAllocation(packing.size_bytes, packing.offsets, color=color))


def _size(buffer: HloBuffer) -> int:
    return max(buffer_size_bytes(value) for value in buffer.values)


def _is_constant(buffer: HloBuffer) -> bool:
    return any(value.instruction.opcode == "constant" for value in buffer.values)


def _combined(allocations: list[PlannedAllocation], most_bytes: int) -> list[PlannedAllocation]:
    """Return the allocations with the temporary ones merged into blocks of one memory space and of less than `most_bytes`.

    The blocks come last. The order is XLA's, which is that of `std::partition`.
    """
    order = list(allocations)
    first, last = 0, len(order)
    while True:
        while first < last and not order[first].is_temp:
            first += 1
        while first < last and order[last - 1].is_temp:
            last -= 1
        if first >= last:
            break
        order[first], order[last - 1] = order[last - 1], order[first]
    kept, temps = order[:first], order[first:]
    blocks: list[PlannedAllocation] = []
    latest: dict[int, PlannedAllocation] = {}
    for temp in temps:
        block = latest.get(temp.color)
        if block is None or block.size_bytes + temp.size_bytes >= most_bytes:
            latest[temp.color] = temp
            blocks.append(temp)
        else:
            base = -(-block.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            block.offsets.update({value: base + offset for value, offset in temp.offsets.items()})
            block.size_bytes = base + temp.size_bytes
    return kept + blocks
