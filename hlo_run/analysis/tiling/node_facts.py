"""Computes and caches the facts about nodes that the fusion rules need: shared memory, reductions, access patterns, unrolling."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.tiling.node_heroes import NodeHeroes
from hlo_run.analysis.tiling.reduction_description import ReductionDescription, describe_reduction, judge_reduction
from hlo_run.analysis.tiling.transpose_description import describe_transpose
from hlo_run.analysis.tiling.unroll_factor import makes_unrolling_bad
from hlo_run.hlo.fusion_graph import Node, Op
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape

_WARPS_OF_ROW = 32
# A column reduction has a tile of 32 rows of up to 4 vectors, padded by one element.
_COLUMN_TILE = 32 * (4 * 32 + 1)
# A reduction of fewer elements to one is recomputed wherever it is needed.
_SIGNIFICANT_REDUCTION = 16


class OpFacts(Struct, frozen=True):
    """Facts about one instruction: see NodeFacts."""

    shared_bytes: int
    is_unnested_reduction: bool
    is_significant_reduction: bool
    moves_minor_dim: bool
    is_tiled_transpose: bool
    is_bad_to_unroll: bool
    is_elementwise: bool


class NodeFacts(Struct, frozen=True):
    """Facts about a node: sums over its ops, or whether any op is such (all ops, for `is_elementwise`).

    `is_input_reduction`: the reduction emitter computes it. `reads_badly`: an op moves the minor dimension of an operand that is
    not a broadcast.
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
        """True if an op may be a hero. Otherwise every root is its own hero."""
        return self.has_tiled_transpose or self.has_concatenate or self.has_reduce


class _Tally:
    """The facts about the first `counted` ops of a node. Ops that are added later continue from there.

    `movers` are ops that move the minor dimension, each with the last op above it in a chain that may end in a broadcast.
    `reads_badly` is True if a dropped mover has no broadcast at the end of its chain, regardless of later ops.
    """

    __slots__ = (
        "counted",
        "has_concatenate",
        "has_reduce",
        "has_significant_reduction",
        "has_tiled_transpose",
        "is_bad_to_unroll",
        "is_elementwise",
        "movers",
        "moves_minor_dim",
        "reads_badly",
        "reductions",
        "shared_bytes",
    )

    def __init__(self) -> None:
        self.counted = 0
        self.shared_bytes = 0
        self.reductions = 0
        self.has_significant_reduction = False
        self.has_tiled_transpose = False
        self.has_concatenate = False
        self.has_reduce = False
        self.is_bad_to_unroll = False
        self.is_elementwise = True
        self.moves_minor_dim = False
        self.reads_badly = False
        self.movers: list[Op] = []

    def add(self, op: Op, fact: OpFacts) -> None:
        """Count an op."""
        self.counted += 1
        self.shared_bytes += fact.shared_bytes
        self.reductions += fact.is_unnested_reduction
        self.has_significant_reduction |= fact.is_significant_reduction
        self.has_tiled_transpose |= fact.is_tiled_transpose
        self.has_concatenate |= op.opcode == "concatenate"
        self.has_reduce |= op.opcode == "reduce"
        self.is_bad_to_unroll |= fact.is_bad_to_unroll
        self.is_elementwise &= fact.is_elementwise or op.opcode == "tuple"
        if fact.moves_minor_dim:
            self.moves_minor_dim = True
            self.movers.append(op)

    def moves_data(self, node: Node) -> bool:
        """True if an op moves the minor dimension of an operand that is not a broadcast."""
        if not node.is_fusion:
            return any(not _is_broadcast(op.operands[0]) for op in self.movers)
        while self.movers and not self.reads_badly:
            last = _behind_elementwise(self.movers[-1])
            if last is None:
                self.movers.pop()
            elif isinstance(last.operands[0], Node):
                # A later fused op may compute the operand.
                self.movers[-1] = last
                return True
            else:
                self.reads_badly = True
        return self.reads_badly


