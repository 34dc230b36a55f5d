"""Pointers of all lanes into memory: checked loads, stores and atomic updates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlo_run.arrays import Array
from hlo_run.backends.host.emulator.lanes import Access, Lanes, distinct
from hlo_run.backends.host.emulator.memory import (
    ITEM_TYPES,
    LOCAL_NUMBER,
    NUMBER_SHIFT,
    SHARED_NUMBER,
    Offsets,
    Region,
    poisoned,
)

# Per item: the used bytes as aligned pieces (first byte in the item, size), see `Instruction.used_pieces`.
UsedPieces = list[list[tuple[int, int]]]

_HALF = 1 << (NUMBER_SHIFT - 1)
_LOG2 = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


def shared_pointer(lanes: Lanes, addresses: Array) -> Pointer:
    """Return the pointers for addresses in shared memory. Each lane accesses the copy of its block."""
    return Pointer(lanes, lanes.chunk.shared, addresses.astype(np.int64), lanes.rows)


def local_pointer(lanes: Lanes, addresses: Array) -> Pointer:
    """Return the pointers for addresses in local memory. Each lane accesses its own copy."""
    return Pointer(lanes, lanes.chunk.local, addresses.astype(np.int64), lanes.flat_ids.reshape(lanes.shape))


class Pointer:
    """One address per lane into one region. All accesses through the same register share a pointer.

    `addresses` are byte offsets in the region; `copies` is the number of the region's copy that each lane accesses.
    """

    def __init__(
        self, lanes: Lanes, region: Region, addresses: Offsets, copies: Offsets | None = None, selection: Offsets | None = None
    ) -> None:
        self.lanes = lanes
        self.region = region
        self.addresses = addresses
        self._selection = selection
        self.offsets = addresses if copies is None else addresses + copies * region.copy_bytes
        self._low = int(addresses.min())
        self._high = int(addresses.max())
        self._bits = int(np.bitwise_or.reduce(addresses, axis=None))
        self._indices: dict[int, Offsets] = {}

    # ---- checks -------------------------------------------------------------------------------------------------

    def check(self, displacement: int, size_bytes: int, kind: str, line: int) -> None:
        """Raise DeviceError unless every lane may access `size_bytes` bytes at its address plus `displacement`."""
        region = self.region
        low, high = region.bounds(kind, size_bytes)
        inside = self._low + displacement >= low and self._high + displacement + size_bytes <= high
        if not inside or (kind != "load" and not region.writable):
            self._fault(displacement, size_bytes, kind, line)
        if (self._bits | displacement) & (size_bytes - 1) and ((self.addresses + displacement) & (size_bytes - 1)).any():
            self._fault(displacement, size_bytes, kind, line)

    def _fault(self, displacement: int, size_bytes: int, kind: str, line: int) -> None:
        """Raise DeviceError for the first lane at fault. A vector access must only be aligned as a whole."""
        region = self.region
        places = self.addresses + displacement
        low, high = region.bounds(kind, size_bytes)
        outside = (places < low) | (places + size_bytes > high)
        misaligned = (places & (size_bytes - 1)) != 0
        if outside.any():
            bad, what = outside, "out-of-bounds"
        elif misaligned.any():
            bad, what = misaligned, "misaligned"
        else:
            bad, what = np.ones_like(outside), "forbidden"
        index = int(np.flatnonzero(self._per_lane(bad))[0])
        place = int(self._per_lane(places)[index]) - region.low
        lane = index if self._selection is None else int(self._selection[index])
        message = f"{what} {region.space} {kind} of {size_bytes} bytes at offset {place} of {region.name}"
        size = f"{region.name} has {region.high - region.low} bytes" + ("" if region.writable else " and is read-only")
        self.lanes.launch.fail(message, line, self.lanes.describe(lane), size)

    def _per_lane(self, values: Array) -> Array:
        return self.lanes.flat(values) if self._selection is None else values.reshape(-1)

    def _observe(
        self,
        displacement: int,
        size_bytes: int,
        kind: str,
        line: int,
        *,
        strong: bool = False,
        reads: bool = True,
        values: tuple[Array, ...] = (),
    ) -> None:
        observer = self.lanes.observer
        if observer is None:
            return
        lanes = self.lanes if self._selection is None else self.lanes.subset(_mask(self.lanes.count, self._selection))
        flat = np.stack([self._per_lane(value) for value in values], axis=1) if values else None
        addresses = self._per_lane(self.offsets + displacement)
        observer.access(Access(lanes, self.region, addresses, size_bytes, kind, line, reads, strong, flat))

    def index(self, displacement: int, item_bytes: int) -> Offsets:
        """Return the item indices in the region's view."""
        if displacement & (item_bytes - 1):
            # The sum of address and displacement is aligned, not each of them.
            return (self.offsets + displacement) >> _LOG2[item_bytes]
        index = self._indices.get(item_bytes)
        if index is None:
            index = self._indices[item_bytes] = self.offsets >> _LOG2[item_bytes]
        return index + (displacement >> _LOG2[item_bytes]) if displacement else index

    # ---- accesses -----------------------------------------------------------------------------------------------

    def load(self, displacement: int, item_bytes: int, line: int, strong: bool = False) -> Array:
        """Return one item per lane."""
        self.check(displacement, item_bytes, "load", line)
        self._observe(displacement, item_bytes, "load", line, strong=strong)
        return self._take(displacement, item_bytes)

    def _take(self, displacement: int, item_bytes: int) -> Array:
        view = self.region.view(item_bytes)
        start = displacement >> _LOG2[item_bytes]
        # Addresses may be below the region if the displacement compensates. numpy would count them from the end.
        if start > 0 and self._low >= 0 and not displacement & (item_bytes - 1):
            return view[start:].take(self.index(0, item_bytes))
        return view.take(self.index(displacement, item_bytes))

    def load_vector(
        self, displacement: int, item_bytes: int, count: int, line: int, used: UsedPieces | None = None
    ) -> tuple[Array, ...]:
        """Return `count` consecutive items per lane, one array per item. Bytes that are not `used` are poison.

        Only used bytes must be within bounds: an aligned access never crosses into another page.
        """
        total = item_bytes * count
        if used is not None:
            if ((self.addresses + displacement) & (total - 1)).any():
                self._fault(displacement, total, "load", line)
            return tuple(
                self._load_pieces(displacement + number * item_bytes, item_bytes, pieces, line)
                for number, pieces in enumerate(used)
            )
        self.check(displacement, total, "load", line)
        self._observe(displacement, total, "load", line)
        unit = min(total, 16)
        items: list[Array] = []
        for start in range(0, total, unit):
            whole = self._take(displacement + start, unit)
            parts = whole.view(ITEM_TYPES[item_bytes]).reshape(*whole.shape, unit // item_bytes)
            items += [np.ascontiguousarray(parts[..., number]) for number in range(unit // item_bytes)]
        return tuple(items)

    def _load_pieces(self, displacement: int, item_bytes: int, pieces: list[tuple[int, int]], line: int) -> Array:
        """Return one item per lane, of which only the pieces (first byte, size) are loaded. The rest is poison."""
        if pieces == [(0, item_bytes)]:
            return self.load(displacement, item_bytes, line)
        item = np.full(self.offsets.shape, poisoned(16).view(ITEM_TYPES[item_bytes])[0])
        for first, size_bytes in pieces:
            loaded = self.load(displacement + first, size_bytes, line)
            item.view(loaded.dtype).reshape(*item.shape, -1)[..., first // size_bytes] = loaded
        return item

    def store(self, values: tuple[Array, ...], displacement: int, item_bytes: int, line: int, strong: bool = False) -> None:
        """Write consecutive items per lane. If lanes write to the same address, the last lane's value remains."""
        total = item_bytes * len(values)
        self.check(displacement, total, "store", line)
        self._observe(displacement, total, "store", line, strong=strong, reads=False, values=values)
        shape = np.broadcast_shapes(self.offsets.shape, *(value.shape for value in values))
        unit = min(total, 16)
        per_unit = unit // item_bytes
        for start in range(0, len(values), per_unit):
            part = values[start : start + per_unit]
            if per_unit == 1:
                packed = part[0]
            else:
                together = np.empty((*shape, per_unit), part[0].dtype)
                for number, value in enumerate(part):
                    together[..., number] = value
                packed = together.view(ITEM_TYPES[unit])[..., 0]
            index = self.index(displacement + start * item_bytes, unit)
            self.region.view(unit)[np.broadcast_to(index, shape)] = packed

    def atomic_items(self, displacement: int, item_bytes: int, line: int, sets_bits: bool = False) -> tuple[Array, Offsets]:
        """Return (the region's view, one item index per lane) for a read-modify-write by every lane.

        `sets_bits`: the operation sets or clears some bits, independently of the others.
        """
        self.check(displacement, item_bytes, "atomic", line)
        self._observe(displacement, item_bytes, "atomic", line, strong=True, reads=not sets_bits)
        return self.region.view(item_bytes), self._per_lane(self.index(displacement, item_bytes))


class MixedPointer(Pointer):
    """Addresses into more than one region. Every access runs region by region."""

    def __init__(self, lanes: Lanes, parts: list[tuple[Offsets, Pointer]]) -> None:
        self.lanes = lanes
        self._parts = parts

    def load(self, displacement: int, item_bytes: int, line: int, strong: bool = False) -> Array:
        """Return one item per lane."""
        result = np.empty(self.lanes.count, ITEM_TYPES[item_bytes])
        for selection, pointer in self._parts:
            result[selection] = pointer.load(displacement, item_bytes, line, strong).reshape(-1)
        return result.reshape(self.lanes.shape)

    def load_vector(
        self, displacement: int, item_bytes: int, count: int, line: int, used: UsedPieces | None = None
    ) -> tuple[Array, ...]:
        """Return `count` consecutive items per lane, one array per item. Bytes that are not `used` are poison."""
        results = [np.empty(self.lanes.count, ITEM_TYPES[item_bytes]) for _ in range(count)]
        for selection, pointer in self._parts:
            for result, part in zip(results, pointer.load_vector(displacement, item_bytes, count, line, used), strict=True):
                result[selection] = part.reshape(-1)
        return tuple(result.reshape(self.lanes.shape) for result in results)

    def store(self, values: tuple[Array, ...], displacement: int, item_bytes: int, line: int, strong: bool = False) -> None:
        """Write consecutive items per lane."""
        flat = [self.lanes.flat(value) for value in values]
        for selection, pointer in self._parts:
            pointer.store(tuple(value[selection] for value in flat), displacement, item_bytes, line, strong)

    def atomic_parts(self) -> list[tuple[Offsets, Pointer]]:
        """Return (lanes, their pointer) for each region."""
        return self._parts


def mixed_or_single(lanes: Lanes, addresses: Array) -> Pointer:
    """Return the pointer for global or generic addresses (u64). Their upper bits are the region's number."""
    signed: Offsets = addresses.view(np.int64)
    first = (int(signed.flat[0]) + _HALF) >> NUMBER_SHIFT
    offsets = signed - (first << NUMBER_SHIFT)
    if int(offsets.min()) >= -_HALF and int(offsets.max()) < _HALF:
        return _pointer_into(lanes, first, offsets)
    flat = lanes.flat(signed)
    numbers = (flat + _HALF) >> NUMBER_SHIFT
    parts: list[tuple[Offsets, Pointer]] = []
    for number in distinct(numbers):
        selection = np.flatnonzero(numbers == number)
        offsets = flat[selection] - (number << NUMBER_SHIFT)
        parts.append((selection, _pointer_into(lanes, int(number), offsets, selection)))
    return MixedPointer(lanes, parts)


def _pointer_into(lanes: Lanes, number: int, offsets: Offsets, selection: Offsets | None = None) -> Pointer:
    chunk = lanes.chunk
    if number == SHARED_NUMBER:
        copies = lanes.rows
        return Pointer(lanes, chunk.shared, offsets, _chosen(lanes, copies, selection), selection)
    if number == LOCAL_NUMBER:
        copies = lanes.flat_ids.reshape(lanes.shape)
        return Pointer(lanes, chunk.local, offsets, _chosen(lanes, copies, selection), selection)
    region = lanes.launch.regions.get(number)
    if region is None:
        # No memory has this number. An empty region turns every access into a fault.
        address = ((number << NUMBER_SHIFT) + int(offsets.flat[0])) & (2**64 - 1)
        region = Region(f"no buffer (address 0x{address:x})", "global", np.zeros(0, np.uint8), 0, 0)
    return Pointer(lanes, region, offsets, None, selection)


def _chosen(lanes: Lanes, copies: Offsets, selection: Offsets | None) -> Offsets:
    return copies if selection is None else lanes.flat(copies)[selection]


def _mask(count: int, selection: Offsets) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[selection] = True
    return mask
