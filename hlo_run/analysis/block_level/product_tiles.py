"""The tiles that a block-level fusion of a product can have, in the order in which XLA tries them.

First the tile of the result is chosen, then warps, the step along the contracting dimension, and stages. Without a device XLA
takes the first one that is among the tiles of its `default_configs` for the GPU, once these are brought into the range of the
product. XLA's `TritonDotFusionSearchSpace`; `product_tiles.tsv` has the tiles of `default_configs`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from hlo_run.analysis.block_level.config import TritonGemmConfig
from hlo_run.analysis.block_level.dim_tile import power_of_two
from hlo_run.analysis.block_level.support import accumulator_type
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.views.dots import Dot, size_of
from hlo_run.options.text_files import read_text
from hlo_run.options.text_proto import text_proto_fields
from hlo_run.target import TargetSpec
from hlo_run.walks import walk

_TABLE = Path(__file__).with_suffix(".tsv")
_CONFIG = re.compile(r"\bconfig\s*:?\s*[{<]([^{}<>]*)[}>]")
_EXPENSIVE = opcode_set("atan2 cosine exponential exponential-minus-one log log-plus-one logistic power rsqrt sine sqrt tan tanh")
_WARPS_PER_SCHEDULER, _SCHEDULERS = 5, 4
_WARPS_FOR_WGMMA, _WARPS_FOR_OCCUPANCY = 4, 2
# The smallest tile of mma, and of wgmma, which works on the rows of four warps.
_MMA_TILE, _WGMMA_TILE = (16, 8), (64, 8)
_STEP_BITS, _LEAST_STEP = 128, 16
_REGISTER_BITS = 32
_FEW_TILES = 24
_TMA_STAGES = (1, 3, 4)


def first_tile(dot: HloInstruction, target: TargetSpec) -> TritonGemmConfig:
    """Return the tile that XLA takes for a product when it cannot measure."""
    if dot.opcode == "scaled-dot":
        return TritonGemmConfig(128, 16, 128, num_stages=1, num_warps=4)
    space = ProductTiles.of(dot, target)
    hints = _hints(_family(target))
    wanted = {space.in_range(hint) for hint in hints}
    return next((tile for tile in space.tiles() if tile in wanted), hints[0])


@functools.cache
def given_tile(text: str, file: str) -> TritonGemmConfig | None:
    """Return the tile of a flag, or of the first `config` of a file (XLA's `TritonGemmConfigsProto`); None if both are empty.

    Raises UsageError for malformed text and for a file that cannot be read.
    """
    what = "--xla_gpu_override_gemm_autotuner"
    if file and not text:
        what = file
        found = _CONFIG.search(read_text(file, "--xla_gpu_gemm_autotuner_override_file"))
        if found is None:
            raise UsageError(f"{file} has no config {{ .. }}")
        text = found[1]
    if not text:
        return None
    fields = {name: values[0] for name, values in text_proto_fields(text, what) if values}
    missing = [name for name in ("block_m", "block_n", "block_k") if not fields.get(name, "").isdecimal()]
    if missing:
        raise UsageError(f"{what}: no number for {missing[0]}")
    known = [name for name in fields if name in TritonGemmConfig.__struct_fields__]
    numbers = {name: int(fields[name]) for name in known if fields[name].isdecimal()}
    return TritonGemmConfig(
        **numbers,
        is_tma_allowed=fields.get("is_tma_allowed") == "true",
        is_warp_specialization_allowed=fields.get("is_warp_specialization_allowed") == "true",
    )


class ProductTiles(Struct, frozen=True):
    """The sizes of a product, and the ranges of tiles that suit them on a GPU. A block may have all registers of its core."""

    target: TargetSpec
    batch: int
    rows: int
    columns: int
    depth: int
    operand_bits: int
    sum_bits: int
    computes_lhs: bool
    computes_rhs: bool

    @staticmethod
    def of(dot: HloInstruction, target: TargetSpec) -> ProductTiles:
        """Return the ranges for a dot in the body of its fusion."""
        view = Dot.of(dot)
        return ProductTiles(
            target,
            size_of(dot, 0, view.lhs.batch),
            size_of(dot, 0, view.lhs.free),
            size_of(dot, 1, view.rhs.free),
            size_of(dot, 0, view.lhs.contracting),
            dot.operands[0].shape.dtype.bits,
            DTYPES[accumulator_type(dot.algorithm, dot.shape.element_type)].bits,
            _computes(dot.operands[0]),
            _computes(dot.operands[1]),
        )

    @property
    def largest(self) -> tuple[int, int]:
        """The largest tile of the result: about a square whose sums fill the registers of a block."""
        elements = self.target.registers_per_core_limit * _REGISTER_BITS // self.sum_bits
        m = _down(math.isqrt(elements))
        n = _down(elements // m)
        rows, columns = power_of_two(self.rows), power_of_two(self.columns)
        if rows < m:
            m, n = rows, min(_down(elements // rows), columns)
        if columns < n:
            m, n = min(_down(elements // columns), rows), columns
        return m, n

    @property
    def needs_blocks(self) -> bool:
        """True if the largest tiles give too few blocks to keep the GPU busy, so that small ones are better."""
        warps = _WARPS_PER_SCHEDULER * _SCHEDULERS * self.target.core_count
        return warps // _WARPS_FOR_WGMMA > self._blocks(*self.largest)

    @property
    def smallest(self) -> tuple[int, int]:
        """The smallest tile of the result."""
        return _WGMMA_TILE if self.target.sm >= 90 and not self.needs_blocks else _MMA_TILE

    @property
    def fewest_warps(self) -> int:
        """The fewest warps of a block."""
        is_wide = self.operand_bits >= 32 or self.target.sm < 90 or self.needs_blocks
        return _WARPS_FOR_OCCUPANCY if is_wide else _WARPS_FOR_WGMMA

    @property
    def least_step(self) -> int:
        """The smallest step along the contracting dimension."""
        return max(_STEP_BITS // self.operand_bits, _LEAST_STEP)

    def in_range(self, tile: TritonGemmConfig) -> TritonGemmConfig:
        """Return a tile brought into the ranges of the product."""
        (m, n), (most_m, most_n) = self.smallest, self.largest
        block_m = min(max(tile.block_m, m), max(most_m, m))
        block_n = min(max(tile.block_n, n), max(most_n, n))
        block_k = min(max(tile.block_k, self.least_step), self._largest_step(block_m, block_n))
        return TritonGemmConfig(block_m, block_n, block_k, tile.num_stages, tile.num_warps, is_tma_allowed=tile.is_tma_allowed)

    def tiles(self) -> Iterator[TritonGemmConfig]:
        """Yield all tiles in XLA's order."""
        most_warps = self.target.threads_per_block_limit // 32
        for m, n in self._result_tiles():
            warps, limit = self.fewest_warps, min(most_warps, math.ceil(m / _MMA_TILE[0]) * math.ceil(n / _MMA_TILE[1]))
            while warps <= max(limit, self.fewest_warps):
                step = self.least_step
                while step <= self._largest_step(m, n):
                    for stages in range(1, self._most_stages(m, n, step) + 1):
                        yield TritonGemmConfig(m, n, step, stages, warps)
                        if self._suits_tma(m, n, step, stages, warps):
                            yield TritonGemmConfig(m, n, step, stages, warps, is_tma_allowed=True)
                    step *= 2
                warps *= 2

    def _suits_tma(self, m: int, n: int, step: int, stages: int, warps: int) -> bool:
        return self.target.sm >= 90 and warps <= 8 and stages in _TMA_STAGES and max(m, n, step) <= 256

    def _result_tiles(self) -> list[tuple[int, int]]:
        """Return the tiles of the result: near squares if possible, and not fewer blocks than processors if others exist."""
        (m, least_n), (most_m, most_n) = self.smallest, self.largest
        most_m, most_n = max(most_m, m), max(most_n, least_n)
        found: list[tuple[int, int]] = []
        while m <= most_m:
            first, last = least_n, most_n
            if m < self.rows and m // 2 <= last and first <= m * 2:
                first = first if self.computes_rhs else max(m // 2, first)
                last = last if self.computes_lhs else min(m * 2, last)
            n = first
            while n <= last:
                found.append((m, n))
                n *= 2
            m *= 2
        if len(found) < _FEW_TILES:
            return found
        enough = [tile for tile in found if self._blocks(*tile) >= self.target.core_count]
        return enough or [self.smallest]

    def _blocks(self, m: int, n: int) -> int:
        return self.batch * math.ceil(self.rows / m) * math.ceil(self.columns / n)

    def _shared_elements(self, m: int, n: int) -> int:
        """Return how far a step may go so that both operands' tiles fit in the shared memory."""
        return 8 * self.target.shared_memory_per_block_optin_bytes // self.sum_bits // (m + n)

    def _largest_step(self, m: int, n: int) -> int:
        return max(self.least_step, min(power_of_two(self.depth), _down(self._shared_elements(m, n))))

    def _most_stages(self, m: int, n: int, step: int) -> int:
        fitting = max(1, math.ceil(self._shared_elements(m, n) / step))
        return min(math.ceil(self.depth / step), fitting, _WARPS_PER_SCHEDULER)


def _computes(operand: HloInstruction) -> bool:
    """True if an operand comes from an expensive operation."""
    return any(value.opcode in _EXPENSIVE for value in walk([operand], lambda value: value.operands))


def _down(size: int) -> int:
    return 1 << (max(size, 1).bit_length() - 1)


def _family(target: TargetSpec) -> str:
    match target.compute_capability[0]:
        case 8:
            return "ampere"
        case 9:
            return "hopper"
        case 10:
            return "blackwell"
        case _:
            return "consumer_blackwell" if target.sm > 100 else "other"


@functools.cache
def _hints(family: str) -> tuple[TritonGemmConfig, ...]:
    text = _TABLE.read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    numbers = [list(map(int, cells)) for name, *cells in rows if name == family]
    return tuple(TritonGemmConfig(m, n, k, stages, warps, is_tma_allowed=bool(tma)) for m, n, k, stages, warps, tma in numbers)
