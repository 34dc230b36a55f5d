"""Rewrite dots to calls of cuBLASLt, if it supports their types and they are large enough.

    d = f32[64,32] dot(a, b)   =>   c = (f32[64,32], s8[33554432]) custom-call(a, b), custom_call_target="__cublas$lt$matmul"
                                    d = get-tuple-element(c), index=0

Dots of scaled 8-bit floats go first (`gemm/f8_call.py`), then all others. The call absorbs the epilogue of a dot: constant
factors and scales, bias, relu and gelu, conversion to 8 bits (`gemm/`). Needs dots as `dot_decomposer` leaves them. XLA's
`GemmRewriter`, which runs as two rows there. Without cuBLAS, numpy's BLAS computes these calls.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.attributes.table import OperandAliasing
from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.dots.gemm.bias import add_bias
from hlo_run.hlo_passes.dots.gemm.edits import Edits
from hlo_run.hlo_passes.dots.gemm.epilogues import apply_gelu, clip_at_zero, scale_by_constant
from hlo_run.hlo_passes.dots.gemm.f8_call import rewrite_f8_dot
from hlo_run.hlo_passes.dots.gemm.f8_results import round_result, scale_result
from hlo_run.hlo_passes.subgraphs.gemm_record import F8_MATMUL, LEGACY, MATMUL, gemm_record, has_auxiliary, is_call
from hlo_run.hlo_passes.subgraphs.library_calls import gemm_attributes, has_product, is_product_of_library, workspace_bytes
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import TargetSpec

# The roots of the patterns.
_VISITED = opcode_set("dot multiply divide add maximum convert")


class CublasGemmRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cublas-gemm-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        found = module.instructions_of("dot", "custom-call")
        products = {i.parent for i in found if i.opcode == "dot" or is_call(i, MATMUL, F8_MATMUL, LEGACY)}
        if not products:
            return
        executed = products.intersection(executed_computations(module))
        for computation in (c for c in computation_post_order(module) if c in executed):
            for is_narrow in (True, False):
                _rewrite_all(ctx, module, computation, is_narrow)


def _rewrite_all(ctx: PassContext, module: HloModule, computation: HloComputation, is_narrow: bool) -> None:
    edits = Edits(module, computation, ctx.options.xla_gpu_gemm_rewrite_size_threshold)
    for instruction in computation.post_order():
        if instruction.opcode in _VISITED and not edits.is_gone(instruction):
            _rewrite(edits, instruction, ctx.target, is_narrow)
    edits.finish()
    scratch = Edits(module, computation, edits.smallest_product)
    _add_workspaces(scratch, ctx.target)
    scratch.finish()


def _rewrite(edits: Edits, instruction: HloInstruction, target: TargetSpec, is_narrow: bool) -> None:
    match instruction.opcode:
        case "dot" if is_narrow:
            rewrite_f8_dot(edits, instruction, target)
        case "dot":
            _rewrite_dot(edits, instruction)
        case "multiply":
            if not scale_by_constant(edits, instruction) and not scale_result(edits, instruction):
                apply_gelu(edits, instruction)
        case "divide":
            scale_result(edits, instruction)
        case "add":
            add_bias(edits, instruction)
        case "maximum":
            clip_at_zero(edits, instruction)
        case _:
            round_result(edits, instruction)


def _rewrite_dot(edits: Edits, dot: HloInstruction) -> None:
    if (
        not is_product_of_library(dot, edits.smallest_product)
        or not has_product(dot)
        or dot.operands[0].shape.element_type.startswith("f8")
    ):
        return
    call = InstructionMaker(where=dot.where).add_with("custom-call", dot.shape, dot.operands, gemm_attributes(dot))
    edits.replace(dot, edits.computation.add(call))


def _add_workspaces(edits: Edits, target: TargetSpec) -> None:
    """Add scratch memory to the results of calls that do not return it yet."""
    computation = edits.computation
    for call in computation.post_order():
        if not is_call(call, MATMUL, F8_MATMUL, LEGACY) or not _lacks_workspace(call):
            continue
        new = computation.add(copy_instruction(call, call.operands, _with_workspace(call, target)))
        if "output_to_operand_aliasing" in call.attrs:
            pairs = (((0,), number, place) for _, number, place in call.output_to_operand_aliasing.pairs)
            new.attrs["output_to_operand_aliasing"] = OperandAliasing(tuple(pairs))
        editor = Editor(call)
        if call.shape.is_tuple:
            for user in list(call.users):
                edits.replace(user, editor.element(new, user.tuple_index))
        else:
            edits.replace(call, editor.element(new, 0))


def _lacks_workspace(call: HloInstruction) -> bool:
    if not call.shape.is_tuple:
        return True
    outputs = 1 + has_auxiliary(call) + bool(gemm_record(call).get("damax_output", False))
    is_read_by_element = not call.is_root and all(user.opcode == "get-tuple-element" for user in call.users)
    return is_read_by_element and not is_call(call, LEGACY) and len(call.shape.tuple_shapes) == outputs


def _with_workspace(call: HloInstruction, target: TargetSpec) -> Shape:
    size = workspace_bytes(target)
    if is_call(call, LEGACY):
        size = min(size, sum(operand.shape.size_bytes for operand in call.operands))
    outputs = call.shape.tuple_shapes if call.shape.is_tuple else (call.shape,)
    return Shape.make_tuple((*outputs, Shape.array("s8", (size,))))
