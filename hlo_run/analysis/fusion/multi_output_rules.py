"""Decides whether two nodes may share a kernel that returns both, by the rules of XLA's `gpu_fusible.cc` and
`multi_output_fusion.cc`.

reduce(x) along rows, and abs(x)      yes: one loop over x serves both
reduce(x) along rows, transpose(x)    no: their threads read x in different orders
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.analysis.bitcast_kind import is_reshape_or_transpose_bitcast, transpose_is_bitcast
from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.fusion.fusion_rules import LOOP_FUSIBLE, is_fusible, is_fusible_bitcast
from hlo_run.analysis.fusion.in_place_fusion import in_place_operands
from hlo_run.analysis.tiling.fusion_launch import KernelPlanner
from hlo_run.analysis.tiling.node_facts import Facts, is_contiguous_reduction, is_real_reduction
from hlo_run.analysis.tiling.reduction_description import describe_reduction
from hlo_run.analysis.tiling.transpose_description import TransposeDescription, describe_transpose
from hlo_run.hlo.fusion_graph import Node, Op
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape

_SMALL_OPERAND_BYTES = 1024


class MultiOutputRules:
    """The rules for the nodes of a graph."""

    def __init__(self, facts: Facts, planner: KernelPlanner) -> None:
        self._facts = facts
        self._planner = planner

    def is_root(self, node: Node) -> bool:
        """True if a node may be one of several roots of a kernel."""
        if not is_fusible(node):
            return False
        if node.is_fusion and node.kind == "kLoop":
            return True
        if not node.is_fusion and is_elementwise(node.instruction):
            return True
        return self._facts.node(node).is_input_reduction or self._is_input_transpose(node)

    def _is_input_transpose(self, node: Node) -> bool:
        if not self._facts.node(node).has_tiled_transpose:
            return False
        return any(self._facts.op(hero.instruction).is_tiled_transpose for hero in self._planner.heroes(node))

    def is_producer(self, node: Node) -> bool:
        """True if the kernel of a user may compute and return the node."""
        if node.is_multi_output or in_place_operands(node) or not is_fusible(node):
            return False
        if any(_moves_elements(op.instruction) for op in node.ops):
            return False
        if node.is_fusion:
            return node.kind == "kLoop"
        instruction = node.instruction
        if instruction.opcode == "reduce":
            return not instruction.shape.is_tuple
        return instruction.opcode in LOOP_FUSIBLE or is_elementwise(instruction) or is_fusible_bitcast(node)

    def judge_shapes(self, one: Node, two: Node) -> Decision:
        """Refuse nodes with different loop shapes."""
        first, second = self._real_hero(one), self._real_hero(two)
        decision = _judge_heroes(first, second)
        if not decision:
            return decision
        if any(_has_tiled_transpose(hero) for hero in (first, second)) and not self._stays_tiled(one, two, first, second):
            return no("tiled transpose would become untiled")
        shapes = self._loop_shape(one, first), self._loop_shape(two, second)
        return YES if _loops_agree(*shapes) else no("different loop shapes")

    def judge_siblings(self, one: Node, two: Node, source: Node) -> Decision:
        """Refuse users of `source` that gain nothing from a common kernel."""
        decision = self.judge_shapes(one, two)
        if not decision:
            return decision
        if _slices_apart(one, two, source):
            return no("slices are non-overlapping")
        if any(node.is_fusion and node.root.opcode == "dynamic-update-slice" for node in (one, two)):
            return no("can't fuse multiple DUSs")
        return YES

    def _real_hero(self, node: Node) -> HloInstruction:
        if not node.is_fusion:
            return node.instruction
        roots = [op.instruction for op in node.result_ops]
        heroes = [hero.instruction for hero in self._planner.heroes(node)]
        pairs = zip(heroes, roots, strict=True)
        found = (hero for hero, root in pairs if is_real_reduction(hero, root) or _has_tiled_transpose(hero))
        return next(found, node.result_ops[0].instruction)

    def _loop_shape(self, node: Node, hero: HloInstruction) -> Shape:
        del node
        tiled = is_contiguous_reduction(hero) or _has_tiled_transpose(hero)
        return hero.operands[0].shape if tiled else hero.shape

    def _stays_tiled(self, one: Node, two: Node, first: HloInstruction, second: HloInstruction) -> bool:
        """False if one fusion reads the other's tiled transpose and applies more than elementwise ops to it."""
        if not one.is_fusion or not two.is_fusion:
            return True
        if _has_tiled_transpose(first) and one in two.operands:
            return _leads_to_root(two.reads[one])
        if _has_tiled_transpose(second) and two in one.operands:
            return _leads_to_root(one.reads[two])
        return True


