"""A graph of one computation on which fusion decisions are recorded; `write` puts them into the module, once.

    e = f32[8] exponential(p)                     fused { q = parameter(0)  e = exponential(q)  ROOT n = negate(e) }
    ROOT n = f32[8] negate(e)             =>      ROOT fusion = f32[8] fusion(p), kind=kLoop, calls=fused

A node is an instruction of the computation or a fusion. The ops of a node are what it computes; each op is its own copy
of an instruction. So to fuse takes one step per op of the producer, however large the computation is. The ops of a
producer with one user are moved instead of copied, which costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.user_list import UserList
from hlo_run.hlo.values.shape import Shape


class Op:
    """A copy of `instruction` in a node. An operand is an op of the same node, or another node; users are ops of the node."""

    __slots__ = ("instruction", "operands", "users")

    def __init__(self, instruction: HloInstruction) -> None:
        self.instruction = instruction
        self.operands: list[Operand] = []
        self.users: list[Op] = []

    @property
    def opcode(self) -> str:
        """The instruction's opcode."""
        return self.instruction.opcode


class Node:
    """An instruction outside of fusions, or a fusion.

    `instruction` is the instruction in the module before anything was fused into it. `name` is that of the instruction,
    or of the fusion.

    `operands` are in the order of the instruction's; a fusion has each once. `ops` has users before operands, so that
    `ops[0]` is the root. `reads` maps an operand to the ops that use it. A later node has a higher `number`. `is_ordered`
    means that the instruction has a control dependency. `is_copied` means that another node has copies of the ops.
    """

    __slots__ = (
        "instruction",
        "is_changed",
        "is_copied",
        "is_fusion",
        "is_ordered",
        "kind",
        "name",
        "number",
        "operands",
        "ops",
        "reads",
        "users",
    )

    def __init__(self, instruction: HloInstruction, number: int) -> None:
        self.instruction = instruction
        self.number = number
        self.name = instruction.name
        self.is_fusion = instruction.opcode == "fusion"
        self.is_changed = False
        self.is_copied = False
        self.is_ordered = False
        self.kind = instruction.fusion_kind if self.is_fusion else ""
        self.operands: list[Node] = []
        self.users: UserList[Node] = UserList()
        self.ops: list[Op] = []
        self.reads: dict[Node, list[Op]] = {}

    @property
    def root(self) -> Op:
        """The op that computes the node's result: the first of `ops`."""
        return self.ops[0]

    @property
    def opcode(self) -> str:
        """The instruction's opcode, or `fusion`."""
        return "fusion" if self.is_fusion else self.instruction.opcode

    @property
    def shape(self) -> Shape:
        """The shape of the node's result."""
        if self.is_changed and self.is_multi_output:
            return Shape.make_tuple(tuple(op.instruction.shape for op in self.result_ops))
        return self.instruction.shape

    @property
    def is_multi_output(self) -> bool:
        """True for a fusion whose root is a tuple."""
        return self.is_fusion and self.ops[0].opcode == "tuple"

    @property
    def result_ops(self) -> list[Op]:
        """The ops whose values the node returns: the operands of a root tuple, else the root."""
        root = self.ops[0]
        if not self.is_fusion or root.instruction.opcode != "tuple":
            return [root]
        return [operand for operand in root.operands if isinstance(operand, Op)]

    def __repr__(self) -> str:
        return f"Node({self.name})"


Operand: TypeAlias = Op | Node


