"""Give every device the elements that its tile of a windowed computation reads: pads, slices, reductions of windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import Window, WindowDim
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.records import replace
from hlo_run.sharding.partitioning.halo import exchange_valid
from hlo_run.sharding.partitioning.masks import fill_excess
from hlo_run.sharding.partitioning.offsets import Linear, minus, tile_ordinals
from hlo_run.sharding.partitioning.state import Part, key_of
from hlo_run.sharding.values.make import device_array, listed_tiles, shard_shape
from hlo_run.sharding.values.replicate import replicate_dims

TRIVIAL = WindowDim()
_NOTHING = Linear(0)


class Windowed(Struct, frozen=True):
    """The part that a device reads: `value`, with the remaining window, and the begin of its result in the window's result."""

    value: HloInstruction
    window: Window
    starts: tuple[HloInstruction, ...] | None = None


class _Dim(Struct):
    """The plan of one dimension: `windows` per device, elements per device, and what lies in front and behind."""

    trivial: bool
    tiles: int
    shard: int = 0
    padded: int = 0
    reach: int = 0
    left: int = 0
    exchange_base: int = 0
    slice_start: int = 0
    slice_limit: int = 0
    needs_mask: bool = False
    middle: tuple[int, int] = (-1, -1)
    offset: HloInstruction | None = None
    ordinal: HloInstruction | None = None
    start: Linear = _NOTHING
    limit: Linear = _NOTHING
    window: WindowDim = TRIVIAL
    output_start: HloInstruction | None = None


def windowed(
    part: Part, window: Window, target: SingleSharding, fill: HloInstruction, masks: bool = True, masks_compact: bool = False
) -> Windowed | None:
    """Return the elements that each device needs for its tile, under `target`, of a result by `window` (one entry per dimension).

    `fill` is the padding. Returns None if the window's strides and dilations are not supported. Windows of equal padding share
    the steps; XLA ignores the padding there, so two reductions of one array get the same one.
    """
    padding = np.asarray(fill.constant_array).tobytes() if fill.opcode == "constant" else fill
    key = part.hlo, key_of(part.sharding), key_of(target), window, part.state.devices, padding
    found = part.state.windows.get(key)
    if isinstance(found, Windowed):
        return found
    made = _windowed(part, window, target, fill, masks, masks_compact)
    if made is not None:
        part.state.windows[key] = made
    return made


def _windowed(
    part: Part, window: Window, target: SingleSharding, fill: HloInstruction, masks: bool, masks_compact: bool
) -> Windowed | None:
    plan = _Plan(part, window, target, fill)
    if not plan.make():
        return None
    source = part.leaf
    kept = replicate_dims(target, [dim for dim, w in enumerate(window.dims) if not _is_trivial(w)])
    if source.is_replicated or (not target.is_same(source) and kept.is_same(source)):
        return plan.pad_and_slice()
    if not target.is_same(source):
        return windowed(part.reshard(target), window, target, fill)
    if math.prod(dim.tiles for dim in plan.dims) == 1:
        return Windowed(part.hlo, plan.window(), plan.output_starts())
    found = plan.exchange(masks, masks_compact)
    if found is not None:
        return found
    if kept.is_same(source):
        return plan.pad_and_slice()
    return windowed(part.reshard(kept), window, target, fill)


def _is_trivial(dim: WindowDim) -> bool:
    return (dim.size, dim.stride, dim.pad_low, dim.pad_high, dim.base_dilation, dim.window_dilation) == (1, 1, 0, 0, 1, 1)


