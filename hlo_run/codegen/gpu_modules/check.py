"""Checks a module of the gpu dialect before it is compiled: refuses what no row can lower, at its place in the text."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType, UnrankedMemRefType, UnregisteredOp
from xdsl.ir import Operation

from hlo_run.codegen.to_llvm.lower_to_llvm_gpu import LOWERED
from hlo_run.dialects import gpu
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp
from hlo_run.dialects.gpu_launch import LaunchFuncOp, LaunchOp
from hlo_run.dialects.parse import PlacedModule
from hlo_run.dialects.types import constant_int
from hlo_run.errors import ParseError, Unsupported, Where

_KERNEL_OPS = frozenset(
    (
        *"gpu.return gpu.terminator gpu.yield gpu.all_reduce gpu.subgroup_reduce gpu.global_id gpu.lane_id".split(),
        *"gpu.subgroup_id gpu.num_subgroups gpu.subgroup_size gpu.block_dim gpu.grid_dim".split(),
        *"memref.load memref.store memref.alloca memref.dim memref.cast memref.memory_space_cast memref.subview".split(),
        *"memref.reinterpret_cast memref.get_global memref.atomic_rmw".split(),
        *"scf.if scf.for scf.while scf.yield scf.condition scf.index_switch".split(),
        *"arith.ceildivui arith.ceildivsi arith.floordivsi affine.apply".split(),
    )
)
_NO_MEMREFS = (scf.ForOp, scf.IfOp, scf.WhileOp, scf.IndexSwitchOp)


def check_module(placed: PlacedModule) -> None:
    """Raise Unsupported or ParseError, with its place, for the first operation of a kernel that cannot be compiled."""
    modules = {op.sym_name.data: op for op in placed.module.body.block.ops if isinstance(op, GpuModuleOp)}
    for op in placed.module.walk():
        if isinstance(op, LaunchFuncOp):
            _check_launch(placed, modules, op)
        elif isinstance(op, LaunchOp) or (isinstance(op, GpuFuncOp) and op.is_kernel):
            for inner in op.body.walk():
                _check_operation(placed, inner)


def _check_launch(placed: PlacedModule, modules: dict[str, GpuModuleOp], op: LaunchFuncOp) -> None:
    holder, name = op.kernel.root_reference.data, next(iter(op.kernel.nested_references)).data
    if holder not in modules:
        raise ParseError(f"there is no gpu.module @{holder}", placed.where(op))
    kernel = next((each for each in _functions(modules[holder]) if each.sym_name.data == name), None)
    if kernel is None:
        raise ParseError(f"gpu.module @{holder} has no kernel @{name}", placed.where(op))
    if not kernel.is_kernel:
        raise ParseError(f"@{holder}::@{name} is not a kernel: it lacks the word 'kernel'", placed.where(op))
    wanted, given = [*kernel.function_type.inputs], [value.type for value in op.arguments]
    if len(wanted) != len(given):
        raise ParseError(f"@{holder}::@{name} has {len(wanted)} arguments, and the launch gives {len(given)}", placed.where(op))
    for number, (one, two) in enumerate(zip(wanted, given, strict=True)):
        if one != two:
            raise ParseError(
                f"argument {number} of @{holder}::@{name} is of type {one}, the launch gives {two}", placed.where(op)
            )
    if op.dynamic_shared is not None:
        raise Unsupported("a launch with dynamic shared memory", placed.where(op), hint="use workgroup(%tile : memref<..>)")


def _check_shuffle(op: gpu.ShuffleOp, where: Where) -> None:
    if str(op.value.type) not in ("f32", "i32"):
        raise Unsupported(f"gpu.shuffle of a value of type {op.value.type}", where, hint="shuffles move 32 bits")
    if constant_int(op.width) is None:
        raise Unsupported("gpu.shuffle with a width that is not constant", where)
    if op.valid.uses:
        raise Unsupported("a use of the second result of gpu.shuffle", where)


def _functions(module: GpuModuleOp) -> Iterator[GpuFuncOp]:
    return (op for op in module.body.block.ops if isinstance(op, GpuFuncOp))


def _check_operation(placed: PlacedModule, op: Operation) -> None:
    where = placed.where(op)
    if isinstance(op, LaunchOp | LaunchFuncOp):
        raise Unsupported("a launch inside a kernel", where)
    if isinstance(op, gpu.ShuffleOp):
        _check_shuffle(op, where)
    name = op.op_name.data if isinstance(op, UnregisteredOp) else op.name
    if type(op) not in LOWERED and op.name not in _KERNEL_OPS:
        raise Unsupported(f"'{name}' in a kernel has no lowering", where)
    values = [*op.results, *(argument for region in op.regions for block in region.blocks for argument in block.args)]
    has_memrefs = any(isinstance(value.type, MemRefType | UnrankedMemRefType) for value in values)
    if has_memrefs and (isinstance(op, _NO_MEMREFS) or (not isinstance(op, func.CallOp) and not op.name.startswith("memref."))):
        raise Unsupported(f"'{op.name}' with a memref as a result or a variable of a loop", where)
    if isinstance(op, memref.AllocaOp) and op.dynamic_sizes:
        raise Unsupported("memref.alloca in a kernel with sizes that are not constant", where)
