"""Computes the operations and the used parts of the operands of a single instruction.

Mirrors the handlers of XLA's `HloCostAnalysis` and `GpuHloCostAnalysis` for fusible instructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from hlo_run.analysis.bitcast_kind import is_bitcast
from hlo_run.analysis.cost.convolution_products import convolution_products
from hlo_run.analysis.cost.op_cycles import cycles_per_element
from hlo_run.analysis.elementwise import is_element_operation
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.target import TargetSpec

_CONCATENATE_FLOPS = 6
_FLOPS_PER_FMA = 2
_POINTER_BYTES = 8
_CONVOLUTIONS = "__cudnn$conv"
_PRODUCT_CALLS = ("__cublas$lt$matmul", "__cublas$lt$matmul$f8")
# A concatenate whose parts end within a warp executes both branches, at more cost than their sum in a fusion.
_MISALIGNED_CONCATENATE_FLOPS = 400
_WARP_MASK = 31


class OpCost(Struct):
    """The cost of an instruction. `flops` are in clock cycles of one unit. `utilization` and `bytes_read` are by operand number.

    An operand's utilization is the mean number of reads of its elements. A missing operand has utilization 1 and all bytes.
    """

    flops: int
    bytes_written: int
    utilization: dict[int, float]
    bytes_read: dict[int, int]


def shape_bytes(shape: Shape) -> int:
    """Return the bytes of an array, or of all arrays of a tuple."""
    return sum(leaf.size_bytes for _, leaf in shape.leaves()) if shape.is_tuple else shape.size_bytes


def operand_bytes(shape: Shape) -> int:
    """Return the bytes of an array, or of the table of pointers of a tuple."""
    return _POINTER_BYTES * len(shape.tuple_shapes) if shape.is_tuple else shape.size_bytes


def op_cost(instruction: HloInstruction, target: TargetSpec) -> OpCost:
    """Return the cost of a single instruction."""
    cost = OpCost(0, shape_bytes(instruction.shape), {}, {})
    # A copy has no flops. XLA's cost model counts the computation of a map separately.
    if is_element_operation(instruction):
        shape = instruction.shape
        cost.flops = cycles_per_element(instruction.opcode, shape.element_type, target) * shape.element_count
    elif instruction.opcode in ("bitcast", "transpose") and is_bitcast(instruction):
        cost.bytes_written, cost.bytes_read[0] = 0, 0
    elif instruction.opcode in ("constant", "parameter"):
        cost.bytes_written = 0
    handler = _HANDLERS.get(instruction.opcode)
    if handler is not None:
        handler(instruction, cost, target)
    return cost


def _ratio(one: Shape, two: Shape) -> float:
    return one.element_count / two.element_count if two.element_count else 0.0


def _computation_flops(computation: HloComputation, target: TargetSpec) -> int:
    return sum(op_cost(instruction, target).flops for instruction in computation.instructions)


def _applied_flops(instruction: HloInstruction, target: TargetSpec) -> int:
    return _computation_flops(instruction.to_apply, target)


def _first(shape: Shape) -> Shape:
    return shape.tuple_shapes[0] if shape.is_tuple else shape


def _map(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    cost.flops = _applied_flops(instruction, target) * instruction.shape.element_count


def _reduce(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    results = _first(instruction.shape).element_count
    cost.flops = _applied_flops(instruction, target) * (instruction.operands[0].shape.element_count - results)
    for number in range(len(instruction.operands) // 2, len(instruction.operands)):
        cost.bytes_read[number] = results * instruction.operands[number].shape.size_bytes
        cost.utilization[number] = results


def _reduce_window(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    source, results = instruction.operands[0].shape, _first(instruction.shape).element_count
    window = math.prod(dim.size for dim in instruction.window.dims)
    cost.flops = _applied_flops(instruction, target) * (window - 1) * results
    cost.utilization[0] = results * window / source.element_count if source.element_count else 0.0
    cost.bytes_read[0] = results * window * -(-source.dtype.bits // 8)


def _broadcast(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    del target
    cost.utilization[0] = _ratio(instruction.shape, instruction.operands[0].shape)
    cost.bytes_read[0] = instruction.shape.size_bytes


def _slice(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    del target
    cost.utilization[0] = _ratio(instruction.shape, instruction.operands[0].shape)
    cost.bytes_read[0] = instruction.shape.size_bytes


def _dynamic_update_slice(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    del target
    update = instruction.operands[1].shape
    cost.bytes_written, cost.bytes_read[0] = update.size_bytes, 0
    cost.utilization[0] = 1.0 - _ratio(update, instruction.shape)


def _scatter(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    inputs = len(instruction.operands) // 2
    for number in range(inputs):
        update = instruction.operands[inputs + 1 + number].shape.size_bytes
        cost.bytes_read[number] = cost.bytes_read[inputs + 1 + number] = update
    cost.bytes_written = sum(cost.bytes_read[number] for number in range(inputs))
    cost.flops = _applied_flops(instruction, target) * instruction.operands[inputs + 1].shape.element_count


def _reducing_collective(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    """The operations of one sum per element of the result. The elements of several results have no type in XLA's count."""
    leaves = [leaf for _, leaf in instruction.shape.leaves()]
    cycles = cycles_per_element(instruction.to_apply.root.opcode, instruction.shape.element_type, target)
    cost.flops = cycles * sum(leaf.element_count for leaf in leaves)


def _nothing(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    """A value is handed on without work."""
    del target
    cost.bytes_written = 0
    cost.bytes_read = dict.fromkeys(range(len(instruction.operands)), 0)


def _tuple(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    _nothing(instruction, cost, target)
    cost.bytes_written = _POINTER_BYTES * len(instruction.operands)


def _custom_call(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    """Products of cuBLASLt and convolutions count their multiplications and additions. Nothing is known about other calls."""
    product = instruction.shape.tuple_shapes[0] if instruction.shape.is_tuple else instruction.shape
    if instruction.custom_call_target.startswith(_CONVOLUTIONS):
        cost.flops = _FLOPS_PER_FMA * convolution_products(instruction, product)
        cost.bytes_written = product.size_bytes
        return
    if instruction.custom_call_target not in _PRODUCT_CALLS:
        _nothing(instruction, cost, target)
        return
    config = config_of(instruction.backend_config).get("gemm_backend_config", {})
    lhs = instruction.operands[0].shape
    width = math.prod(lhs.dims[int(dim)] for dim in config.get("dot_dimension_numbers", {}).get("lhs_contracting_dimensions", ()))
    cost.flops = _FLOPS_PER_FMA * product.element_count * width
    cost.bytes_written = product.size_bytes


def _concatenate(instruction: HloInstruction, cost: OpCost, target: TargetSpec) -> None:
    del target
    axis: int = instruction.dimensions[0]
    is_misaligned = axis > 0 and instruction.operands[0].shape.dims[axis] & _WARP_MASK
    each = _MISALIGNED_CONCATENATE_FLOPS if is_misaligned else _CONCATENATE_FLOPS
    cost.flops = each * instruction.shape.element_count


_HANDLERS: dict[Opcode, Callable[[HloInstruction, OpCost, TargetSpec], None]] = {
    "all-reduce": _reducing_collective,
    "all-reduce-start": _reducing_collective,
    "broadcast": _broadcast,
    "after-all": _nothing,
    "concatenate": _concatenate,
    "custom-call": _custom_call,
    "dynamic-slice": _slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _slice,
    "get-tuple-element": _nothing,
    "map": _map,
    "reduce": _reduce,
    "reduce-scatter": _reducing_collective,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "slice": _slice,
    "tuple": _tuple,
}
