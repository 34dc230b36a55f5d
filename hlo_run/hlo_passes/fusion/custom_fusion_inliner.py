"""Inline fusions for another compiler, so that our emitters and libraries compile their parts.

    f = f32[8,16] fusion(a, b), kind=kCustom, calls=gemm, backend_config={.. "kind":"__triton_gemm" ..}
        =>   the instructions of `gemm`; its dot as a library call

Applies to fusions of kind kCustom whose backend config names another compiler, and to those with an instruction that our
kernels cannot contain (a sort of values computed in the fusion). A Triton fusion stays if one of our kernels computes it
without repeated work: the rows emitter, reduces that are the heroes of the reduction emitter, or no reduces. A fusion of one
collective stays too, as devices run it together. With block-level fusions, all of Triton's stay; one whose configuration has no
tiles is refused, as by XLA. Nested fusions are inlined. XLA has no such pass: Triton or a library compiles these fusions.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.block_level.config import block_level_config
from hlo_run.analysis.block_level.emitter_limits import judge_limits
from hlo_run.analysis.block_level.tiling import tile_computation
from hlo_run.analysis.buffers.sliced_products import sliced_product
from hlo_run.analysis.decision import Decision
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.fusion_owner import fusion_owner, is_block_level, is_collective_fusion, is_slice_copy, is_triton_fusion
from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.analysis.tiling.sort_steps import takes_sort
from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import copy_instruction, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo_passes.fusion.fusion_wrapper import WRAPPED
from hlo_run.hlo_passes.subgraphs.library_calls import gemm_call, result_of
from hlo_run.pass_support.hlo_pass import PassContext

_IN_KERNELS = WRAPPED | opcode_set("bitcast constant copy fusion get-tuple-element parameter tuple")
# Each element of a kernel's result would compute these again.
_REPEATED: frozenset[Opcode] = frozenset(("convolution", "dot", "fusion", "reduce-window", "scaled-dot"))


class CustomFusionInliner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "custom-fusion-inliner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place; the inlined instructions are at the position of the fusion."""
        found = False
        for computation in executed_computations(module):
            for fusion in list(computation.instructions):
                if fusion.is_custom_fusion and _is_for_others(fusion, ctx):
                    found = True
                    result = _Inliner(computation, fusion).inline(fusion.fused_computation, fusion.operands)
                    module.replace(fusion, result)
                    for other in computation.instructions:
                        if fusion in other.control_predecessors:
                            other.control_predecessors = [
                                result if predecessor is fusion else predecessor for predecessor in other.control_predecessors
                            ]
                    computation.remove(fusion)
        if found:
            remove_uncalled(module)


def _is_for_others(fusion: HloInstruction, ctx: PassContext) -> bool:
    if is_collective_fusion(fusion):
        return False
    if ctx.options.block_level_fusions and is_block_level(fusion):
        _check_tiles(fusion, ctx)
        return False
    if fusion.fused_computation.root.opcode == "sort":
        return not takes_sort(fusion)
    if sliced_product(fusion) is not None:
        return False
    opcodes = {inner.opcode for inner in fusion.fused_computation.instructions}
    if not opcodes <= _IN_KERNELS:
        return True
    if is_triton_fusion(fusion) and not opcodes & _REPEATED:
        return not _is_one_kernel(fusion, ctx)
    return bool(fusion_owner(fusion)) and not is_slice_copy(fusion)


def _check_tiles(fusion: HloInstruction, ctx: PassContext) -> None:
    """Raise Unsupported if the fusion's configuration names tiles that a kernel cannot have."""
    config = block_level_config(fusion)
    if config is None or not config.output_tiles:
        return
    tiled = tile_computation(fusion.fused_computation)
    if not isinstance(tiled, Decision):
        sizes = config.output_tiles[0]
        if len(sizes) != tiled.space.parallel_rank:
            raise Unsupported(
                f"%{fusion.name} has tiles of {len(sizes)} dimensions, but a result of {fusion.shape.rank}", fusion.where
            )
        tiled = tiled.at(tiled.space.configured_sizes(sizes))
    verdict = tiled if isinstance(tiled, Decision) else judge_limits(tiled, ctx.target)
    if not verdict:
        raise Unsupported(f"%{fusion.name} cannot have the tiles of its configuration: {verdict.reason}", fusion.where)


def _is_one_kernel(fusion: HloInstruction, ctx: PassContext) -> bool:
    """Return True if no element of the fusion's kernel would repeat a reduce that another element needs as well."""
    analysis = analyze(fusion, ctx.target)
    reduces = {inner for inner in fusion.fused_computation.instructions if inner.opcode == "reduce"}
    return analysis.kind == "rows" or reduces <= (set(analysis.heroes) if analysis.kind == "reduction" else set())


class _Inliner:
    """Copies instructions to right before `fusion`."""

    def __init__(self, computation: HloComputation, fusion: HloInstruction) -> None:
        self._computation = computation
        self._fusion = fusion

    def inline(self, body: HloComputation, operands: tuple[HloInstruction, ...]) -> HloInstruction:
        """Copy the body with its nested fusions inlined; return the copy of its root."""
        made: dict[HloInstruction, HloInstruction] = dict(zip(body.parameters, operands, strict=True))
        for old in body.post_order():
            if old in made:
                continue
            values = tuple(made[operand] for operand in old.operands)
            made[old] = self.inline(old.fused_computation, values) if old.opcode == "fusion" else self._copy(old, values)
        return made[body.root]

    def _copy(self, old: HloInstruction, operands: tuple[HloInstruction, ...]) -> HloInstruction:
        copy = copy_instruction(old, operands)
        # Triton's kernels have no workspace, and the module must not need more memory than with them.
        call = gemm_call(copy) if old.opcode == "dot" else None
        if call is None:
            return self._computation.add(copy, before=self._fusion)
        copy.operands = ()
        added = self._computation.add(call, before=self._fusion)
        return self._computation.add(result_of(added), before=self._fusion)
