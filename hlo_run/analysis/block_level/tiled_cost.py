"""Estimates the run time of a block-level kernel for each choice of its tile sizes, and chooses the fastest.

A kernel computes every tiled instruction once per block, and reads every tile of its inputs. Rows that several blocks need are
computed and read by each of them. Mirrors XLA's `service/gpu/model/gpu_indexing_performance_model.cc`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import product
from math import prod
from struct import Struct as Packing

from msgspec import Struct

from hlo_run.analysis.block_level.config import BlockLevelConfig
from hlo_run.analysis.block_level.dim_tile import Tile, TileNumbers, TileRule, power_of_two, used_dims
from hlo_run.analysis.block_level.emitter_limits import MOST_TILE_ELEMENTS, judge_grid, padded_elements
from hlo_run.analysis.block_level.fused_ops import FusedOp
from hlo_run.analysis.block_level.tiling import Region, TiledComputation, tile
from hlo_run.analysis.cost.op_cycles import cycles_per_element
from hlo_run.analysis.cost.run_time_model import TICKS_PER_SECOND, flops_per_nanosecond
from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import WARP_THREADS, TargetSpec

# A larger tile would spill registers: of those of a block, this part may hold a tile.
_MOST_HELD_ELEMENTS = int(0.4 * 65536)
_SPILLS = no("a tile does not fit into the registers")
# The largest tile for which a kernel has this number of warps; 8 for larger ones.
_WARPS = ((256, 1), (1024, 2), (4096, 4))
_MOST_WARPS = 8
_HIDDEN_PART = 0.95
_L2_SPEEDUP = 2.5
_L1_SPEEDUP = 8.0
_L1_BYTES_PER_CORE = 2 * 1024
_DRAM_TRANSACTION_BYTES = 64
_MEMORY_TRANSACTION_BYTES = 32
_TICKS_PER_NANOSECOND = TICKS_PER_SECOND // 1_000_000_000
_CONCATENATE_FLOPS = 6
_MISALIGNED_CONCATENATE_FLOPS = 400
_WARP_MASK = 31
_FREE: frozenset[Opcode] = opcode_set(
    "bitcast broadcast constant dynamic-slice dynamic-update-slice gather iota pad parameter reshape slice transpose tuple"
)
_FLOAT = Packing("f")
_EXACT_IN_F32 = 1 << 24


class TiledTime(Struct, frozen=True):
    """The chosen configuration of a kernel, its estimated run time in ticks of 0.25 ns, and the operations of all blocks."""

    config: BlockLevelConfig
    ticks: int
    flops: int


class _PartAt(Struct, frozen=True, eq=False):
    """A part with the sizes of the dimensions that its tile depends on.

    `tile` numbers equal tiles, `elements` counts those of the padded tile. `reads` has per input: its number, the bytes that a
    block reads, and the part of the memory's bandwidth that is useful.
    """

    tile: int
    elements: int
    reads: tuple[tuple[int, int, float], ...]


class _Part:
    """The ops of a region at one tile: those that compute, and the arrays that are read.

    Of the blocks of the kernel, `shares` (numerator, denominator) compute the region. `used` are the dimensions of the space that
    the tile depends on, and `at` what is known for their sizes.
    """

    __slots__ = ("at", "flops", "inputs", "is_held", "ops", "region", "rule", "shares", "used")

    def __init__(self, region: int, shares: tuple[tuple[int, int], ...], rule: TileRule, used: tuple[int, ...]) -> None:
        self.region = region
        self.shares = shares
        self.rule = rule
        self.used = used
        self.ops: dict[FusedOp, int] = {}
        self.inputs: dict[FusedOp, int] = {}
        self.flops = 0
        self.is_held = False
        self.at: dict[tuple[int, ...], _PartAt | Decision] = {}


class TiledCost:
    """Estimates the kernels of one tiled computation."""

    def __init__(self, tiled: TiledComputation, target: TargetSpec) -> None:
        self._space = tiled.space
        self._target = target
        self._numbers = TileNumbers(tiled.space.sizes)
        self._parts: list[_Part] = []
        self._inputs: dict[FusedOp, int] = {}
        self._tiles: dict[Tile, int] = {}
        self._add_region(tiled.region, ())
        self._sizes = [source.shape.size_bytes for source in self._inputs]
        self._sequential_sizes = tiled.space.tile_sizes(())
        self._bandwidths: dict[float, float] = {}
        bandwidth = _f32(target.memory_bandwidth)
        self._block_bandwidth = _f32(_f32(_f32(target.clock_rate_ghz) * 1e9) * _MEMORY_TRANSACTION_BYTES)
        self._l2_bandwidth = _f32(bandwidth * _L2_SPEEDUP)
        self._l1_bandwidth = _f32(self._l2_bandwidth * _L1_SPEEDUP)

    def _add_region(self, region: Region, shares: tuple[tuple[int, int], ...]) -> None:
        """Add a region and those in it. An operand of a concatenate is computed by the blocks of its part of the result."""
        number = len(self._parts)
        parts: dict[TileRule, _Part] = {}
        for tiled in region.ops:
            part = parts.get(tiled.tile)
            if part is None:
                used = tuple(sorted({dim for rule in tiled.tile for dim in used_dims(rule)}))
                part = parts[tiled.tile] = _Part(number, shares, tiled.tile, used)
            op = tiled.op
            if op.is_input:
                part.inputs[op] = self._inputs.setdefault(op, len(self._inputs))
                part.is_held = True
            else:
                part.ops[op] = flops_per_element(op.instruction, self._target)
                part.is_held |= op is self._space.root or op.opcode == "iota"
        for part in parts.values():
            part.flops = sum(part.ops.values())
        self._parts += parts.values()
        for tiled in region.ops:
            for operand, inner in enumerate(tiled.regions):
                dim = tiled.op.instruction.dimensions[0]
                share = tiled.op.operands[operand].shape.dims[dim], tiled.op.shape.dims[dim]
                self._add_region(inner, (*shares, share))

    def best(self) -> TiledTime | Decision:
        """Return the fastest configuration, of equal ones the first, which has the smallest tiles."""
        best: tuple[int, int, int, tuple[int, ...]] | None = None
        reason = "no tile sizes fit"
        for sizes in candidates(self._space.root.shape.dims):
            found = self._estimate(sizes, 0)
            if isinstance(found, Decision):
                reason = found.reason
            elif best is None or found[0] < best[0]:
                best = *found, sizes
        return no(f"No valid tilings found: {reason}") if best is None else _time(*best)

    def at(self, root_sizes: tuple[int, ...], num_warps: int) -> TiledTime | Decision:
        """Return the time with these sizes of the root's tile and warps, or why no kernel can have them."""
        found = self._estimate(root_sizes, num_warps)
        return found if isinstance(found, Decision) else _time(*found, root_sizes)

    def _estimate(self, root_sizes: tuple[int, ...], warps: int) -> tuple[int, int, int] | Decision:
        """Return ticks, flops and warps. Unless they are given (not 0), the largest tile decides the warps."""
        if prod(root_sizes) > _MOST_HELD_ELEMENTS:
            return _SPILLS
        dims = self._space.root.shape.dims
        fits = judge_grid(dims, root_sizes, self._target)
        if not fits:
            return fits
        sizes = root_sizes + self._sequential_sizes
        parts: list[_PartAt] = []
        for part in self._parts:
            key = tuple([sizes[dim] for dim in part.used])
            found = part.at.get(key)
            if found is None:
                found = part.at[key] = self._part_at(part, sizes)
            if isinstance(found, Decision):
                return found
            parts.append(found)
        blocks = prod([-(-dim // size) for dim, size in zip(dims, root_sizes, strict=True)])
        flops, reads = self._work(parts, blocks)
        most = _f32(blocks * self._block_bandwidth)
        memory = self._write_ticks(root_sizes)
        for number, (total, useful) in reads.items():
            memory += self._read_ticks(self._sizes[number], total, useful, most)
        if not warps:
            largest = max([part.elements for part in parts])
            warps = next((warps for most, warps in _WARPS if largest <= most), _MOST_WARPS)
        compute = self._compute_ticks(flops, blocks, warps * WARP_THREADS)
        return compute + memory - _rounded(min(compute, memory) * _HIDDEN_PART), flops, warps

    def _part_at(self, part: _Part, sizes: Sequence[int]) -> _PartAt | Decision:
        tile = self._numbers.tile(part.rule, sizes)
        if isinstance(tile, Decision):
            return tile
        elements = padded_elements(tuple([dim.size for dim in tile]))
        if elements > MOST_TILE_ELEMENTS:
            return no(f"a tile would have {elements} elements")
        if part.is_held and elements > _MOST_HELD_ELEMENTS:
            return _SPILLS
        reads: list[tuple[int, int, float]] = []
        for source, number in part.inputs.items():
            read = prod([min(dim.size, whole) for dim, whole in zip(tile, source.shape.dims, strict=True)])
            reads.append(
                (
                    number,
                    read * _element_bytes(source.shape),
                    _useful_part(source.shape, [(dim.size, dim.stride) for dim in tile]),
                )
            )
        return _PartAt(self._tiles.setdefault(tile, len(self._tiles)), elements, tuple(reads))

    def _work(self, parts: Sequence[_PartAt], blocks: int) -> tuple[int, dict[int, tuple[int, float]]]:
        """Return the flops of all blocks, and per input the bytes that are read and the least useful part of the bandwidth.

        Parts of a region whose tiles are equal are one part.
        """
        flops = 0
        reads: dict[int, tuple[int, float]] = {}
        done: dict[tuple[int, int], dict[FusedOp, int]] = {}
        is_merged = len({part.tile for part in parts}) < len(parts)
        for part, at in zip(self._parts, parts, strict=True):
            count = _share(blocks, part.shares) if part.shares else blocks
            inputs, cycles = at.reads, part.flops
            if is_merged:
                same = done.setdefault((part.region, at.tile), {})
                inputs = tuple([read for source, read in zip(part.inputs, inputs, strict=True) if source not in same])
                cycles = sum([flops for op, flops in part.ops.items() if op not in same])
                same.update(part.ops)
                same.update(part.inputs)
            flops += count * at.elements * cycles
            for number, bytes_read, useful in inputs:
                total, least = reads.get(number, (0, 1.0))
                reads[number] = total + bytes_read * count, min(least, useful)
        return flops, reads

    def _read_ticks(self, size_bytes: int, total: int, useful: float, most: float) -> int:
        """Return the ticks to read an array: each byte from memory once, again from a cache, at `most` at that bandwidth."""
        bandwidth = self._bandwidths.get(useful)
        if bandwidth is None:
            bandwidth = self._bandwidths[useful] = _f32(self._target.memory_bandwidth * useful)
        net = min(size_bytes, total)
        ticks = _seconds(_f32(_f32(net) / min(bandwidth, most)))
        if total == net:
            return ticks
        if net >= self._target.l2_cache_size_bytes:
            again = _f32(_f32(self._target.memory_bandwidth) * useful)
        else:
            is_small = net < _L1_BYTES_PER_CORE * self._target.core_count
            again = self._l1_bandwidth if is_small else self._l2_bandwidth
        return ticks + _seconds(_f32(_f32(total - net) / min(again, most)))

    def _write_ticks(self, root_sizes: Sequence[int]) -> int:
        shape = self._space.root.shape
        bandwidth = int(_useful_part(shape, [(size, 1) for size in root_sizes]) * self._target.memory_bandwidth)
        return _seconds(shape.size_bytes / bandwidth)

    def _compute_ticks(self, flops: int, blocks: int, threads: int) -> int:
        per_nanosecond = flops_per_nanosecond(self._target, blocks, threads)
        return _rounded(_f32(_f32(flops) / _f32(per_nanosecond)) * _TICKS_PER_NANOSECOND) if per_nanosecond else 0


class Configurations:
    """The best configurations for a target. Kernels of equal opcodes, shapes and attributes share one."""

    def __init__(self, target: TargetSpec) -> None:
        self._target = target
        self._keys = ValueKeys(sees_layouts=True)
        self._known: dict[Hashable, TiledTime | Decision] = {}

    def best(self, root: FusedOp) -> TiledTime | Decision:
        """Return the fastest configuration of a block-level kernel, or why it can have none."""
        key = self.key(root)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = best_configuration(root, self._target)
        return found

    def key(self, root: FusedOp) -> Hashable:
        """Return what kernels with equal estimates share."""
        numbers: dict[FusedOp, int] = {}
        parts: list[Hashable] = []
        for op in root.post_order():
            numbers[op] = len(numbers)
            if op.is_input or op.opcode == "constant":
                parts.append((op.is_input, op.shape))
            else:
                parts.append(self._keys.of(op.instruction, tuple([numbers[operand] for operand in op.operands])))
        return tuple(parts)


def best_configuration(root: FusedOp, target: TargetSpec) -> TiledTime | Decision:
    """Return the fastest configuration of a block-level kernel, or why it can have none."""
    tiled = tile(root)
    if isinstance(tiled, Decision):
        return tiled
    if any(op.opcode in ("dot", "scaled-dot") for op in root.post_order() if not op.is_input):
        return no("a product has a cost model of its own")
    return TiledCost(tiled, target).best()


def candidates(dims: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of the root's tile that are weighed: powers of two, in every dimension up to the first that covers it."""
    per_dim = [[1 << power for power in range(power_of_two(dim).bit_length())] for dim in dims]
    return product(*per_dim)


def flops_per_element(instruction: HloInstruction, target: TargetSpec) -> int:
    """Return the clock cycles of one unit for one element of the result."""
    opcode, shape = instruction.opcode, instruction.shape
    if opcode in _FREE:
        return 0
    if opcode == "concatenate":
        dim = instruction.dimensions[0]
        is_misaligned = dim > 0 and instruction.operands[0].shape.dims[dim] & _WARP_MASK
        return _MISALIGNED_CONCATENATE_FLOPS if is_misaligned else _CONCATENATE_FLOPS
    if opcode == "reduce":
        each = sum(flops_per_element(inner, target) for inner in instruction.to_apply.instructions)
        sizes = instruction.operands[0].shape.dims
        return each * (prod([power_of_two(sizes[dim]) for dim in instruction.dimensions]) - 1)
    return cycles_per_element(opcode, shape.element_type, target) if is_elementwise(instruction) else 0


def _time(ticks: int, flops: int, warps: int, sizes: tuple[int, ...]) -> TiledTime:
    return TiledTime(BlockLevelConfig((sizes,), warps), ticks, flops)


def _share(blocks: int, shares: Sequence[tuple[int, int]]) -> int:
    for part, whole in shares:
        blocks = blocks * part // whole
    return blocks


def _useful_part(shape: Shape, tile: Sequence[tuple[int, int]]) -> float:
    """Return the part of the memory transactions for a tile, (size, stride) per dimension, that holds its elements."""
    contiguous = 1
    for dim in shape.minor_to_major:
        (size, stride), whole = tile[dim], shape.dims[dim]
        if stride != 1:
            break
        contiguous *= min(size, whole)
        if size < whole:
            break
    wanted = contiguous * _element_bytes(shape)
    return wanted / (_DRAM_TRANSACTION_BYTES * -(-wanted // _DRAM_TRANSACTION_BYTES))


def _element_bytes(shape: Shape) -> int:
    return -(-shape.dtype.bits // 8)


def _f32(value: float) -> float:
    """Return the nearest number of f32, in which XLA computes these times."""
    if isinstance(value, int) and value < _EXACT_IN_F32:
        return value
    return _FLOAT.unpack(_FLOAT.pack(value))[0]


def _seconds(value: float) -> int:
    return _rounded(value * TICKS_PER_SECOND)


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)
