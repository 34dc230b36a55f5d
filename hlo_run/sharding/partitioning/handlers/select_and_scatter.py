"""Handler of select-and-scatter: each device computes the windows that overlap its tile, and keeps what falls into the tile."""

from __future__ import annotations

import math

from msgspec import Struct

from hlo_run.hlo.graph import HloComputation
from hlo_run.hlo.values.attribute_values import Window, WindowDim
from hlo_run.records import replace
from hlo_run.sharding.partitioning.halo import exchange_valid
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.offsets import Combined, Linear, Offset, minus, tile_ordinals
from hlo_run.sharding.partitioning.state import Part


def select_and_scatter(v: Visit) -> Part:
    """Handle a select-and-scatter of f32 or bf16 whose selection is one comparison: the padding then loses against all data."""
    loser = _never_selected(v.hlo.called["select"][0])
    if v.is_whole or v.leaf.tiles is None or v.hlo.shape.element_type not in ("f32", "bf16") or loser is None:
        return v.by_default()
    b, leaf, state = v.b, v.leaf, v.state
    data, source = v.parts[0].reshard(leaf), v.parts[1].reshard(leaf)
    init = v.parts[2].replicate().hlo
    fill = b.constant(loser, v.hlo.shape.element_type)
    ordinals = tile_ordinals(b, leaf, state.partition_id)
    plans: dict[int, _Dim] = {}
    wide, narrow = data.hlo, source.hlo
    for dim, window in enumerate(v.hlo.window.dims):
        count = leaf.dims[dim]
        if count == 1:
            continue
        plan = _Dim.of(window, data.hlo.shape.dims[dim], source.hlo.shape.dims[dim], count)
        if plan.first.at(0) < 0:  # XLA goes on, and takes the elements of other windows
            return v.by_default()
        plans[dim] = plan
        ordinal = ordinals[dim]
        first = plan.first.emit(b, ordinal)
        windows = minus(plan.limit, plan.first).most(0, count)
        found = exchange_valid(
            state, narrow, source.base, plan.source_left, plan.source_right, 0, plan.limit.at(count - 1), windows, dim, leaf,
            first, init, ordinal, masks=True, masks_compact=False,
        )  # fmt: skip
        if found is None:
            return v.by_default()
        narrow = found
        begin = Linear.of(window.stride, 0).emit(b, first)
        found = exchange_valid(
            state, wide, data.base, plan.data_left, plan.data_right, window.pad_low, plan.reach(plan.limit.at(count - 1)),
            plan.reach(windows), dim, leaf, begin, fill, ordinal, masks=True, masks_compact=False,
        )  # fmt: skip
        if found is None:
            return v.by_default()
        wide = found
    made = b.clone(v.hlo, wide.shape, [wide, narrow, init])
    entries = [replace(w, pad_low=0, pad_high=0) if dim in plans else w for dim, w in enumerate(v.hlo.window.dims)]
    made.attrs["window"] = Window(tuple(entries))
    if made.shape.dims == data.hlo.shape.dims:
        return v.made(made)
    zero = b.constant(0, "s32")
    starts = [zero] * len(entries)
    for dim, plan in plans.items():
        starts[dim] = plan.data_left.emit(b, ordinals[dim])
        if plan.data_left.at(0) != plan.pad_low:
            starts[dim] = b.select(b.compare(zero, ordinals[dim], "EQ"), b.constant(plan.pad_low, "s32"), starts[dim])
    return v.made(b.dynamic_slice(made, starts, data.hlo.shape.dims))


def _never_selected(selection: HloComputation) -> float | None:
    """Return the number that loses every comparison of the selection; None unless the selection compares its parameters."""
    root = selection.root
    if root.opcode != "compare" or any(operand.opcode != "parameter" for operand in root.operands):
        return None
    first, second = (operand.parameter_number for operand in root.operands)
    sign = {"GE": -1, "GT": -1, "LE": 1, "LT": 1}.get(root.comparison_direction)
    if sign is None or first == second:
        return None
    return sign * math.inf * (1 if first == 0 else -1)


class _Dim(Struct, frozen=True):
    """The plan of one divided dimension: the `first` window that overlaps a tile, the one behind the last, and the halos."""

    first: Linear
    limit: Linear
    source_left: Offset
    source_right: Offset
    data_left: Offset
    data_right: Offset
    pad_low: int
    stride: int
    size: int

    @staticmethod
    def of(window: WindowDim, shard: int, source_shard: int, count: int) -> _Dim:
        """Return the plan for tiles of `shard` elements of the data and `source_shard` of the source."""
        low, stride = window.pad_low, window.stride
        # Gaps between windows count as parts of them.
        size = max(window.size, stride)
        first = Linear.of(shard, low - size + stride, stride)
        limit = Linear.of(shard, shard + low + stride - 1, stride)
        step = Linear(0, stride)
        return _Dim(
            first,
            limit,
            minus(Linear.of(source_shard, 0), first),
            minus(limit, Linear.of(source_shard, source_shard)),
            minus(Linear.of(shard, low), Combined("multiply", first, step)),
            minus(Combined("multiply", limit, step), Linear.of(shard, shard + stride + low - size)),
            low,
            stride,
            size,
        )

    def reach(self, windows: int) -> int:
        """Return how many elements a number of windows reach over."""
        return (windows - 1) * self.stride + self.size
