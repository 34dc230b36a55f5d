"""Make block-level fusions of the native fusions that native kernels compute badly.

    f = f32[4,6,5] fusion(p), kind=kLoop, calls={ ROOT t = transpose(q), dimensions={2,1,0} }
        =>   f = f32[4,6,5] fusion(p), kind=kCustom, .., "kind":"__triton"

These are transposes that swap the minor dimension with one that is not next to it, and sums of s32; a flag takes all fusions
without products that can be tiled. XLA's `fusion_block_level_rewriter.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.block_level.config import TRITON, block_level_config, fusion_record
from hlo_run.analysis.block_level.fused_ops import ops_of_computation
from hlo_run.analysis.block_level.support import is_supported_computation, supports
from hlo_run.analysis.block_level.tiled_cost import Configurations
from hlo_run.analysis.decision import Decision
from hlo_run.analysis.tiling.transpose_description import normalize_transpose
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config
from hlo_run.pass_support.hlo_pass import PassContext

_PRODUCTS: frozenset[Opcode] = frozenset(("dot", "scaled-dot"))


class FusionBlockLevelRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "fusion-block-level-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        if not supports(ctx.target):
            return
        configurations = Configurations(ctx.target)
        takes_all = ctx.options.xla_gpu_experimental_enable_fusion_block_level_rewriter
        for fusion in module.instructions_of("fusion"):
            if not (_is_slow(fusion) or takes_all) or block_level_config(fusion) is not None:
                continue
            if any(instruction.opcode in _PRODUCTS for instruction in fusion.fused_computation.instructions):
                continue
            if not is_supported_computation(fusion.fused_computation, ctx.target):
                continue
            best = configurations.best(ops_of_computation(fusion.fused_computation))
            if isinstance(best, Decision):
                continue
            record, given = fusion_record(TRITON, best.config), config_of(fusion.backend_config)
            fusion.attrs["kind"] = "kCustom"
            fusion.attrs["backend_config"] = gpu_backend_config("fusion_backend_config", record, given)


def _is_slow(fusion: HloInstruction) -> bool:
    root = fusion.fused_computation.root
    if root.opcode == "transpose":
        return fusion.fusion_kind == "kLoop" and _is_slow_transpose(root)
    return root.opcode == "reduce" and all(value.shape.element_type == "s32" for value in (root, *root.operands))


def _is_slow_transpose(root: HloInstruction) -> bool:
    """True for a transpose of a parameter that swaps the minor dimension with one before the last two."""
    source = root.operands[0]
    if not (root.shape.has_default_layout and source.shape.has_default_layout):
        return False
    dims, permutation = normalize_transpose(root.shape.dims, root.dimensions)
    last = len(dims) - 1
    if last < 0 or permutation[permutation[last]] != last or permutation[last] >= last - 1:
        return False
    if source.opcode == "bitcast" and source.operands[0].opcode == "parameter":
        # With a power of two the minor dimension of the bitcast has tiles even if its operand has it merged with others.
        minor = source.shape.dims[-1]
        return minor & (minor - 1) == 0
    return source.opcode == "parameter"
