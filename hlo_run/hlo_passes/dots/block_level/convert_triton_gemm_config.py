"""Replace the tile that was chosen for a fusion's product by the tile of the fusion's result.

    fusion, "triton_gemm_config":{"block_m":"16","block_n":"8","block_k":"16",..}
      =>   fusion, "block_level_fusion_config":{..,"output_tiles":[{"sizes":["16","8"]}],..}
           dot, backend_config={"sizes":["16"]}

The sizes of the result's tile are a permutation of 1, .., 1, block_m, block_n: the first one, in lexicographic order, with which
the product gets the tile 1, .., 1, block_m, block_n. XLA's `ConvertTritonGemmConfig`.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.block_level.config import (
    TRITON_NESTED_GEMM,
    BlockLevelConfig,
    TritonGemmConfig,
    fusion_record,
    triton_gemm_config,
)
from hlo_run.analysis.block_level.emitter_limits import judge_limits
from hlo_run.analysis.block_level.tiling import TiledComputation, tile_computation
from hlo_run.analysis.decision import Decision
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo_passes.subgraphs.library_calls import to_json
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import TargetSpec


class ConvertTritonGemmConfig(Struct, frozen=True):
    """The pass; see the module's docstring. Raises Unsupported if no tile of the result gives the product its tile."""

    name: ClassVar[str] = "convert_triton_gemm_config"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        for fusion in module.instructions_of("fusion"):
            chosen = triton_gemm_config(fusion)
            if chosen is None:
                continue
            dot = next((i for i in fusion.fused_computation.instructions if i.opcode in ("dot", "scaled-dot")), None)
            if dot is None:
                continue
            config = _of_result(fusion, dot, chosen, ctx.target)
            record = fusion_record(TRITON_NESTED_GEMM, config)
            fusion.attrs["backend_config"] = to_json(config_of(fusion.backend_config) | {"fusion_backend_config": record})
            fusion.touch()
            dot.attrs["backend_config"] = to_json({"sizes": [str(chosen.block_k)]})
            dot.touch()


def _of_result(fusion: HloInstruction, dot: HloInstruction, chosen: TritonGemmConfig, target: TargetSpec) -> BlockLevelConfig:
    tiled = tile_computation(fusion.fused_computation)
    if isinstance(tiled, Decision):
        raise Unsupported(f"%{fusion.name} has no tiles: {tiled.reason}", fusion.where)
    wanted = (*[1] * (dot.shape.rank - 2), chosen.block_m, chosen.block_n)
    rank = fusion.fused_computation.root.shape.rank
    sizes = sorted((*[1] * (rank - 2), chosen.block_m, chosen.block_n))
    for tile in dict.fromkeys(itertools.permutations(sizes)):
        if _gives(tiled, tile, dot, wanted, chosen.block_k, target):
            return BlockLevelConfig(
                (tile,),
                chosen.num_warps,
                chosen.num_ctas,
                chosen.num_stages,
                chosen.is_tma_allowed,
                chosen.is_warp_specialization_allowed,
            )
    raise Unsupported(f"no tile of the result of %{fusion.name} gives its product the tile {list(wanted)}", fusion.where)


def _gives(
    tiled: TiledComputation, tile: tuple[int, ...], dot: HloInstruction, wanted: tuple[int, ...], step: int, target: TargetSpec
) -> bool:
    tiling = tiled.at(tiled.space.tile_sizes(tile, step))
    return not isinstance(tiling, Decision) and bool(judge_limits(tiling, target)) and tiling.sizes_of(dot) == wanted
