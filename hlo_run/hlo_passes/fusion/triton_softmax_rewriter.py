"""Make a block-level fusion of each normalisation diamond, unless one kernel would be slower.

    m = f32[8,64] broadcast(reduce(x)), dimensions={0}
    s = f32[8,64] subtract(x, m)                         =>   s = f32[8,64] fusion(x), kind=kCustom, "kind":"__triton"

The fusion gets the tile sizes and warps that the tiled cost model prefers. Without it, the reductions are split and fused as
`native` passes do; that estimate must not be smaller. XLA's `softmax_rewriter_triton.cc`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.block_level.config import TRITON, fusion_record
from hlo_run.analysis.block_level.fused_ops import ops_of_computation
from hlo_run.analysis.block_level.support import supports
from hlo_run.analysis.block_level.tiled_cost import Configurations, TiledTime
from hlo_run.analysis.block_level.tiling import tile_computation
from hlo_run.analysis.decision import Decision
from hlo_run.hlo.edit import InstructionMaker, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.fusion.native_run_time import native_ticks
from hlo_run.hlo_passes.fusion.softmax_diamond import diamond_producer
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pass_support.observer import UNREPORTED

_NAME = "triton_softmax"


class TritonSoftmaxRewriter(Struct, frozen=True):
    """The pass; see the module's docstring. `native` are the passes from here to the end of fusion."""

    name: ClassVar[str] = "triton-softmax-rewriter"

    native: tuple[HloPass, ...] = ()

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        if not supports(ctx.target):
            return
        configurations = Configurations(ctx.target)
        known: dict[Hashable, TiledTime | None] = {}
        found = _diamonds(ctx, module)
        is_unchanged = True
        # Last first: the root of a diamond may be the producer of a later one.
        for root, producer in reversed(found):
            fusion = _fuse(module, root, producer)
            kernel = ops_of_computation(fusion.fused_computation)
            key = configurations.key(kernel)
            if key not in known:
                known[key] = self._configuration(ctx, fusion.fused_computation, configurations.best(kernel))
            best = known[key]
            if best is None:
                _discard(fusion, keeps_body=True)
                continue
            fusion.attrs["backend_config"] = gpu_backend_config("fusion_backend_config", fusion_record(TRITON, best.config))
            module.replace(root, fusion)
            remove_unused([root])
            is_unchanged = False
        if found and is_unchanged:
            ctx.note(UNREPORTED, lambda: self.name, if_wanted=True)

    def _configuration(self, ctx: PassContext, body: HloComputation, best: TiledTime | Decision) -> TiledTime | None:
        """Return the configuration of a diamond; None if it has none or is slower than native kernels."""
        if isinstance(best, Decision) or native_ticks(body, self.native, ctx) < best.ticks:
            return None
        return best


def _diamonds(ctx: PassContext, module: HloModule) -> list[tuple[HloInstruction, HloInstruction]]:
    """Return (root, producer) of the diamonds that can be tiled. As in XLA, a name is used up for each that was tried."""
    found: list[tuple[HloInstruction, HloInstruction]] = []
    reducing = {reduce.parent for reduce in module.instructions_of("reduce")}
    for computation in [c for c in module.computations if c in reducing] if reducing else []:
        if any(caller.opcode == "custom-call" for caller in computation.callers):
            continue
        for root in computation.post_order():
            producer = diamond_producer(root, ctx.target)
            if producer is None:
                continue
            fusion = _fuse(module, root, producer)
            if not isinstance(tile_computation(fusion.fused_computation), Decision):
                found.append((root, producer))
            _discard(fusion, keeps_body=False)
    return found


def _fuse(module: HloModule, root: HloInstruction, producer: HloInstruction) -> HloInstruction:
    """Return a fusion that computes `root` from `producer`, and that nothing uses yet."""
    body = HloComputation(f"{_NAME}_computation")
    maker = InstructionMaker(body)
    made: dict[HloInstruction, HloInstruction] = {}
    sources: list[HloInstruction] = []

    def make(old: HloInstruction) -> None:
        if old is producer or old.opcode == "parameter":
            number = len(sources)
            sources.append(old)
            made[old] = maker.parameter(number, old.shape, f"parameter_{number}")
        else:
            made[old] = body.add(copy_instruction(old, [made[operand] for operand in old.operands]), is_root=old is root)

    make(producer)
    stack = [root]
    while stack:
        top = stack[-1]
        waiting = [] if top in made or top.opcode == "parameter" else [o for o in top.operands if o not in made]
        if waiting:
            stack += reversed(waiting)
            continue
        if top not in made:
            make(top)
        stack.pop()
    assert root.parent is not None, "the root is in a computation"
    module.add_computation(body)
    maker = InstructionMaker(root.parent, root.where)
    fusion = maker.add("fusion", root.shape, sources, {"calls": (body,)}, kind="kCustom")
    fusion.name = module.unique_instruction_name(_NAME)  # As in XLA, the name that it had is used up as well.
    return fusion


def _discard(fusion: HloInstruction, keeps_body: bool) -> None:
    """Remove a fusion without users. As in XLA, the body of one that is too slow stays for dce."""
    body, computation = fusion.fused_computation, fusion.parent
    assert computation is not None
    assert body.module is not None
    module = body.module
    computation.remove(fusion)
    if not keeps_body:
        module.remove_computation(body)
