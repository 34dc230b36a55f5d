"""Recognises normalisation diamonds: a value that is combined with a reduction of its own rows.

    m = f32[8,64] broadcast(reduce(x)), dimensions={0}
    ROOT s = f32[8,64] subtract(x, m)

XLA's matcher of `softmax_rewriter_triton.cc`.
"""

from __future__ import annotations

from hlo_run.analysis.block_level.support import is_supported
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.target import TargetSpec


def diamond_producer(root: HloInstruction, target: TargetSpec) -> HloInstruction | None:
    """Return the first value of the diamond that ends at this root; None without a diamond."""
    if not _is_elementwise_binary(root) or not is_supported(root, target):
        return None
    broadcast = _first_above(root.operands[1], "broadcast", target)
    reduce = None if broadcast is None else _first_above(broadcast.operands[0], "reduce", target)
    if broadcast is None or reduce is None:
        return None
    if not (broadcast.shape.has_default_layout and reduce.shape.has_default_layout and _is_row_reduction(reduce, target)):
        return None
    if len(broadcast.users) != 1 or len(reduce.users) != 1 or broadcast.shape.rank - 1 in broadcast.dimensions:
        return None
    producer = reduce.operands[0]
    while _is_trivial(producer, target):
        producer = _main_operand(producer)
    if not producer.shape.has_default_layout or not _leads_to(producer, root.operands[0], target):
        return None
    return producer if producer is root.operands[0] or len(root.operands[0].users) == 1 else None


def _is_row_reduction(reduce: HloInstruction, target: TargetSpec) -> bool:
    """True for a reduce of the last dimension alone, from a constant."""
    if not is_supported(reduce, target) or reduce.dimensions != (reduce.operands[0].shape.rank - 1,):
        return False
    start = reduce.operands[1]
    if start.opcode == "convert" and is_supported(start, target):
        start = start.operands[0]
    return start.opcode == "constant"


def _first_above(start: HloInstruction, opcode: Opcode, target: TargetSpec) -> HloInstruction | None:
    """Return the first instruction with this opcode on the way up through trivial ones."""
    while start.opcode != opcode:
        if not _is_trivial(start, target):
            return None
        start = _main_operand(start)
    return start


def _leads_to(producer: HloInstruction, consumer: HloInstruction, target: TargetSpec) -> bool:
    """True if trivial instructions lead from `consumer` up to `producer`."""
    if producer is consumer:
        return True
    found: HloInstruction | None = consumer
    while (found := _first_above(consumer, producer.opcode, target)) is not None:
        if found is producer:
            return True
        if not _is_trivial(found, target):
            return False
        (consumer, *_) = found.operands
    return False


def _is_trivial(instruction: HloInstruction, target: TargetSpec) -> bool:
    """True if an instruction reads no second array, has one user, and computes elements in place in the default layout."""
    if len(instruction.users) > 1 or not instruction.shape.is_array or not instruction.shape.has_default_layout:
        return False
    if instruction.opcode == "bitcast":
        return True
    if not is_elementwise(instruction):
        return False
    if len(instruction.operands) not in (1, 2):
        return False
    # Two operands are the same value, or one of them is a splat.
    one, two = instruction.operands[0], instruction.operands[-1]
    return (one is two or _is_splat(one) != _is_splat(two)) and bool(is_supported(instruction, target))


def _main_operand(instruction: HloInstruction) -> HloInstruction:
    return instruction.operands[-1] if _is_splat(instruction.operands[0]) else instruction.operands[0]


def _is_splat(value: HloInstruction) -> bool:
    """True for a broadcast of a constant of one element, or of a parameter."""
    if value.opcode != "broadcast":
        return False
    source = value.operands[0]
    return source.opcode == "parameter" or (source.opcode == "constant" and not source.shape.dims)


def _is_elementwise_binary(instruction: HloInstruction) -> bool:
    return len(instruction.operands) == 2 and is_elementwise(instruction)