def _judge_heroes(one: HloInstruction, two: HloInstruction) -> Decision:
    reduces = [is_contiguous_reduction(hero) for hero in (one, two)]
    tiled = [describe_transpose(hero) if hero.opcode == "transpose" else None for hero in (one, two)]
    nested = [hero.opcode == "transpose" and description is None for hero, description in zip((one, two), tiled, strict=True)]
    if all(reduces) and not _same_reduction(one, two):
        return no("tiled reductions with different shapes")
    first, second = tiled
    if isinstance(first, TransposeDescription) and isinstance(second, TransposeDescription) and not first.equivalent(second):
        return no("tiled transposes with different shapes")
    unnested = [reduce or description is not None for reduce, description in zip(reduces, tiled, strict=True)]
    if (unnested[0] and nested[1]) or (nested[0] and unnested[1]):
        return no("multi-output fusion of a nested transpose with an unnested hero op")
    if (first is not None and reduces[1]) or (reduces[0] and second is not None):
        return no("multi-output fusion of a transpose and a reduction")
    return YES


def _same_reduction(one: HloInstruction, two: HloInstruction) -> bool:
    first, second = describe_reduction(one), describe_reduction(two)
    if isinstance(first, Decision) or isinstance(second, Decision):
        return False
    return first.equivalent(second)


def _has_tiled_transpose(hero: HloInstruction) -> bool:
    return hero.opcode == "transpose" and describe_transpose(hero) is not None


def _loops_agree(one: Shape, two: Shape) -> bool:
    if one.is_tuple or two.is_tuple:
        return one == two
    same = one.dims == two.dims and one.minor_to_major == two.minor_to_major
    return same or (one.element_count == two.element_count and is_reshape_or_transpose_bitcast(one, two))


def _moves_elements(instruction: HloInstruction) -> bool:
    if instruction.opcode == "copy":
        return True
    if instruction.opcode != "transpose":
        return False
    return not transpose_is_bitcast(instruction.operands[0].shape, instruction.shape, instruction.dimensions)


def _leads_to_root(readers: Sequence[Op]) -> bool:
    """True if one chain of elementwise ops or bitcasts with one user each leads from an operand to the root."""
    users = list(readers)
    while len(users) == 1:
        op = users[0]
        if not op.users:
            return True
        if op.opcode != "bitcast" and not is_elementwise(op.instruction):
            return False
        users = op.users
    return False


def _slices_apart(one: Node, two: Node, source: Node) -> bool:
    """True if each reads a large operand only through a slice, and the slices do not overlap."""
    if source.shape.is_tuple or source.shape.size_bytes < _SMALL_OPERAND_BYTES:
        return False
    first, second = _only_slice(one, source), _only_slice(two, source)
    if first is None or second is None:
        return False
    pairs = zip(first.slice_ranges, second.slice_ranges, strict=True)
    return any(a[0] >= b[1] or b[0] >= a[1] for a, b in pairs)


def _only_slice(node: Node, source: Node) -> HloInstruction | None:
    readers = node.reads.get(source, [])
    return readers[0].instruction if len(readers) == 1 and readers[0].opcode == "slice" else None
