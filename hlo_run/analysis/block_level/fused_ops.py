"""What is tiled: the instructions of a kernel and the arrays that it reads, wherever they come from.

A fusion's computation, instructions that might become one, and two nodes of a fusion graph all give the same small graph.
"""

from __future__ import annotations

from collections.abc import Collection

from hlo_run.hlo.fusion_graph import Node, Op
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape


class FusedOp:
    """An instruction of a kernel with its operands, or an array that the kernel reads (`is_input`), which has none.

    `source` is what the op was made of: an instruction, or the op or node of a fusion graph.
    """

    __slots__ = ("instruction", "is_input", "operands", "shape", "source")

    def __init__(self, instruction: HloInstruction, shape: Shape, is_input: bool, source: HloInstruction | Op | Node) -> None:
        self.instruction = instruction
        self.shape = shape
        self.is_input = is_input
        self.source = source
        self.operands: tuple[FusedOp, ...] = ()

    @property
    def opcode(self) -> str:
        """The opcode of the instruction."""
        return self.instruction.opcode

    @property
    def name(self) -> str:
        """The name of the instruction, or of the array."""
        return self.instruction.name

    def post_order(self) -> list[FusedOp]:
        """Return this op and all that it needs, operands first."""
        order: dict[FusedOp, None] = {}
        stack: list[FusedOp] = [self]
        while stack:
            top = stack[-1]
            waiting = [operand for operand in top.operands if operand not in order] if top not in order else []
            if waiting:
                stack += reversed(waiting)
            else:
                order[stack.pop()] = None
        return list(order)

    def __repr__(self) -> str:
        return f"FusedOp({self.name})"


def ops_of_computation(computation: HloComputation) -> FusedOp:
    """Return the root of a fusion's computation. Its parameters are the inputs."""
    return ops_of_instructions(computation.root, [i for i in computation.instructions if i.opcode != "parameter"])


def ops_of_instructions(root: HloInstruction, inside: Collection[HloInstruction]) -> FusedOp:
    """Return the root of the kernel of the instructions `inside`; every other operand is an input."""
    made: dict[HloInstruction, FusedOp] = {}
    within = frozenset(inside)
    stack = [root]
    while stack:
        top = stack[-1]
        if top in made:
            stack.pop()
            continue
        is_input = top not in within
        waiting = [] if is_input else [operand for operand in top.operands if operand not in made]
        if waiting:
            stack += reversed(waiting)
            continue
        stack.pop()
        op = made[top] = FusedOp(top, top.shape, is_input, top)
        if not is_input:
            op.operands = tuple([made[operand] for operand in top.operands])
    return made[root]


def ops_of_nodes(consumer: Node, producer: Node | None = None) -> FusedOp:
    """Return the root of the kernel of a node of a fusion graph, which computes `producer` itself if there is one."""
    made: dict[Op | Node, FusedOp] = {}
    stack: list[Op | Node] = [consumer.root]
    while stack:
        top = stack[-1]
        if top in made:
            stack.pop()
            continue
        if isinstance(top, Node):
            if top is not producer:
                made[top] = FusedOp(top.instruction, top.shape, True, top)
            elif top.root in made:
                made[top] = made[top.root]
            else:
                stack.append(top.root)
            continue
        waiting = [operand for operand in top.operands if operand not in made]
        if waiting:
            stack += reversed(waiting)
            continue
        stack.pop()
        op = made[top] = FusedOp(top.instruction, top.instruction.shape, False, top)
        op.operands = tuple([made[operand] for operand in top.operands])
    return made[consumer.root]