class FusionGraph:
    """The nodes of a computation."""

    def __init__(self, computation: HloComputation) -> None:
        assert computation.module is not None, "a computation that is fused is in a module"
        self._module = computation.module
        self.computation = computation
        self._gone: list[HloInstruction] = []
        self._new: list[Node] = []
        self._last_root: Op | None = None
        self._count = 0
        self.nodes: dict[HloInstruction, Node] = {i: Node(i, self.new_number()) for i in computation.instructions}
        for instruction, node in self.nodes.items():
            for first in instruction.control_predecessors:
                node.is_ordered = self.nodes[first].is_ordered = True
            node.operands = [self.nodes[operand] for operand in instruction.operands]
            node.users = UserList(self.nodes[user] for user in instruction.users)
        for node in self.nodes.values():
            node.ops = _ops_of(node)
            for op in node.ops:
                for operand in dict.fromkeys(op.operands):
                    if isinstance(operand, Node):
                        node.reads.setdefault(operand, []).append(op)
            if node.is_fusion and node.kind != "kCustom" and len(node.reads) < len(node.operands):
                _drop_unread(node)
        self._alive = dict.fromkeys(self.nodes.values())
        self.root = self.nodes[computation.root]

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._alive))

    def new_number(self) -> int:
        """Return the number of a new node, one above the last number."""
        self._count += 1
        return self._count

    def post_order(self) -> list[Node]:
        """Return the nodes that are not removed, operands before users."""
        done: set[Node] = set()
        order: list[Node] = []
        for start in self._alive:
            stack = [start]
            while stack:
                top = stack[-1]
                waiting = [operand for operand in top.operands if operand not in done] if top not in done else []
                if waiting:
                    stack.extend(reversed(waiting))
                    continue
                stack.pop()
                if top not in done:
                    done.add(top)
                    order.append(top)
        return order

    def fuse(self, producer: Node, consumer: Node, kind: str) -> None:
        """Fuse the ops of `producer` into `consumer`, which becomes a fusion of `kind` if it is not one.

        `producer` stays, for its other users; the caller removes it if it has none.
        """
        if not consumer.is_fusion:
            consumer.is_fusion = True
            consumer.name = self._module.unique_instruction_name("fusion")
            consumer.number = self.new_number()
        _change(consumer, kind)
        self._last_root = root = _take_ops(producer, consumer)
        for reader in consumer.reads.pop(producer):
            reader.operands = [root if operand is producer else operand for operand in reader.operands]
            root.users.append(reader)
        consumer.operands.remove(producer)
        producer.users.remove(consumer)
        self._add_operands(consumer, producer.operands)

    def fuse_sibling(self, sibling: Node, node: Node, kind: str) -> list[Node]:
        """Merge `sibling` into the fusion `node`, which then also returns the results of `sibling`; remove `sibling`.

        Neither may depend on the other. Returns the nodes whose operands changed.
        """
        elements = self._elements(sibling)
        offset = self._make_multi_output(node)
        copies = copy_ops(sibling, node)
        if sibling.is_multi_output:
            _drop_unused(copies[sibling.root], node)
        self._return_too(node, [copies[op] for op in sibling.result_ops], elements, offset)
        _change(node, kind)
        self._add_operands(node, sibling.operands)
        self.remove(sibling)
        return _readers(node)

    def fuse_and_return(self, producer: Node, consumer: Node, kind: str) -> list[Node]:
        """Fuse `producer` into `consumer`, which then also returns the result for the other users; remove `producer`.

        Returns the nodes whose operands changed.
        """
        self.fuse(producer, consumer, kind)
        root = self._last_root
        assert root is not None, "`fuse` sets the root"
        elements = self._elements(producer)
        offset = self._make_multi_output(consumer)
        self._return_too(consumer, [root], elements, offset)
        self.remove(producer)
        return _readers(consumer)

    def _elements(self, node: Node) -> list[Node]:
        """Return the get-tuple-element nodes of a node's results; a node with one result gets a new one for all its users."""
        if node.is_multi_output:
            return list(node.users)
        attributes = {"index": 0}
        made = HloInstruction("get-tuple-element", "get-tuple-element", node.shape, (), attributes, None, node.instruction.where)
        element = Node(made, self.new_number())
        element.ops = [Op(made)]
        for user in list(node.users):
            user.operands = [element if operand is node else operand for operand in user.operands]
            readers = user.reads.pop(node)
            user.reads[element] = readers
            for reader in readers:
                reader.operands = [element if operand is node else operand for operand in reader.operands]
            element.users.add(user)
        node.users = UserList()
        if self.root is node:
            self.root = element
        self._alive[element] = None
        self._new.append(element)
        return [element]

    def _make_multi_output(self, node: Node) -> int:
        """Make a fusion return a tuple; return the number of its results."""
        if not node.is_multi_output:
            (element,) = self._elements(node)
            self._read_element(element, node)
            root = Op(HloInstruction("tuple", "tuple", Shape.make_tuple((node.shape,)), where=node.instruction.where))
            root.operands = [node.root]
            node.root.users.append(root)
            node.ops.insert(0, root)
        return len(node.result_ops)

    def _return_too(self, node: Node, results: Sequence[Op], elements: Sequence[Node], offset: int) -> None:
        """Add results to a fusion that returns a tuple; `elements` are their get-tuple-element nodes, with indices from 0."""
        root = node.root
        for op in results:
            root.operands.append(op)
            op.users.append(root)
        shapes = tuple(op.instruction.shape for op in node.result_ops)
        old = root.instruction
        root.instruction = HloInstruction("tuple", "tuple", Shape.make_tuple(shapes), where=old.where)
        for element in elements:
            for operand in element.operands:
                operand.users.discard(element)
            element.instruction.attrs["index"] += offset
            self._read_element(element, node)

    def _read_element(self, element: Node, node: Node) -> None:
        element.operands = [node]
        element.root.operands = [node]
        element.reads = {node: [element.root]}
        node.users.add(element)

    def _add_operands(self, node: Node, operands: Sequence[Node]) -> None:
        present = set(node.operands)
        for operand in operands:
            if operand not in present:
                present.add(operand)
                node.operands.append(operand)
                operand.users.add(node)

    def remove(self, node: Node) -> None:
        """Remove a node without users."""
        assert not node.users, f"{node.name} is still used"
        for operand in dict.fromkeys(node.operands):
            operand.users.remove(node)
        del self._alive[node]
        self._gone.append(node.instruction)

    def write(self) -> None:
        """Write all fusions into the module."""
        pairs: dict[HloInstruction, HloInstruction] = {}
        for element in self._new:
            self.computation.add(element.instruction)
        for node in self.post_order():
            operands = [operand.instruction for operand in node.operands]
            old = node.instruction
            if node.is_changed:
                node.instruction = _make_fusion(self._module, node, operands)
                pairs[old] = node.instruction
            elif operands != list(old.operands):
                old.operands = operands
        if not pairs and not self._gone:
            return
        for instruction in (*self._gone, *pairs):
            instruction.operands = ()
        self.computation.root = self.root.instruction
        self.computation.substitute(pairs)
        self.computation.remove_all(set(self._gone))
        for node in self._alive:
            node.instruction.users = [user.instruction for user in node.users]


