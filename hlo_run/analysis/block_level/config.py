"""Reads and writes the configuration of a block-level fusion in its backend config, as XLA prints it.

    "block_level_fusion_config":{.., "num_warps":"2", "output_tiles":[{"sizes":["16","8"]}], ..}
    "triton_gemm_config":{"block_k":"16","block_m":"16","block_n":"8", .., "num_warps":"2", ..}

A fusion of a product has the second record from the choice of its tiles until `convert_triton_gemm_config` makes the first one.
"""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.backend_config import config_of

TRITON = "__triton"
TRITON_GEMM = "__triton_gemm"
TRITON_NESTED_GEMM = "__triton_nested_gemm_fusion"

_CONFIG = "fusion_backend_config"
_BLOCK_LEVEL, _GEMM = "block_level_fusion_config", "triton_gemm_config"


class BlockLevelConfig(Struct, frozen=True):
    """The tile of each root, in elements, and the launch: warps of a block, blocks of a cluster, stages of the pipeline."""

    output_tiles: tuple[tuple[int, ...], ...]
    num_warps: int
    num_ctas: int = 1
    num_stages: int = 1
    is_tma_allowed: bool = False
    is_warp_specialization_allowed: bool = False

    def record(self) -> dict[str, object]:
        """Return the record of the backend config. 64-bit numbers are strings, as protobuf writes them."""
        return {
            "group_size": 0,
            "is_tma_allowed": self.is_tma_allowed,
            "is_warp_specialization_allowed": self.is_warp_specialization_allowed,
            "num_ctas": self.num_ctas,
            "num_stages": self.num_stages,
            "num_tiles_per_pid": 0,
            "num_warps": str(self.num_warps),
            "output_tiles": [{"sizes": [str(size) for size in sizes]} for sizes in self.output_tiles],
            "waves_per_eu": 0,
        }


class TritonGemmConfig(Struct, frozen=True):
    """The tile of a product: `block_m` x `block_n` elements of the result, `block_k` of the contracting dimension a step."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int = 1
    num_warps: int = 4
    num_ctas: int = 1
    is_tma_allowed: bool = False
    is_warp_specialization_allowed: bool = False

    def record(self) -> dict[str, object]:
        """Return the record of the backend config."""
        return {
            "block_k": str(self.block_k),
            "block_m": str(self.block_m),
            "block_n": str(self.block_n),
            "group_size": "1",
            "is_tma_allowed": self.is_tma_allowed,
            "is_warp_specialization_allowed": self.is_warp_specialization_allowed,
            "num_ctas": str(self.num_ctas),
            "num_stages": str(self.num_stages),
            "num_warps": str(self.num_warps),
            "split_k": "0",
            "waves_per_eu": "0",
        }


def block_level_config(fusion: HloInstruction) -> BlockLevelConfig | None:
    """Return the configuration of a block-level fusion; None for one that has none."""
    record = _record(fusion, _BLOCK_LEVEL)
    if record is None:
        return None
    tiles = cast("list[dict[str, list[object]]]", record.get("output_tiles", []))
    return BlockLevelConfig(
        tuple(tuple(_number(size) for size in tile.get("sizes", [])) for tile in tiles),
        _number(record.get("num_warps", 1)),
        _number(record.get("num_ctas", 1)),
        _number(record.get("num_stages", 1)),
        bool(record.get("is_tma_allowed", False)),
        bool(record.get("is_warp_specialization_allowed", False)),
    )


def triton_gemm_config(fusion: HloInstruction) -> TritonGemmConfig | None:
    """Return the tile that was chosen for a fusion's product; None before the choice, and once there is a block-level one."""
    record = _record(fusion, _GEMM)
    if record is None:
        return None
    numbers = {name: _number(record.get(name, 0)) for name in ("block_m", "block_n", "block_k")}
    return TritonGemmConfig(
        **numbers,
        num_stages=_number(record.get("num_stages", 1)),
        num_warps=_number(record.get("num_warps", 4)),
        num_ctas=_number(record.get("num_ctas", 1)),
        is_tma_allowed=bool(record.get("is_tma_allowed", False)),
        is_warp_specialization_allowed=bool(record.get("is_warp_specialization_allowed", False)),
    )


def fusion_record(kind: str, config: BlockLevelConfig | TritonGemmConfig | None = None) -> dict[str, object]:
    """Return the record `fusion_backend_config` of a fusion of this kind."""
    record: dict[str, object] = {}
    if isinstance(config, BlockLevelConfig):
        record[_BLOCK_LEVEL] = config.record()
    record["kind"] = kind
    if isinstance(config, TritonGemmConfig):
        record[_GEMM] = config.record()
    return record


def _record(fusion: HloInstruction, name: str) -> dict[str, object] | None:
    if not fusion.is_custom_fusion:
        return None
    whole: object = config_of(fusion.backend_config).get(_CONFIG)
    record = cast("dict[str, object]", whole).get(name) if isinstance(whole, dict) else None
    return cast("dict[str, object]", record) if isinstance(record, dict) else None


def _number(value: object) -> int:
    return int(cast("int | str", value))
