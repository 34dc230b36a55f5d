"""Express ids and sizes of the gpu dialect by thread and block ids, for the sizes of one launch.

    %n = gpu.block_dim  x        =>   %n = arith.constant 128 : index
    %i = gpu.global_id  x        =>   %i = gpu.block_id  x * 128 + gpu.thread_id  x
    %l = gpu.lane_id             =>   %l = (thread id, linear in the block) % 32

The attributes `known_block_size` and `known_grid_size` of a gpu.func give the sizes; functions without them stay as they are.
"""

from __future__ import annotations

from math import prod

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from hlo_run.dialects import gpu
from hlo_run.dialects.editing.rewriting import replace_op
from hlo_run.dialects.editing.shuffles import WARP_LANES
from hlo_run.dialects.editing.thread_ids import AXES, Ids, known_sizes
from hlo_run.dialects.gpu_kernel import GlobalIdOp, GpuFuncOp, LaneIdOp, NumSubgroupsOp, SubgroupIdOp, SubgroupSizeOp
from hlo_run.dialects.gpu_launch import BlockDimOp, GridDimOp


class LowerGpuIds(ModulePass):
    """Expresses ids and sizes by thread and block ids."""

    name = "lower-gpu-ids"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower the ids of every gpu.func with known sizes."""
        for function in [each for each in op.walk() if isinstance(each, GpuFuncOp)]:
            block, grid = known_sizes(function.known_block_size), known_sizes(function.known_grid_size)
            if block and grid:
                for inner in [*function.body.walk()]:
                    if (value := _lowered(Ids(inner, block, grid), inner)) is not None:
                        replace_op(inner, [value])


def _global_id(ids: Ids, op: GlobalIdOp) -> SSAValue:
    axis = op.dimension.data
    first = ids.add(arith.MuliOp(ids.add(gpu.BlockIdOp(axis)), ids.number(ids.block[AXES.index(axis)])))
    return ids.add(arith.AddiOp(first, ids.add(gpu.ThreadIdOp(axis))))


def _lowered(ids: Ids, op: Operation) -> SSAValue | None:
    """Return the value of an id or a size, None for other operations."""
    match op:
        case BlockDimOp():
            return ids.number(ids.block[AXES.index(op.dimension.data)])
        case GridDimOp():
            return ids.number(ids.grid[AXES.index(op.dimension.data)])
        case GlobalIdOp():
            return _global_id(ids, op)
        case LaneIdOp():
            return ids.lane()
        case SubgroupIdOp():
            return ids.warp()
        case NumSubgroupsOp():
            return ids.number(-(-prod(ids.block) // WARP_LANES))
        case SubgroupSizeOp():
            return ids.number(WARP_LANES)
        case _:
            return None