def _readers(node: Node) -> list[Node]:
    """Return the get-tuple-element nodes of a node, and their users."""
    return list(dict.fromkeys((*node.users, *(user for element in node.users for user in element.users))))


def _drop_unread(node: Node) -> None:
    """Drop the operands of a fusion that its ops do not use."""
    unread = [operand for operand in dict.fromkeys(node.operands) if operand not in node.reads]
    if unread:
        node.operands = [operand for operand in node.operands if operand in node.reads]
        for operand in unread:
            operand.users.remove(node)
        _change(node, node.kind)


def _drop_unused(op: Op, node: Node) -> None:
    """Remove an op without users from a node."""
    node.ops.remove(op)
    for operand in dict.fromkeys(op.operands):
        if isinstance(operand, Op):
            operand.users.remove(op)


def _change(node: Node, kind: str) -> None:
    """Mark that `write` makes a fusion of `kind` of the node, and remove duplicate operands."""
    if not node.is_changed:
        node.operands = list(dict.fromkeys(node.operands))
    node.is_changed, node.kind = True, kind


def _take_ops(producer: Node, consumer: Node) -> Op:
    """Add the ops of a producer to a consumer, and return the producer's root among them.

    The ops are copied, unless the consumer is the only user and no other node has copies. Then they are moved, though
    the producer keeps its list.
    """
    if len(producer.users) > 1 or producer.is_copied:
        producer.is_copied = True
        return copy_ops(producer, consumer)[producer.root]
    for operand, readers in producer.reads.items():
        consumer.reads.setdefault(operand, []).extend(readers)
    consumer.ops += producer.ops
    return producer.root