class Facts:
    """The facts about instructions and nodes, cached until a node changes."""

    def __init__(self) -> None:
        self._ops: dict[HloInstruction, OpFacts] = {}
        self._nodes: dict[Node, NodeFacts] = {}
        self._tallies: dict[Node, _Tally] = {}
        self.heroes = NodeHeroes(lambda op: self.op(op.instruction).is_tiled_transpose)

    def op(self, instruction: HloInstruction) -> OpFacts:
        """Return the facts about an instruction, computed on the first request."""
        found = self._ops.get(instruction)
        if found is None:
            found = self._ops[instruction] = _op_facts(instruction)
        return found

    def node(self, node: Node) -> NodeFacts:
        """Return the facts about a node, computed on the first request and after `forget`."""
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = self._node_facts(node)
        return found

    def forget(self, node: Node) -> None:
        """Drop the facts about a node; the next request computes them again."""
        self._nodes.pop(node, None)
        self._tallies.pop(node, None)
        self.heroes.forget(node)

    def absorb(self, producer: Node, consumer: Node, kind: str) -> None:
        """Record that `consumer` computes `producer` itself, in a fusion of `kind`. Call it before the graph changes."""
        one, two = self.node(producer), self.node(consumer)
        if one.unnested_reductions or two.unnested_reductions or one.moves_minor_dim or two.moves_minor_dim:
            del self._nodes[consumer]  # the tally continues with the added ops
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
        tally = self._tallies.setdefault(node, _Tally())
        for number in range(tally.counted, len(node.ops)):
            tally.add(node.ops[number], self.op(node.ops[number].instruction))
        has_tiled, has_concatenate = tally.has_tiled_transpose, tally.has_concatenate
        return NodeFacts(
            shared_bytes=tally.shared_bytes,
            unnested_reductions=tally.reductions,
            has_significant_reduction=tally.has_significant_reduction,
            moves_minor_dim=tally.moves_minor_dim,
            reads_badly=tally.moves_data(node),
            has_tiled_transpose=has_tiled,
            has_concatenate=has_concatenate,
            has_reduce=tally.has_reduce,
            is_bad_to_unroll=tally.is_bad_to_unroll,
            is_elementwise=node.kind in ("", "kLoop") and tally.is_elementwise,
            is_input_reduction=tally.reductions > 0 and self._is_input_reduction(node, has_tiled, has_concatenate),
        )

    def _is_input_reduction(self, node: Node, has_tiled: bool, has_concatenate: bool) -> bool:
        if not node.is_fusion:
            return True
        found = [self.heroes.find(None, node, root, has_tiled, has_concatenate) for root in node.result_ops]
        pairs = [(hero.instruction, root.instruction) for hero, root in zip(found, node.result_ops, strict=True)]
        return any(is_real_reduction(hero, root) for hero, root in pairs)


def is_real_reduction(hero: HloInstruction, root: HloInstruction) -> bool:
    """True for a reduce that the reduction emitter computes. A root may be too large for a block: passes split it before."""
    return hero.opcode == "reduce" and isinstance(judge_reduction(hero, in_one_block=hero is not root), ReductionDescription)


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
    """True for a reduce that the reduction emitter prefers (`IsReductionFromOrToContiguousDimensions`)."""
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
    """True for a copy or transpose that changes the fastest varying dimension (`TransposesMinorDimension`)."""
    if instruction.opcode not in ("copy", "transpose") or not instruction.shape.is_array:
        return False
    source, shape = instruction.operands[0].shape, instruction.shape
    fastest, result = _fastest_dim(source), _fastest_dim(shape)
    if fastest is None or result is None:
        return False
    return fastest != (result if instruction.opcode == "copy" else instruction.dimensions[result])


def _fastest_dim(shape: Shape) -> int | None:
    return next((dim for dim in shape.minor_to_major if shape.dims[dim] > 1), None)


def _is_broadcast(source: Op | Node) -> bool:
    """True if the operand of an unfused instruction is a broadcast or iota, looking through elementwise ops."""
    while True:
        if isinstance(source, Node) and source.is_fusion:
            return False
        if source.instruction.opcode in ("broadcast", "iota"):
            return True
        if not _hands_on(source.instruction):
            return False
        source = source.operands[0]


def _behind_elementwise(op: Op) -> Op | None:
    """Return the first op above `op`, or `op`, that is not elementwise; None if it reads a broadcast."""
    while isinstance(source := op.operands[0], Op):
        if source.opcode in ("broadcast", "iota"):
            return None
        if not _hands_on(source.instruction):
            break
        op = source
    return op


def _hands_on(instruction: HloInstruction) -> bool:
    return len(instruction.operands) == 1 and (instruction.opcode == "bitcast" or is_elementwise(instruction))
