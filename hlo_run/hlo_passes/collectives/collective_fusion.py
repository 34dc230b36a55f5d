"""Put an all-reduce for which XLA has a Triton kernel into a fusion of its own.

    r = f32[9] all-reduce(p), backend_config={.. "kernel_strategy":"KERNEL_STRATEGY_TRITON_ONE_SHOT" ..}
    =>  r-fusion = f32[9] fusion(p), kind=kCustom, calls=fused_r, backend_config={.. "output_tiles":[{"sizes":["16"]}] ..
                   "kind":"__triton_collective" ..}

A fusion in two shots works on flat arrays, with bitcasts around it. The config has the tiles of XLA's kernel: at most 32 blocks
of up to 512 threads, powers of two. Needs the strategies of `collective-kernel-strategy-annotator`. XLA's `CollectiveFusion`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.fusion_owner import TRITON_COLLECTIVE
from hlo_run.analysis.latency.kernel_strategies import TWO_SHOT, strategy_of
from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.library_calls import whole_backend_config
from hlo_run.pass_support.hlo_pass import PassContext

_MOST_BLOCKS, _MOST_THREADS = 32, 512
_ELEMENTS_PER_THREAD = 4
_KEPT = ("metadata", "frontend_attributes")


class CollectiveFusion(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-fusion"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        for reduce in module.instructions_of("all-reduce"):
            strategy = strategy_of(reduce)
            if strategy:
                _fuse(module, reduce, strategy == TWO_SHOT, ctx.target.threads_per_warp)


def _fuse(module: HloModule, reduce: HloInstruction, is_two_shot: bool, warp: int) -> None:
    computation, operand = reduce.parent, reduce.operands[0]
    assert computation is not None, "the all-reduce is in a computation"
    is_flat = is_two_shot and reduce.shape.rank > 1
    shape = Shape.array(reduce.shape.element_type, (reduce.shape.element_count,)) if is_flat else reduce.shape
    body = HloComputation(f"fused_{reduce.name}", reduce.where)
    parameter = InstructionMaker(body, reduce.where).parameter(0, shape if is_flat else operand.shape, "param_0")
    body.add(copy_instruction(reduce, (parameter,), shape), is_root=True)
    module.add_computation(body)
    make = InstructionMaker(computation, reduce.where)
    fused = make.add("bitcast", shape, [operand]) if is_flat else operand
    kept = {name: reduce.attrs[name] for name in _KEPT if name in reduce.attrs}
    kept |= {"kind": "kCustom", "backend_config": _config(reduce, shape, is_two_shot, warp)}
    result = make.add("fusion", shape, [fused], {"calls": (body,)}, name=f"{reduce.name}-fusion", **kept)
    result.control_predecessors = list(reduce.control_predecessors)
    reduce.control_predecessors = []
    for other in computation.instructions:
        other.control_predecessors = [result if first is reduce else first for first in other.control_predecessors]
    module.replace_uses(reduce, make.add("bitcast", reduce.shape, [result]) if is_flat else result)
    computation.remove(reduce)


def _config(reduce: HloInstruction, shape: Shape, is_two_shot: bool, warp: int) -> str:
    """Return the backend config of the fusion: the tiles of its result, and the warps of a block."""
    devices = len(reduce.replica_groups.groups()[0])
    elements = shape.element_count // (devices if is_two_shot else 1)
    needed = -(-elements // _ELEMENTS_PER_THREAD)
    needed = -(-needed // warp) * warp
    threads = min(_MOST_THREADS, _power_of_two(needed))
    blocks = min(_MOST_BLOCKS, -(-needed // threads))
    tiles: dict[str, object] = {
        "num_warps": str(-(-threads // warp)),
        "output_tiles": [{"sizes": [str(size) for size in _tiles(shape, blocks)]}],
        "num_ctas": 1,
        "num_stages": 1,
        "is_tma_allowed": False,
        "is_warp_specialization_allowed": False,
        "waves_per_eu": 0,
        "num_tiles_per_pid": 0,
        "group_size": 0,
    }
    config = {name: value for name, value in config_of(reduce.backend_config).items() if name != "collective_backend_config"}
    record = {"fusion_backend_config": {"kind": TRITON_COLLECTIVE, "block_level_fusion_config": tiles}}
    return whole_backend_config(config | record)


def _tiles(shape: Shape, blocks: int) -> list[int]:
    """Return the sizes of a tile. Blocks are shared out from the most major dimension on, by powers of two."""
    sizes = [1] * shape.rank
    for dim in reversed(shape.minor_to_major):
        count = 1 << (max(min(blocks, shape.dims[dim]), 1).bit_length() - 1)
        sizes[dim] = _power_of_two(math.ceil(shape.dims[dim] / count))
        blocks //= -(-shape.dims[dim] // sizes[dim])
    return sizes


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than a positive number."""
    return 1 << (number - 1).bit_length()
