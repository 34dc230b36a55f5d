"""Refuses fusions that could read elements of an operand after another thread has changed them in place.

    d = f32[8] dynamic-update-slice(p, update(reverse(p)), i)      no: other threads write what reverse reads
    d = f32[8] dynamic-update-slice(p, abs(dynamic-slice(p, i)), i)    yes: each thread reads what it writes itself

XLA's `InstructionFusion::ShouldFuseInPlaceOp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.fusion_graph import Node, Op, Operand
from hlo_run.hlo.opcodes.names import Opcode

# Besides an update and elementwise ops, a producer may contain these (XLA's rule for in-place fusions).
_HANDS_ON: frozenset[Opcode] = frozenset(("bitcast", "constant", "tuple"))

_READ_TWICE = (
    "The consumer is an in-place operation that has an additional operand that has the same value as the in-place buffer"
)


def in_place_operands(node: Node) -> list[Node]:
    """Return the operands that a node changes in place."""
    found: list[Node] = []
    for root in node.result_ops:
        update = _behind_bitcasts(root)
        if isinstance(update, Node):
            continue
        if update.opcode == "dynamic-update-slice":
            sources: Sequence[Operand] = update.operands[:1]
        elif update.opcode == "scatter":
            sources = update.operands[: len(update.operands) // 2]
        else:
            continue
        found += [source for source in map(_behind_bitcasts, sources) if isinstance(source, Node)]
    return found


def may_update_in_place(producer: Node, consumer: Node) -> Decision:
    """Return whether the rules about in-place changes allow to fuse `producer` into `consumer`."""
    for changed in in_place_operands(consumer):
        if consumer.operands.count(changed) > 1:
            return no(_READ_TWICE)
        if changed is producer or changed in producer.operands:
            decision = _judge_reads(producer, consumer)
            if not decision:
                return decision
    return YES


def _judge_reads(producer: Node, consumer: Node) -> Decision:
    """Allow a producer whose elements depend on elements at the same place, or on the slice that the consumer changes."""
    others = [op for op in producer.ops if not _is_elementwise(op) and op.opcode not in _HANDS_ON]
    if len(others) > 1:
        return no("Producer fusion has multiple non-elementwise ops, bailing.")
    if others:
        return _judge_slices(others[0], producer, consumer)
    roots = [_behind_bitcasts(root) for root in consumer.result_ops]
    if consumer.is_fusion and any(_reads_elsewhere(op, roots) for op in consumer.reads[producer]):
        return no("Non-elementwise ops in consumer lead to inplace conflict after fusion.")
    return YES


def _judge_slices(reader: Op, producer: Node, consumer: Node) -> Decision:
    """Allow a producer that reads, by `reader`, only the slice that the consumer changes."""
    updates = [op for op in consumer.ops if op.opcode == "dynamic-update-slice"]
    if len(updates) != 1:
        return no("multiple dus ops, bailing." if updates else "the consumer changes its operand at other places")
    (update,) = updates
    if reader.opcode in ("slice", "dynamic-slice") and reader.instruction.shape != update.instruction.operands[1].shape:
        kind = "Slice" if reader.opcode == "slice" else "Dynamic slice"
        return no(f"{kind} op has a different shape than the update shape of the dus op, bailing.")
    rank = update.instruction.shape.rank
    starts = [_start(operand) for operand in update.operands[2 : 2 + rank]]
    if reader.opcode == "slice":
        expected = [start for start, _, _ in reader.instruction.slice_ranges]
        if starts != expected or any(stride != 1 for _, _, stride in reader.instruction.slice_ranges):
            return no("DUS and slice index mismatch")
    elif reader.opcode == "dynamic-slice":
        if starts != [_start(operand) for operand in reader.operands[1 : 1 + rank]]:
            return no("DUS and DS index mismatch")
    else:
        return no("unrecognized inplace update non-elementwise output pair")
    if consumer.is_fusion and any(_reads_elsewhere(op, [update], frozenset()) for op in consumer.reads[producer]):
        kind = "slice" if reader.opcode == "slice" else "DS"
        return no(f"Fusing {kind} into DUS will also fuse another non-elementwise op with shared operand as DUS.")
    return YES


def _start(operand: Operand) -> object:
    """Return the identity of a start index: the value of a constant, or the op that computes it."""
    if operand.instruction.opcode == "constant" and operand.instruction.shape.is_array:
        return int(operand.instruction.constant_array.flat[0])
    return operand


def _reads_elsewhere(op: Op, updates: Sequence[Operand], hands_on: frozenset[Opcode] = _HANDS_ON) -> bool:
    """True if an op other than the updates uses `op`, or a value computed from it, at other indices.

    Opcodes of `hands_on` use it at the same ones. XLA's rule for slices counts a bitcast as a use at others.
    """
    queue, seen = [op], {op}
    for each in queue:
        if each not in updates and not _is_elementwise(each) and each.opcode not in hands_on:
            return True
        fresh = [user for user in each.users if user not in seen]
        seen.update(fresh)
        queue += fresh
    return False


def _is_elementwise(op: Op) -> bool:
    return op.opcode == "constant" or is_elementwise(op.instruction)


def _behind_bitcasts(operand: Operand) -> Operand:
    while isinstance(operand, Op) and operand.opcode == "bitcast":
        operand = operand.operands[0]
    return operand
