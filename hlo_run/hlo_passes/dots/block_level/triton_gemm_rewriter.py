"""Make a block-level fusion of each matrix product, with operations around it that cost little in its tiles.

    d = f32[64,192] dot(a, b); t = tanh(add(d, broadcast(bias)))
      =>   t = f32[64,192] fusion(a, b, bias), kind=kCustom, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}

From the product on, the fusion takes operands of operands, as long as it can be tiled, has at most eight parameters and moves
hardly more bytes. Then it takes users one after the other, if all that they read beside it are values from outside or their
broadcasts. Bitcasts on its border stay outside. Products that are too small stay for our own kernels, those of other types for
cuBLAS. XLA's `GemmFusion` with `xla_gpu_experimental_gemm_fusion_v2`; the release's rules, which are stricter than the source
of August 2026, were found by compiling probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.block_level.config import TRITON_GEMM, fusion_record
from hlo_run.analysis.block_level.dim_tile import CollapsedDim, DimRule, ExpandedDim, SpaceDim, TileRule
from hlo_run.analysis.block_level.support import is_supported, supports
from hlo_run.analysis.block_level.tiling import tile_computation
from hlo_run.analysis.decision import Decision
from hlo_run.analysis.executed_computations import fusible_computations
from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo_passes.dots.block_level.search_space import SearchSpace
from hlo_run.hlo_passes.dots.block_level.worth_fusing import (
    binds_broadcast_input,
    is_input_worth_fusing,
    is_output_worth_fusing,
)
from hlo_run.hlo_passes.subgraphs.library_calls import gpu_backend_config, is_large_product
from hlo_run.pass_support.hlo_pass import PassContext

_MOST_PARAMETERS = 8
_INPUTS = opcode_set("constant parameter")


class TritonGemmRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "triton-gemm-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        with_dots = {dot.parent for dot in module.instructions_of("dot")}
        if not with_dots or not supports(ctx.target):
            return
        smallest = ctx.options.xla_gpu_gemm_rewrite_size_threshold
        for computation in [c for c in fusible_computations(module) if c in with_dots]:
            for dot in [i for i in computation.visit_order() if i.opcode == "dot"]:
                if is_large_product(dot, smallest) and is_supported(dot, ctx.target):
                    _fuse(ctx, module, dot)


def _fuse(ctx: PassContext, module: HloModule, dot: HloInstruction) -> None:
    space = SearchSpace(dot, ctx.target)
    space.free_dot()
    grown = _Growth(ctx, space)
    if not grown.begins():
        return
    grown.take_operands(grown.operands)
    grown.take_users()
    body, operands, last = grown.body, grown.operands, space.originals[grown.last]
    space.free_border(body)
    inputs = [space.original(operand, parameter.shape) for operand, parameter in zip(operands, body.parameters, strict=True)]
    name = f"gemm_fusion_{dot.name}"
    body.name = f"fused_computation.{name}_computation"
    module.add_computation(body)
    editor = Editor(dot, keeps_sharding=False, keeps_frontend_attributes=False)
    config = gpu_backend_config("fusion_backend_config", fusion_record(TRITON_GEMM))
    fusion = editor.add("fusion", body.root.shape, inputs, {"calls": (body,)}, name, kind="kCustom", backend_config=config)
    result = Editor(dot, derives=False).bitcast(fusion, last.shape)
    module.replace(last, result)
    remove_unused([last])


class _Growth:
    """A fusion inside a search space: its body, and the value of the search space that each parameter stands for."""

    def __init__(self, ctx: PassContext, space: SearchSpace) -> None:
        self._space = space
        self._multiplies = ctx.options.xla_gpu_experimental_enable_subchannel_dequantisation_fusion
        self.last = space.dot
        self.body, self.operands = _body_of(space.dot)

    def begins(self) -> bool:
        """True if the product alone can be tiled."""
        return _has_tiles(self.body)

    def take_operands(self, candidates: list[HloInstruction]) -> None:
        """Take the candidates into the fusion, then their operands, and so on."""
        waiting = list(candidates)
        for candidate in waiting:  # grows while we walk
            if self._takes_operand(candidate):
                waiting += candidate.operands

    def _takes_operand(self, candidate: HloInstruction) -> bool:
        added = 0 if candidate.opcode == "constant" and candidate.shape.dims else len(candidate.operands) - 1
        if candidate.opcode == "parameter" or len(self.operands) + added > _MOST_PARAMETERS or candidate not in self.operands:
            return False
        original = self._space.originals.get(candidate, candidate)
        if not binds_broadcast_input(original) and not is_input_worth_fusing(original, self._multiplies):
            return False
        return self._adopt(*_with_operand(self.body, self.operands, candidate))

    def take_users(self) -> None:
        """Take users, from the product to the root, each with those of its other operands that the fusion gains by."""
        while not self.last.is_root:
            (user,) = dict.fromkeys(self.last.users)
            count = len(self.operands)
            if not is_output_worth_fusing(self._space.originals[user]) or not self._reads_only_inputs(user):
                return
            if not self._adopt(*_with_user(self.body, self.operands, self.last, user)):
                return
            self.last = user
            if len(self.operands) > count:
                self.take_operands(self.operands)

    def _reads_only_inputs(self, user: HloInstruction) -> bool:
        """True if the user reads the value once, and beside it nothing that is computed around the product."""
        others = [operand for operand in user.operands if operand is not self.last]
        if len(others) != len(user.operands) - 1 or not self._space.moved.isdisjoint(others):
            return False
        sources = [operand.operands[0] if operand.opcode == "broadcast" else operand for operand in others]
        return all(source.opcode in _INPUTS for source in sources)

    def _adopt(self, body: HloComputation, operands: list[HloInstruction]) -> bool:
        if not _has_tiles(body):
            return False
        self.body, self.operands = body, operands
        return True


def _has_tiles(body: HloComputation) -> bool:
    """True if the body can be tiled, and parts of a dimension stay together where XLA needs it."""
    tiled = tile_computation(body)
    if isinstance(tiled, Decision):
        return False
    ops = list(tiled.region.walk())
    free: set[DimRule] = set()
    for op in ops:
        if op.op.opcode == "dot":
            free.update(op.tile[len(op.op.instruction.lhs_batch_dims) :])
    return all(_keeps_parts_together(op.tile, free) for op in ops)


def _keeps_parts_together(tile: TileRule, free: set[DimRule]) -> bool:
    """Decide for one tile. Only parts of rows or columns (`free`) may lie apart, and inner parts are powers of two."""
    places: dict[DimRule, list[int]] = {}
    for place, part in enumerate(tile):
        if isinstance(part, ExpandedDim):
            places.setdefault(part.of, []).append(place)
            if isinstance(part.of, CollapsedDim) or any(size & (size - 1) for size in part.sizes[1:]):
                return False
        elif isinstance(part, CollapsedDim):
            numbers = sorted(inner.number for inner in part.of if isinstance(inner, SpaceDim))
            if numbers and numbers[-1] - numbers[0] >= len(numbers):
                return False
    return all(of in free or found[-1] - found[0] < len(found) for of, found in places.items())


def _body_of(instruction: HloInstruction) -> tuple[HloComputation, list[HloInstruction]]:
    """Return the body of a fusion of one instruction, and the fusion's operands."""
    body, operands = HloComputation(""), list(dict.fromkeys(instruction.operands))
    parameters = {value: _parameter(body, number, value) for number, value in enumerate(operands)}
    body.root = body.add(copy_instruction(instruction, [parameters[operand] for operand in instruction.operands]))
    return body, operands


