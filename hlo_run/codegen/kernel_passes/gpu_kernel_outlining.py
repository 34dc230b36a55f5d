"""Move the body of every `gpu.launch` into its own kernel, and launch the kernel.

    func.func @main(%p: memref<8xf32>) {             gpu.module @main_kernel {
      gpu.launch blocks(..) threads(..) {      =>      gpu.func @main_kernel(%p: memref<8xf32>) kernel {.. use(%p) ..}
        use(%p)                                      }
        gpu.terminator                               func.func @main(%p: memref<8xf32>) {
      }                                                gpu.launch_func @main_kernel::@main_kernel .. args(%p : memref<8xf32>)
    }                                                }

Values from outside become arguments, in the order of their first use; constants are copied instead. Ids and sizes become
`gpu.block_id` and so on, and sizes of blocks that are constant the kernel's `known_block_size`. It is the first row for modules
of the gpu dialect; our emitters write kernels without launches. Mirrors MLIR's pass of this name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import DenseArrayBase, FunctionType, ModuleOp, SymbolRefAttr, UnitAttr, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects import gpu
from hlo_run.dialects.editing.rewriting import replace_value
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp, ReturnOp
from hlo_run.dialects.gpu_launch import BlockDimOp, GridDimOp, LaunchFuncOp, LaunchOp, TerminatorOp
from hlo_run.dialects.types import constant_int

_AXES = (gpu.Dimension.X, gpu.Dimension.Y, gpu.Dimension.Z)
# In the order of the arguments of a launch's body.
_ID_COUNT = 12
_IDS = (gpu.BlockIdOp, gpu.ThreadIdOp, GridDimOp, BlockDimOp)


@dataclass(frozen=True)
class GpuKernelOutlining(ModulePass):
    """Makes a `gpu.module` of every `gpu.launch`."""

    name = "gpu-kernel-outlining"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Outline all launches of the module."""
        taken = {inner.sym_name.data for inner in op.walk() if isinstance(inner, func.FuncOp | GpuModuleOp)}
        if any(isinstance(inner, LaunchOp) for inner in op.walk()):
            op.attributes["gpu.container_module"] = UnitAttr()
        for inner in [*op.walk()]:
            if isinstance(inner, LaunchOp):
                function = _function_around(inner)
                _outline(inner, function, _free_name(f"{function.sym_name.data}_kernel", taken))


def _function_around(launch: LaunchOp) -> func.FuncOp:
    around = launch.parent_op()
    while around is not None and not isinstance(around, func.FuncOp):
        around = around.parent_op()
    assert around is not None, "a launch is in a function"
    return around


def _free_name(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 0
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def _outline(launch: LaunchOp, function: func.FuncOp, name: str) -> None:
    outside = [*dict.fromkeys(_from_outside(launch))]
    copied = [value for value in outside if isinstance(value.owner, arith.ConstantOp)]
    passed = [value for value in outside if value not in copied]
    region = launch.body.clone()
    body = region.blocks[0]
    attributions = body.args[_ID_COUNT:]
    entry = Block(arg_types=[value.type for value in (*passed, *attributions)])
    for argument, (kind, axis) in zip(body.args[:_ID_COUNT], [(kind, axis) for kind in _IDS for axis in _AXES], strict=True):
        if argument.uses:
            read = kind(axis)
            entry.add_op(read)
            replace_value(argument, read.result)
    values: dict[SSAValue, SSAValue] = dict(zip(passed, entry.args[: len(passed)], strict=True))
    for value in copied:
        constant = value.owner
        assert isinstance(constant, Operation), "a constant is an operation"
        copy = constant.clone()
        entry.add_op(copy)
        values[value] = copy.results[0]
    for op in region.walk():
        for number, operand in enumerate(op.operands):
            if operand in values:
                op.operands[number] = values[operand]
    for argument, given in zip(attributions, entry.args[len(passed) :], strict=True):
        given.name_hint = argument.name_hint
        replace_value(argument, given)
    for value, given in values.items():
        given.name_hint = value.name_hint
    _enter(region, entry)
    type_ = FunctionType.from_lists([value.type for value in passed], [])
    kernel = GpuFuncOp(name, type_, region, launch.workgroup_count)
    sizes = [constant_int(size) for size in launch.block]
    if None not in sizes:
        kernel.known_block_size = DenseArrayBase.from_list(i32, [size for size in sizes if size is not None])
    Rewriter.insert_op(GpuModuleOp(name, [kernel]), InsertPoint.before(function))
    call = LaunchFuncOp(
        SymbolRefAttr(name, [name]),
        [*launch.grid, *launch.block],
        passed,
        launch.waits_for,
        launch.dynamic_shared,
        is_async=launch.is_async,
    )
    Rewriter.replace_op(launch, call)


def _enter(region: Region, entry: Block) -> None:
    """Let `entry` begin the region, with the ops of the first block, and return from the function."""
    body = region.blocks[0]
    for op in [*body.ops]:
        op.detach()
        entry.add_op(op)
    region.insert_block(entry, 0)
    region.erase_block(body)
    for block in region.blocks:
        if isinstance(block.last_op, TerminatorOp):
            Rewriter.replace_op(block.last_op, ReturnOp())


def _from_outside(launch: LaunchOp) -> Iterator[SSAValue]:
    """Yield the values from outside that the body uses, in the order of their uses."""
    for op in launch.body.walk():
        for operand in op.operands:
            if not _is_inside(operand, launch):
                yield operand


def _is_inside(value: SSAValue, launch: LaunchOp) -> bool:
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
    while block is not None:
        around = block.parent_op()
        if around is launch:
            return True
        block = around.parent_block() if around is not None else None
    return False
