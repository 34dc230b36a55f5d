"""Lower a kernel to the LLVM dialect, with nvvm reads of ids and libdevice calls for math ops.

    func.func @k(%a: !llvm.ptr) {                    llvm.func @__nv_tanhf(f32) -> f32
      %t = gpu.thread_id  x                          llvm.func @k(%a: !llvm.ptr) {
      %i = arith.index_cast %t : index to i32          %i = nvvm.read.ptx.sreg.tid.x : i32
      %y = math.tanh %x : bf16                  =>     %w = llvm.fpext %x : bf16 to f32
                                                       %v = llvm.call @__nv_tanhf(%w) : (f32) -> f32
                                                       %y = llvm.fptrunc %v : f32 to bf16

The pass needs blocks instead of regions, and pointers instead of tensors. One walk rebuilds each function. Values of index
type become integers of the module's index width. f16 and bf16 do not change: LLVM widens them if the GPU has no instruction.
Equal constants become one op at the start of the function. Functions other than the kernel become internal.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.context import Context
from xdsl.dialects import func, llvm
from xdsl.dialects.builtin import IntegerType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.codegen.to_llvm.arith import ARITH
from hlo_run.codegen.to_llvm.builder import Builder, Handler, ModuleState
from hlo_run.codegen.to_llvm.math import MATH
from hlo_run.codegen.to_llvm.structure import STRUCTURE
from hlo_run.dialects.module_info import index_bits
from hlo_run.errors import InternalError
from hlo_run.walks import post_order

_ENTRY = "xla.entry"
_HANDLERS: dict[type[Operation], Handler] = {**ARITH, **MATH, **STRUCTURE}
LOWERED = frozenset(_HANDLERS)
"""The operations that have a lowering."""


class LowerToLlvmGpu(ModulePass):
    """Lowers a kernel to the LLVM dialect, with nvvm intrinsics and libdevice calls."""

    name = "lower-to-llvm-gpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every function, and declare the library functions that they call."""
        state = ModuleState(IntegerType(index_bits(op)))
        for function in [each for each in op.body.block.ops if isinstance(each, func.FuncOp)]:
            Rewriter.replace_op(function, _lower_function(state, function), [])
        first = op.body.block.first_op
        place = InsertPoint.before(first) if first is not None else InsertPoint.at_end(op.body.block)
        declarations = [llvm.FuncOp(name, type_, llvm.LinkageAttr("external")) for name, type_ in state.declared.items()]
        Rewriter.insert_op(declarations, place)


def _lower_function(state: ModuleState, function: func.FuncOp) -> llvm.FuncOp:
    body = _lower_body(state, function.body)
    properties: dict[str, Attribute | None] = {"arg_attrs": function.arg_attrs}
    return llvm.FuncOp(
        function.sym_name,
        state.function_type(function.function_type),
        linkage=llvm.LinkageAttr("internal" if _is_private(function) else "external"),
        body=body,
        other_props=properties,
        extra_attrs=function.attributes,
    )


def _is_private(function: func.FuncOp) -> bool:
    visibility = function.sym_visibility
    return visibility is not None and visibility.data == "private" and bool(function.body.blocks)


def _lower_body(state: ModuleState, region: Region) -> Region:
    old_blocks = [*region.blocks]
    if not old_blocks:
        return Region()
    new_blocks = [Block(arg_types=[state.convert(arg.type) for arg in block.args]) for block in old_blocks]
    builder = Builder(state, new_blocks[0], blocks=dict(zip(old_blocks, new_blocks, strict=True)))
    for old, new in builder.blocks.items():
        for old_arg, new_arg in zip(old.args, new.args, strict=True):
            new_arg.name_hint = old_arg.name_hint
            builder.values[old_arg] = new_arg
    for block in _in_dominance_order(old_blocks):
        builder.block = builder.blocks[block]
        _lower_block(builder, block)
    builder.place_constants(new_blocks[0])
    return Region(new_blocks)


def _lower_block(builder: Builder, block: Block) -> None:
    for op in block.ops:
        handler = _HANDLERS.get(type(op))
        if handler is None:
            raise InternalError(f"'{op.name}' has no lowering to LLVM")
        builder.begin(op)
        handler(builder, op)


def _in_dominance_order(blocks: list[Block]) -> Iterable[Block]:
    """Return the blocks in reverse postorder from the entry (definitions before uses), then the unreachable blocks."""
    finished = post_order(blocks[0], lambda block: reversed(block.last_op.successors) if block.last_op is not None else ())
    seen = set(finished)
    return [*reversed(finished), *(block for block in blocks if block not in seen)]