class _Plan:
    def __init__(self, part: Part, window: Window, target: SingleSharding, fill: HloInstruction) -> None:
        self._part, self._window, self._target, self._fill = part, window, target, fill
        self._b = part.builder
        self.dims: list[_Dim] = []
        self._trimmed = False
        self._cuts = False

    def make(self) -> bool:
        ordinals = tile_ordinals(self._b, self._target, self._part.state.partition_id)
        for number, dim in enumerate(self._window.dims):
            size = self._part.base.dims[number]
            made = _Dim(_is_trivial(dim), self._target.dims[number], window=dim, padded=size, reach=size, exchange_base=size)
            made.slice_limit = self._part.hlo.shape.dims[number]
            made.ordinal = ordinals[number]
            self.dims.append(made)
            if made.tiles == 1:
                made.offset = self._b.constant(0, "s32")
                made.shard = size
            elif made.trivial:
                made.shard = -(-size // made.tiles)
                made.padded = made.reach = made.shard * made.tiles
                made.offset = self._b.binary("multiply", ordinals[number], self._b.constant(made.shard, "s32"))
            elif not self._divided(number, made):
                return False
        return True

    def _divided(self, number: int, made: _Dim) -> bool:
        b, wd = self._b, self._window.dims[number]
        size, own = self._part.base.dims[number], self._part.hlo.shape.dims[number]
        count = made.tiles
        dilated = 1 + (wd.size - 1) * wd.window_dilation
        full = 1 + (size - 1) * wd.base_dilation + wd.pad_high + wd.pad_low
        if size == 0 or full <= wd.pad_low:  # no window reads an element; XLA fails
            return False
        windows = (full - dilated) // wd.stride + 1
        per_tile = -(-windows // count)
        input_size = own
        few = windows < count and wd.window_dilation == 1 and wd.base_dilation == 1
        if few:
            useful = -(-(size + wd.pad_high) // input_size)
            if useful < count:
                count = max(useful, windows)
                self._trimmed = True
                made.tiles = count
                if count == 1:
                    made.offset = b.constant(0, "s32")
                    made.shard = size
                    made.window = replace(wd, pad_high=size + wd.pad_high - own)
                    return True
                made.exchange_base = input_size * count
                if input_size * count > size and wd.pad_high > 0:
                    made.needs_mask = True
                elif wd.pad_high < 0 and full - wd.pad_low < input_size:
                    input_size = full - wd.pad_low
                    made.exchange_base = input_size * count
                    made.slice_limit = input_size
                    self._cuts = True
        # XLA divides towards zero, and fails on what is left of a negative padding.
        made.left = wd.pad_low // wd.base_dilation
        low = wd.pad_low - made.left * wd.base_dilation
        if few:
            count, input_size = self._skip_middle(made, count, windows, input_size, full)
        # Without devices or elements left, XLA fails.
        if count <= 0 or input_size <= 0 or full < dilated or (wd.stride != 1 and wd.stride * per_tile % wd.base_dilation):
            return False
        step = wd.stride * per_tile
        made.start = Linear.of(step, wd.base_dilation - 1 - low, wd.base_dilation)
        dilated_shard = wd.stride * (per_tile - 1) + dilated
        made.limit = Linear.of(step, dilated_shard + wd.base_dilation - 1 - low, wd.base_dilation)
        assert made.ordinal is not None
        made.offset = made.start.emit(b, made.ordinal)
        made.shard = minus(made.limit, made.start).most(0, count)
        made.padded = made.limit.at(count - 1)
        # XLA forgets that the last tile is cut as large as the others.
        made.reach = max(made.padded, made.start.at(count - 1) + made.shard)
        made.window = replace(wd, pad_low=low, pad_high=0)
        if wd.base_dilation != 1:
            self._dilate(made, wd, count, per_tile, dilated)
        return True

    def _skip_middle(self, made: _Dim, count: int, windows: int, input_size: int, full: int) -> tuple[int, int]:
        """Leave out devices without results before the first that has needed elements. Return the devices and elements left."""
        b = self._b
        empty = _divide(-made.left, input_size) - windows
        if empty <= 0:
            return count, input_size
        # XLA takes what lies beyond the whole array for elements here.
        made.needs_mask |= count * input_size > made.reach and made.window.pad_high > 0
        count -= empty
        made.middle = (windows, empty)
        self._trimmed = True
        made.tiles = count
        made.left += empty * input_size
        made.exchange_base = input_size * count
        assert made.ordinal is not None
        border = b.constant(windows, "s32")
        on_left = b.compare(made.ordinal, border, "LT")
        made.ordinal = b.select(on_left, made.ordinal, b.binary("subtract", made.ordinal, border))
        if -made.left > input_size * (count - 1):
            skip = -made.left - input_size * (count - 1)
            input_size -= skip
            made.left += skip * count
            made.slice_start = skip
            self._cuts = True
            if full < input_size:
                skip = input_size - full
                made.slice_limit -= skip
                made.left += skip * (count - 1)
                input_size = full
            made.exchange_base = input_size * count
        return count, input_size

    def _dilate(self, made: _Dim, wd: WindowDim, count: int, per_tile: int, dilated: int) -> None:
        """Set the padding of the window for dilated elements, and where the result begins if it differs between devices."""
        b, low = self._b, made.window.pad_low

        def first(tile: int) -> int:
            return made.start.at(tile) * wd.base_dilation + low - wd.stride * per_tile * tile

        wanted = wd.stride * (per_tile - 1) + dilated
        high = max(0, *(wanted - (first(tile) + (made.shard - 1) * wd.base_dilation + 1) for tile in range(count)))
        made.window = replace(made.window, pad_high=high)
        if wd.stride != 1:
            return
        starts = [first(tile) for tile in range(count)]
        most = max(starts)
        if any(start != low for start in starts[1:]):
            assert made.ordinal is not None
            begin = made.start.emit(b, made.ordinal)
            reached = Linear.of(wd.base_dilation, low - most).emit(b, begin)
            required = Linear.of(per_tile, 0).emit(b, made.ordinal)
            made.output_start = b.binary("subtract", required, reached)
        made.window = replace(made.window, pad_low=most)

    def window(self) -> Window:
        return Window(tuple(dim.window for dim in self.dims))

    def output_starts(self) -> tuple[HloInstruction, ...] | None:
        if all(dim.output_start is None for dim in self.dims):
            return None
        zero = self._b.constant(0, "s32")
        return tuple(dim.output_start or zero for dim in self.dims)

    def pad_and_slice(self) -> Windowed:
        """Pad the whole value, and slice each device's elements from it."""
        part, b = self._part, self._b
        edges: list[tuple[int, int, int]] = []
        left: list[WindowDim] = []
        for number, dim in enumerate(self.dims):
            if self._target.dims[number] == 1 or (dim.trivial and not part.leaf.is_replicated):
                edges.append((0, 0, 0))
                left.append(dim.window)
            else:
                edges.append((dim.left, dim.reach - dim.left - part.base.dims[number], 0))
                # XLA forgets the padding between and around dilated elements here.
                left.append(dim.window)
        # XLA forgets a padding that cuts as much on one side as it adds on the other.
        value = b.pad(part.hlo, self._fill, edges) if any(map(any, edges)) else part.hlo
        offsets = [dim.offset for dim in self.dims if dim.offset is not None]
        found = b.dynamic_slice(value, offsets, [dim.shard for dim in self.dims])
        return Windowed(found, Window(tuple(left)), self.output_starts())

    def exchange(self, masks: bool, masks_compact: bool) -> Windowed | None:
        part, b = self._part, self._b
        target = self._trimmed_target() if self._trimmed else self._target
        base = replace(part.base, dims=tuple(dim.exchange_base for dim in self.dims))
        value = part.hlo
        masked = [number for number, dim in enumerate(self.dims) if dim.needs_mask]
        if masked:
            value = fill_excess(part, self._fill, masked).hlo
        if self._cuts:
            value = b.slice(value, [dim.slice_start for dim in self.dims], [dim.slice_limit for dim in self.dims])
        for number, dim in enumerate(self.dims):
            count = target.dims[number]
            if count == 1 or dim.trivial:
                continue
            size = -(-base.dims[number] // count)
            left = minus(Linear.of(size, dim.left), dim.start)
            right = minus(dim.limit, Linear.of(size, size + dim.left))
            assert dim.offset is not None
            assert dim.ordinal is not None
            found = exchange_valid(
                part.state, value, base, left, right, dim.left, dim.padded, dim.shard, number, target, dim.offset,
                self._fill, dim.ordinal, masks, masks_compact,
            )  # fmt: skip
            if found is None:
                return None
            value = found
        return Windowed(value, self.window(), self.output_starts())

    def _trimmed_target(self) -> SingleSharding:
        devices = device_array(self._target)
        for number, dim in enumerate(self.dims):
            first, skipped = dim.middle
            places = [n if first < 0 or n < first else n + skipped for n in range(dim.tiles)]
            devices = np.take(devices, places, axis=number)
        return tiled(listed_tiles(devices), self._target.subgroups)


def _divide(number: int, divisor: int) -> int:
    """Divide towards zero."""
    return abs(number) // divisor * (1 if number >= 0 else -1)


def windowed_for_slice(
    part: Part, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int], target: SingleSharding
) -> Windowed | None:
    """Return the elements that each device needs for its tile of a slice."""
    dims = [
        WindowDim(1, stride, -start, limit - size)
        for start, limit, stride, size in zip(starts, limits, strides, part.base.dims, strict=True)
    ]
    zero = part.builder.constant(0, part.hlo.shape.element_type)
    return windowed(part, Window(tuple(dims)), target, zero, masks=False)


def slice_of(part: Part, found: Windowed, strides: Sequence[int], base: Shape, target: SingleSharding) -> HloInstruction:
    """Return the tile of a slice from the result of `windowed_for_slice`."""
    starts = [-dim.pad_low for dim in found.window.dims]
    limits = [size + dim.pad_high for size, dim in zip(found.value.shape.dims, found.window.dims, strict=True)]
    if not any(starts) and all(stride == 1 for stride in strides) and tuple(limits) == found.value.shape.dims:
        return found.value
    ranges = tuple(zip(starts, limits, strides, strict=True))
    return part.builder.add("slice", shard_shape(base, target), [found.value], slice=ranges)


def windowed_for_pad(
    part: Part, fill: HloInstruction, edges: Sequence[tuple[int, int, int]], target: SingleSharding
) -> Windowed | None:
    """Return the elements that each device needs for its tile of a pad."""
    is_zero = fill.opcode == "constant" and not np.any(np.asarray(fill.constant_array))
    dims = [WindowDim(1, 1, low, high, inner + 1) for low, high, inner in edges]
    masks = any(
        target.dims[dim] > 1
        and (low > 0 or high > 0 or inner > 0)
        and (not is_zero or part.base.dims[dim] % target.dims[dim] != 0)
        for dim, (low, high, inner) in enumerate(edges)
    )
    return windowed(part, Window(tuple(dims)), target, fill, masks, masks_compact=True)


def pad_of(part: Part, found: Windowed, fill: HloInstruction) -> HloInstruction:
    """Return the padded value from the result of `windowed_for_pad`, in the default layout as XLA's."""
    edges = [(dim.pad_low, dim.pad_high, dim.base_dilation - 1) for dim in found.window.dims]
    if not any(map(any, edges)):
        return found.value
    made = part.builder.pad(found.value, fill, edges)
    made.shape = Shape.array(made.shape.element_type, made.shape.dims)
    return made
