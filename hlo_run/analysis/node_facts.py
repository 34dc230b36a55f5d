"""What the rules of fusion ask about a node, found out once: shared memory, reductions, what reads badly, what unrolls badly."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.fusion_roots_and_heroes import find_hero
from hlo_run.analysis.reduction_description import ReductionDescription, describe_reduction, judge_reduction
from hlo_run.analysis.transpose_description import describe_transpose
from hlo_run.analysis.unroll_factor import makes_unrolling_bad
from hlo_run.hlo.fusion_graph import Node, Op
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape

_WARPS_OF_ROW = 32
# A column reduction exchanges a tile of 32 rows of up to 4 vectors, padded by one.
_COLUMN_TILE = 32 * (4 * 32 + 1)
# What reduces fewer elements to one is computed where it is needed.
_SIGNIFICANT_REDUCTION = 16


@dataclass(frozen=True, slots=True)
class OpFacts:
    """About one instruction: see NodeFacts."""

    shared_bytes: int
    is_unnested_reduction: bool
    is_significant_reduction: bool
    moves_minor_dim: bool
    is_tiled_transpose: bool
    is_bad_to_unroll: bool
    is_elementwise: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """About a node: sums, or whether any op is such (all, for `is_elementwise`).

    `is_input_reduction`: the reduction emitter takes it. `reads_badly`: an op moves the minor dimension of what is no
    broadcast.
    """

    shared_bytes: int
    unnested_reductions: int
    has_significant_reduction: bool
    moves_minor_dim: bool
    reads_badly: bool
    has_tiled_transpose: bool
    has_concatenate: bool
    has_reduce: bool
    is_bad_to_unroll: bool
    is_elementwise: bool
    is_input_reduction: bool

    @property
    def may_have_hero(self) -> bool:
        """True if some op may be the hero of a result; else every result is its own."""
        return self.has_tiled_transpose or self.has_concatenate or self.has_reduce


class Facts:
    """The facts about instructions and nodes, kept until a node changes."""

    def __init__(self) -> None:
        self._ops: dict[HloInstruction, OpFacts] = {}
        self._nodes: dict[Node, NodeFacts] = {}

    def op(self, instruction: HloInstruction) -> OpFacts:
        found = self._ops.get(instruction)
        if found is None:
            found = self._ops[instruction] = _op_facts(instruction)
        return found

    def node(self, node: Node) -> NodeFacts:
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = self._node_facts(node)
        return found

    def forget(self, node: Node) -> None:
        """Find out anew when a node is next asked about."""
        self._nodes.pop(node, None)

    def absorb(self, producer: Node, consumer: Node, kind: str) -> None:
        """Note that `consumer` computes `producer` itself from now on, in a fusion of `kind`; asked before it does."""
        one, two = self.node(producer), self.node(consumer)
        if one.unnested_reductions or two.unnested_reductions or one.moves_minor_dim or two.moves_minor_dim:
            self.forget(consumer)
            return
        self._nodes[consumer] = NodeFacts(
            shared_bytes=one.shared_bytes + two.shared_bytes,
            unnested_reductions=0,
            has_significant_reduction=one.has_significant_reduction or two.has_significant_reduction,
            moves_minor_dim=False,
            reads_badly=False,
            has_tiled_transpose=one.has_tiled_transpose or two.has_tiled_transpose,
            has_concatenate=one.has_concatenate or two.has_concatenate,
            has_reduce=one.has_reduce or two.has_reduce,
            is_bad_to_unroll=one.is_bad_to_unroll or two.is_bad_to_unroll,
            is_elementwise=kind == "kLoop" and one.is_elementwise and two.is_elementwise,
            is_input_reduction=False,
        )

    def _node_facts(self, node: Node) -> NodeFacts:
        facts = [(op, self.op(op.instruction)) for op in node.ops]
        kept = [(op, fact) for op, fact in facts if op.opcode != "tuple"]
        has_tiled = any(fact.is_tiled_transpose for _, fact in facts)
        has_concatenate = any(op.opcode == "concatenate" for op in node.ops)
        reductions = sum(fact.is_unnested_reduction for _, fact in facts)
        return NodeFacts(
            shared_bytes=sum(fact.shared_bytes for _, fact in facts),
            unnested_reductions=reductions,
            has_significant_reduction=any(fact.is_significant_reduction for _, fact in facts),
            moves_minor_dim=any(fact.moves_minor_dim for _, fact in facts),
            reads_badly=any(fact.moves_minor_dim and not _is_broadcast(op.operands[0], node) for op, fact in facts),
            has_tiled_transpose=has_tiled,
            has_concatenate=has_concatenate,
            has_reduce=any(op.opcode == "reduce" for op in node.ops),
            is_bad_to_unroll=any(fact.is_bad_to_unroll for _, fact in facts),
            is_elementwise=node.kind in ("", "kLoop") and all(fact.is_elementwise for _, fact in kept),
            is_input_reduction=reductions > 0 and self._is_input_reduction(node, has_tiled, has_concatenate),
        )

    def _is_input_reduction(self, node: Node, has_tiled: bool, has_concatenate: bool) -> bool:
        if not node.is_fusion:
            return True
        ops = PairOps(self, None, node)
        heroes = [find_hero(ops, root, has_tiled, has_concatenate).instruction for root in node.result_ops]
        return any(hero.opcode == "reduce" and isinstance(judge_reduction(hero), ReductionDescription) for hero in heroes)


class PairOps:
    """The ops of a consumer together with those of a producer that it would compute itself."""

    __slots__ = ("_consumer", "_facts", "_producer")

    def __init__(self, facts: Facts, producer: Node | None, consumer: Node) -> None:
        self._facts = facts
        self._producer = producer
        self._consumer = consumer

    def instruction(self, op: Op) -> HloInstruction:
        return op.instruction

    def operands(self, op: Op) -> list[Op | None]:
        return [self._inside(operand) for operand in op.operands]

    def users(self, op: Op) -> list[Op]:
        if self._producer is not None and op is self._producer.root:
            return [*op.users, *self._consumer.reads[self._producer]]
        return op.users

    def is_tiled_transpose(self, op: Op) -> bool:
        return self._facts.op(op.instruction).is_tiled_transpose

    def _inside(self, operand: Op | Node) -> Op | None:
        if isinstance(operand, Op):
            return operand
        return operand.root if operand is self._producer else None


def _op_facts(instruction: HloInstruction) -> OpFacts:
    is_reduction = is_contiguous_reduction(instruction)
    transpose = describe_transpose(instruction) if instruction.opcode == "transpose" else None
    shared = transpose.shared_memory_bytes if transpose is not None else 0
    return OpFacts(
        shared_bytes=_reduction_shared_bytes(instruction) if is_reduction else shared,
        is_unnested_reduction=is_reduction,
        is_significant_reduction=_is_significant(instruction),
        moves_minor_dim=moves_minor_dim(instruction),
        is_tiled_transpose=transpose is not None,
        is_bad_to_unroll=makes_unrolling_bad(instruction),
        is_elementwise=is_elementwise(instruction) or instruction.opcode == "constant",
    )


def is_contiguous_reduction(instruction: HloInstruction) -> bool:
    """True for a reduce that the reduction emitter would rather take (`IsReductionFromOrToContiguousDimensions`)."""
    if instruction.opcode != "reduce":
        return False
    found = describe_reduction(instruction)
    return isinstance(found, ReductionDescription) and not found.is_elemental


def _reduction_shared_bytes(reduce: HloInstruction) -> int:
    found = describe_reduction(reduce)
    assert isinstance(found, ReductionDescription), "asked of contiguous reductions only"
    inputs = reduce.operands[: len(reduce.operands) // 2]
    element_bytes = sum(-(-operand.shape.dtype.bits // 8) for operand in inputs)
    return element_bytes * (_WARPS_OF_ROW if found.is_row else _COLUMN_TILE)


def _is_significant(instruction: HloInstruction) -> bool:
    if instruction.opcode != "reduce" or not instruction.shape.is_array or not instruction.shape.element_count:
        return False
    return instruction.operands[0].shape.element_count // instruction.shape.element_count >= _SIGNIFICANT_REDUCTION


def moves_minor_dim(instruction: HloInstruction) -> bool:
    """True for a copy or transpose whose result varies fastest along another dimension (`TransposesMinorDimension`)."""
    if instruction.opcode not in ("copy", "transpose") or not instruction.shape.is_array:
        return False
    source, shape = instruction.operands[0].shape, instruction.shape
    fastest, result = _fastest_dim(source), _fastest_dim(shape)
    if fastest is None or result is None:
        return False
    return fastest != (result if instruction.opcode == "copy" else instruction.attrs["dimensions"][result])


def _fastest_dim(shape: Shape) -> int | None:
    return next((dim for dim in shape.minor_to_major if shape.dims[dim] > 1), None)


def _is_broadcast(source: Op | Node, node: Node) -> bool:
    """True if what is read is one broadcast, or an iota, behind elementwise ops: within a fusion, or outside of any."""
    while True:
        instruction = source.instruction
        if isinstance(source, Node) and (node.is_fusion or source.is_fusion):
            return False
        if instruction.opcode in ("broadcast", "iota"):
            return True
        if len(instruction.operands) != 1 or (instruction.opcode != "bitcast" and not is_elementwise(instruction)):
            return False
        source = source.operands[0]
