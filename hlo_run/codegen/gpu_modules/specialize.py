"""Takes a kernel out of its module for one launch: sizes become constants, and device functions are inlined.

gpu.module @m {                                              module {
  gpu.func @k(%x: memref<?xf32>) kernel {                      gpu.func @k(%x: memref<1000xf32>) kernel
    %y = func.call @f(%x) ..                       =>              attributes {known_block_size = .., known_grid_size = ..} {
  }                                                              the operations of @f
  func.func @f(%x: memref<?xf32>) -> f32 {..}                  }
}                                                            }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DenseArrayBase, FunctionType, ModuleOp, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.dialects.editing.rewriting import replace_op
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp, ReturnOp
from hlo_run.errors import Unsupported

_MOST_INLINED = 10_000


def specialized(
    holder: GpuModuleOp | ModuleOp, kernel: GpuFuncOp, name: str, launch: LaunchDimensions, types: Sequence[Attribute]
) -> ModuleOp:
    """Return a module with the kernel as the function `name`, for a launch with arguments of these types.

    Raises Unsupported for calls of functions without a body, with several blocks, or that call themselves.
    """
    copy = kernel.clone()
    copy.sym_name = type(kernel.sym_name)(name)
    for argument, type_ in zip([*copy.body.blocks[0].args[: len(types)]], types, strict=True):
        if argument.type != type_:
            Rewriter.replace_value_with_new_type(argument, type_)
    copy.function_type = FunctionType.from_lists([*types], [])
    copy.known_block_size = DenseArrayBase.from_list(i32, list(launch.block))
    copy.known_grid_size = DenseArrayBase.from_list(i32, list(launch.grid))
    ops = [*(holder.body.block.ops if holder.body.blocks else ())]
    functions = {op.sym_name.data: op for op in ops if isinstance(op, func.FuncOp | GpuFuncOp)}
    _inline_calls(copy, functions)
    return ModuleOp([*(op.clone() for op in ops if isinstance(op, memref.GlobalOp)), copy])


def _inline_calls(kernel: GpuFuncOp, functions: Mapping[str, func.FuncOp | GpuFuncOp]) -> None:
    for _ in range(_MOST_INLINED):
        call = next((op for op in kernel.body.walk() if isinstance(op, func.CallOp)), None)
        if call is None:
            return
        name = call.callee.string_value()
        callee = functions.get(name)
        if callee is None or not callee.body.blocks:
            raise Unsupported(f"a call of @{name}, which has no body in the kernel's module")
        if len(callee.body.blocks) > 1:
            raise Unsupported(f"a call of @{name}, whose body has several blocks", hint="scf.if and scf.for have lowerings")
        _inline(call, callee)
    raise Unsupported("calls in a kernel: a function calls itself, or there are too many")


def _inline(call: func.CallOp, callee: func.FuncOp | GpuFuncOp) -> None:
    block = callee.body.blocks[0]
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, call.operands, strict=True))
    for op in block.ops:
        if isinstance(op, func.ReturnOp | ReturnOp):
            replace_op(call, [values.get(value, value) for value in op.operands])
            return
        copy: Operation = op.clone(values)
        Rewriter.insert_op(copy, InsertPoint.before(call))


def written_arguments(kernel: GpuFuncOp) -> tuple[bool, ...]:
    """Return for each argument of a kernel without calls whether it may write to it."""
    count = len(kernel.function_type.inputs)
    return tuple(_is_written(argument) for argument in kernel.body.blocks[0].args[:count])


def _is_written(value: SSAValue) -> bool:
    for use in value.uses:
        match use.operation:
            case memref.LoadOp() | memref.DimOp():
                continue
            case memref.CastOp() | memref.MemorySpaceCastOp() | memref.SubviewOp() | memref.ReinterpretCastOp():
                if any(_is_written(result) for result in use.operation.results):
                    return True
            case _:
                return True
    return False