def _with_operand(
    body: HloComputation, operands: list[HloInstruction], taken: HloInstruction
) -> tuple[HloComputation, list[HloInstruction]]:
    """Return a copy of the body that computes the operand `taken` itself, whose operands become the last ones."""
    place = operands.index(taken)
    others = [operand for operand in operands if operand is not taken]
    later = [*others, *dict.fromkeys(operand for operand in taken.operands if operand not in others)]
    made = HloComputation("")
    parameters = {value: _parameter(made, number, value) for number, value in enumerate(later)}
    inner = made.add(copy_instruction(taken, [parameters[operand] for operand in taken.operands]))
    given = [inner if number == place else parameters[operand] for number, operand in enumerate(operands)]
    made.root = _copy_body(body, given, made)
    return made, later


def _with_user(
    body: HloComputation, operands: list[HloInstruction], last: HloInstruction, user: HloInstruction
) -> tuple[HloComputation, list[HloInstruction]]:
    """Return a copy of the body that goes on to `user`.

    The user's other operands come first. The operands of the fusion follow in the order in which a walk back from the product's
    result meets them.
    """
    later = [operand for operand in dict.fromkeys(user.operands) if operand is not last]
    sources = dict(zip(body.parameters, operands, strict=True))
    for inner in reversed([i for i in body.post_order() if i.opcode != "parameter"]):
        for operand in inner.operands:
            if operand in sources and sources[operand] not in later:
                later.append(sources[operand])
    made = HloComputation("")
    parameters = {value: _parameter(made, number, value) for number, value in enumerate(later)}
    given = [parameters.get(operand) for operand in operands]
    root = _copy_body(body, given, made)
    made.root = made.add(copy_instruction(user, [root if operand is last else parameters[operand] for operand in user.operands]))
    return made, later


def _copy_body(body: HloComputation, given: Sequence[HloInstruction | None], into: HloComputation) -> HloInstruction:
    """Copy the instructions of a body with other values for its parameters; return the copy of the root."""
    copies = {parameter: value for parameter, value in zip(body.parameters, given, strict=True) if value is not None}
    for old in body.post_order():
        if old not in copies:
            copies[old] = into.add(copy_instruction(old, [copies[operand] for operand in old.operands]))
    return copies[body.root]


def _parameter(body: HloComputation, number: int, value: HloInstruction) -> HloInstruction:
    return InstructionMaker(body).parameter(number, value.shape, f"param_{number}")