def copy_ops(source: Node, target: Node) -> dict[Op, Op]:
    """Add copies of the ops of one node to another, which then reads the same operands; return op → copy."""
    copies = {op: Op(op.instruction) for op in source.ops}
    for op, copy in copies.items():
        copy.operands = [copies[operand] if isinstance(operand, Op) else operand for operand in op.operands]
        for operand in dict.fromkeys(copy.operands):
            if isinstance(operand, Op):
                operand.users.append(copy)
            else:
                target.reads.setdefault(operand, []).append(copy)
    target.ops += copies.values()
    return copies


def _ops_of(node: Node) -> list[Op]:
    """Return the ops of a node's instruction in the module, users first."""
    if not node.is_fusion:
        op = Op(node.instruction)
        op.operands = list(node.operands)
        return [op]
    body = node.instruction.fused_computation
    made: dict[HloInstruction, Operand] = {}
    ops: list[Op] = []
    for instruction in body.post_order():
        if instruction.opcode == "parameter":
            made[instruction] = node.operands[instruction.parameter_number]
            continue
        op = Op(instruction)
        op.operands = [made[operand] for operand in instruction.operands]
        for operand in dict.fromkeys(op.operands):
            if isinstance(operand, Op):
                operand.users.append(op)
        made[instruction] = op
        ops.append(op)
    _make_results_ops(body.root, made, ops)
    return ops[::-1]


def _make_results_ops(root: HloInstruction, made: dict[HloInstruction, Operand], ops: list[Op]) -> None:
    """Make every result of a fusion one of its ops: an operand that is returned unchanged gets a bitcast."""
    if root.opcode == "parameter":
        ops.append(_handed_on(root, made[root]))
    elif root.opcode == "tuple":
        result = ops[-1]
        for number, (instruction, operand) in enumerate(zip(root.operands, result.operands, strict=True)):
            if isinstance(operand, Node):
                op = _handed_on(instruction, operand)
                op.users = [result]
                result.operands[number] = op
                ops.insert(len(ops) - 1, op)


def _handed_on(parameter: HloInstruction, operand: Operand) -> Op:
    """Return a bitcast op of an operand; its instruction is outside any computation."""
    source = HloInstruction(parameter.name, "parameter", parameter.shape, (), {"parameter_number": 0})
    op = Op(HloInstruction("bitcast", "bitcast", parameter.shape, [source], where=parameter.where))
    op.operands = [operand]
    return op


def _make_fusion(module: HloModule, node: Node, operands: Sequence[HloInstruction]) -> HloInstruction:
    """Return the fusion instruction of a node, outside any computation; its body is added to the module."""
    old = node.instruction
    body = HloComputation(old.fused_computation.name if old.opcode == "fusion" else "fused_computation", old.where)
    made: dict[Operand, HloInstruction] = {}
    for number, operand in enumerate(node.operands):
        parameter = HloInstruction(f"param_{number}", "parameter", operand.shape, attrs={"parameter_number": number})
        made[operand] = body.add(parameter)
    for op in reversed(node.ops):
        source = op.instruction
        copy = HloInstruction(source.name, source.opcode, source.shape, (), dict(source.attrs), dict(source.called), source.where)
        copy.operands = [made[operand] for operand in op.operands]
        made[op] = body.add(copy, is_root=op is node.root)
    module.add_computation(body)
    attributes = {"metadata": old.attrs["metadata"]} if "metadata" in old.attrs else {}
    attributes["kind"] = node.kind
    return HloInstruction(node.name, "fusion", node.shape, operands, attributes, {"calls": (body,)}, old.where)
