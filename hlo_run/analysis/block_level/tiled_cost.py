"""Estimates the run time of a block-level kernel for each choice of its tile sizes, and chooses the fastest.

A kernel computes every tiled instruction once per block, and reads every tile of its inputs. Rows that several blocks need are
computed and read by each of them. Mirrors XLA's `service/gpu/model/gpu_indexing_performance_model.cc`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from struct import Struct as Packing

from msgspec import Struct

from hlo_run.analysis.block_level.config import BlockLevelConfig
from hlo_run.analysis.block_level.dim_tile import Tile, TileNumbers, TileRule, power_of_two
from hlo_run.analysis.block_level.emitter_limits import MOST_TILE_ELEMENTS, judge_grid, padded_elements
from hlo_run.analysis.block_level.fused_ops import FusedOp
from hlo_run.analysis.block_level.tiling import Region, TiledComputation, tile
from hlo_run.analysis.cost.op_cycles import cycles_per_element
from hlo_run.analysis.cost.run_time_model import TICKS_PER_SECOND, flops_per_nanosecond
from hlo_run.analysis.decision import Decision, no
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import WARP_THREADS, TargetSpec

# A larger tile would spill registers: of those of a block, this part may hold a tile.
_TILE_REGISTERS = 0.4
_REGISTERS_PER_BLOCK = 65536
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


class TiledTime(Struct, frozen=True):
    """The chosen configuration of a kernel and its estimated run time, in ticks of 0.25 ns."""

    config: BlockLevelConfig
    ticks: int


class _Part(Struct, frozen=True, eq=False):
    """The ops of a region at one tile: those that compute, and the arrays that are read."""

    rule: TileRule
    ops: tuple[FusedOp, ...]
    inputs: tuple[FusedOp, ...]


class _Blocks(Struct, frozen=True, eq=False):
    """A region's parts. Of the blocks of the kernel, `share` (numerator, denominator) computes it."""

    parts: tuple[_Part, ...]
    shares: tuple[tuple[int, int], ...]


class _Read:
    """The bytes that all blocks read of an array, and the least part of the memory's bandwidth that they reach."""

    __slots__ = ("total", "useful")

    def __init__(self) -> None:
        self.total = 0
        self.useful = 1.0


class TiledCost:
    """Estimates the kernels of one tiled computation."""

    def __init__(self, tiled: TiledComputation, target: TargetSpec) -> None:
        self._space = tiled.space
        self._target = target
        self._root_rule: TileRule = tiled.region.roots[0].tile
        self._regions = list(_regions(tiled.region, ()))
        self._flops: dict[FusedOp, int] = {}

    def best(self) -> TiledTime | Decision:
        """Return the fastest configuration, of equal ones the first, which has the smallest tiles."""
        best: TiledTime | None = None
        reason = "no tile sizes fit"
        for sizes in candidates(self._space.root.shape.dims):
            found = self.at(sizes)
            if isinstance(found, Decision):
                reason = found.reason
            elif best is None or found.ticks < best.ticks:
                best = found
        return no(f"No valid tilings found: {reason}") if best is None else best

    def at(self, root_sizes: Sequence[int], num_warps: int | None = None) -> TiledTime | Decision:
        """Return the time with these sizes of the root's tile, or why no kernel can have them."""
        sizes = self._space.tile_sizes(root_sizes)
        dims = self._space.root.shape.dims
        fits = judge_grid(dims, tuple(root_sizes), self._target)
        if not fits:
            return fits
        numbers = TileNumbers(self._space.sizes, sizes)
        blocks = prod([-(-dim // size) for dim, size in zip(dims, root_sizes, strict=True)])
        flops, largest = 0, 1
        reads: dict[FusedOp, _Read] = {}
        for region in self._regions:
            count = _share(blocks, region.shares)
            for tiles, ops, inputs in _merged(region, numbers):
                if isinstance(tiles, Decision):
                    return tiles
                elements = padded_elements(tuple([part.size for part in tiles]))
                largest = max(largest, elements)
                if elements > MOST_TILE_ELEMENTS:
                    return no(f"a tile would have {elements} elements")
                if elements > _TILE_REGISTERS * _REGISTERS_PER_BLOCK and (inputs or _needs_registers(ops, self._space.root)):
                    return no(f"a tile of {elements} elements does not fit into the registers")
                flops += count * elements * sum([self._flops_of(op) for op in ops])
                for source in inputs:
                    self._add_read(reads.setdefault(source, _Read()), source, tiles, count)
        warps = num_warps or next((warps for most, warps in _WARPS if largest <= most), _MOST_WARPS)
        memory = sum([self._read_ticks(source.shape.size_bytes, read, blocks) for source, read in reads.items()])
        root_tile = numbers.tile(self._root_rule)
        assert not isinstance(root_tile, Decision), "the root has its own tile"
        memory += self._write_ticks(self._space.root.shape, root_tile)
        compute = self._compute_ticks(flops, blocks, warps * WARP_THREADS)
        ticks = compute + memory - _rounded(min(compute, memory) * _HIDDEN_PART)
        return TiledTime(BlockLevelConfig((tuple(root_sizes),), warps), ticks)

    def _flops_of(self, op: FusedOp) -> int:
        found = self._flops.get(op)
        if found is None:
            found = self._flops[op] = flops_per_element(op.instruction, self._target)
        return found

    def _add_read(self, read: _Read, source: FusedOp, tiles: Tile, blocks: int) -> None:
        elements = blocks
        for part, dim in zip(tiles, source.shape.dims, strict=True):
            elements *= min(part.size, dim)
        read.total += elements * _element_bytes(source.shape)
        read.useful = min(read.useful, _useful_part(source.shape, tiles))

    def _read_ticks(self, size_bytes: int, read: _Read, blocks: int) -> int:
        """Return the ticks to read an array: each byte from memory once, again from a cache."""
        target = self._target
        net = min(size_bytes, read.total)
        most = _f32(blocks * _f32(_f32(_f32(target.clock_rate_ghz) * 1e9) * _MEMORY_TRANSACTION_BYTES))
        memory, again = _f32(target.memory_bandwidth * read.useful), _f32(target.memory_bandwidth)
        if net < target.l2_cache_size_bytes:
            again = _f32(again * _L2_SPEEDUP)
            if net < _L1_BYTES_PER_CORE * target.core_count:
                again = _f32(again * _L1_SPEEDUP)
        else:
            again = _f32(again * read.useful)
        return _seconds(_f32(_f32(net) / min(memory, most))) + _seconds(_f32(_f32(read.total - net) / min(again, most)))

    def _write_ticks(self, shape: Shape, tiles: Tile) -> int:
        bandwidth = int(_useful_part(shape, tiles) * self._target.memory_bandwidth)
        return _seconds(shape.size_bytes / bandwidth)

    def _compute_ticks(self, flops: int, blocks: int, threads: int) -> int:
        per_nanosecond = flops_per_nanosecond(self._target, blocks, threads)
        return _rounded(_f32(_f32(flops) / _f32(per_nanosecond)) * _TICKS_PER_NANOSECOND) if per_nanosecond else 0


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


def _regions(region: Region, shares: tuple[tuple[int, int], ...]) -> Iterator[_Blocks]:
    """Yield a region and those in it. An operand of a concatenate is computed by the blocks of its part of the result."""
    parts: dict[TileRule, tuple[dict[FusedOp, None], dict[FusedOp, None]]] = {}
    for tiled in region.ops:
        parts.setdefault(tiled.tile, ({}, {}))[tiled.op.is_input][tiled.op] = None
    yield _Blocks(tuple([_Part(rule, tuple(ops), tuple(inputs)) for rule, (ops, inputs) in parts.items()]), shares)
    for tiled in region.ops:
        for number, inner in enumerate(tiled.regions):
            dim = tiled.op.instruction.dimensions[0]
            share = tiled.op.operands[number].shape.dims[dim], tiled.op.shape.dims[dim]
            yield from _regions(inner, (*shares, share))


def _merged(region: _Blocks, numbers: TileNumbers) -> list[tuple[Tile | Decision, Sequence[FusedOp], Sequence[FusedOp]]]:
    """Return the tiles with the ops and inputs that have them. Rules that give the same numbers give one tile."""
    found: dict[Tile, list[_Part]] = {}
    for part in region.parts:
        tiles = numbers.tile(part.rule)
        if isinstance(tiles, Decision):
            return [(tiles, (), ())]
        found.setdefault(tiles, []).append(part)
    return [
        (tiles, parts[0].ops, parts[0].inputs)
        if len(parts) == 1
        else (
            tiles,
            list(dict.fromkeys(op for part in parts for op in part.ops)),
            list(dict.fromkeys(op for part in parts for op in part.inputs)),
        )
        for tiles, parts in found.items()
    ]


def _share(blocks: int, shares: Sequence[tuple[int, int]]) -> int:
    for part, whole in shares:
        blocks = blocks * part // whole
    return blocks


def _needs_registers(ops: Sequence[FusedOp], root: FusedOp) -> bool:
    """True if a tile is in registers as a whole: that of the root or of an iota."""
    return any(op is root or op.opcode == "iota" for op in ops)


def _useful_part(shape: Shape, tiles: Tile) -> float:
    """Return the part of the memory transactions for a tile that holds its elements."""
    contiguous = 1
    for dim in shape.minor_to_major:
        part, size = tiles[dim], shape.dims[dim]
        if part.stride != 1:
            break
        contiguous *= min(part.size, size)
        if part.size < size:
            break
    wanted = contiguous * _element_bytes(shape)
    return wanted / (_DRAM_TRANSACTION_BYTES * -(-wanted // _DRAM_TRANSACTION_BYTES))


def _element_bytes(shape: Shape) -> int:
    return -(-shape.dtype.bits // 8)


def _f32(value: float) -> float:
    """Return the nearest number of f32, in which XLA computes these times."""
    return _FLOAT.unpack(_FLOAT.pack(value))[0]


def _seconds(value: float) -> int:
    return _rounded(value * TICKS_PER_SECOND)


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)
