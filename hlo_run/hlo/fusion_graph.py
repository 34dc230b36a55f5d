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

from hlo_run.hlo.fused_names import FusedNames, clone_name
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.user_list import UserList
from hlo_run.hlo.values.attribute_values import AttributeValue
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
    means that the instruction has a control dependency. `is_copied` means that another node has copies of the ops. `names` and
    `body_name` are those of a fusion's body. `place` and `mark` are of `analysis/fusion/node_order.py`.
    """

    __slots__ = (
        "body_name",
        "instruction",
        "is_changed",
        "is_copied",
        "is_fusion",
        "is_ordered",
        "kind",
        "mark",
        "name",
        "names",
        "number",
        "operands",
        "ops",
        "place",
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
        self.names: FusedNames[Operand] | None = None
        self.body_name = ""
        self.place = -1
        self.mark = 0

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
        self._without_body: list[HloInstruction] = []
        self._unused_bodies: list[tuple[Node, HloComputation]] = []
        self._kept_bodies: list[tuple[Node, HloComputation]] = []
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
            if node.is_fusion:
                self._read_names(node)
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
        """Return the nodes that are not removed, operands before users, from each node without users as in XLA."""
        done: set[Node] = set()
        order: list[Node] = []
        for start in [node for node in self._alive if not node.users]:
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
        names = self._begin(consumer, kind)
        copies = _take_ops(producer, consumer)
        if producer.names is None:
            names.append(copies[producer.root], producer.name, producer.operands, parameter=producer)
        else:
            order = reversed(_post_order(producer.root))
            names.merge(producer, producer.names, [(op, copies[op], op.operands) for op in order])
        self._connect(producer, consumer, copies[producer.root])
        self._take_operands(consumer)

    def fuse_sibling(self, sibling: Node, node: Node, kind: str) -> list[Node]:
        """Merge `sibling` into the fusion `node`, which then also returns the results of `sibling`; remove `sibling`.

        Neither may depend on the other. Returns the nodes whose operands changed.
        """
        self._begin(node, kind)
        copies = copy_ops(sibling, node)
        if sibling.is_multi_output:
            _drop_unused(copies[sibling.root], node)
        self._return_results(sibling, node, copies)
        self._remove(sibling)
        self._without_body.append(sibling.instruction)
        return _readers(node)

    def fuse_and_return(self, producer: Node, consumer: Node, kind: str) -> list[Node]:
        """Fuse `producer` into `consumer`, which then also returns the result for the other users; remove `producer`.

        Returns the nodes whose operands changed.
        """
        names = self._begin(consumer, kind)
        copies = copy_ops(producer, consumer)
        self._connect(producer, consumer, copies[producer.root])
        names.replace_parameter(producer, producer.root)
        self._return_results(producer, consumer, copies)
        self._remove(producer)
        self._without_body.append(producer.instruction)
        return _readers(consumer)

    def _begin(self, node: Node, kind: str) -> FusedNames[Operand]:
        """Make a fusion of the node if it is not one, mark it as changed, and return the names of its body."""
        names = node.names
        if names is None:
            names = node.names = FusedNames(self._module.instruction_names)
            node.body_name = self._module.unique_computation_name("fused_computation")
            names.append(node.root, node.name, node.operands)
            node.is_fusion = True
            node.name = self._module.unique_instruction_name("fusion")
            node.number = self.new_number()
        _change(node, kind)
        return names

    def _read_names(self, node: Node) -> None:
        """Set the names of the body of a fusion in the module."""
        names = node.names = FusedNames(self._module.instruction_names)
        body = node.instruction.fused_computation
        node.body_name = body.name
        ops: dict[HloInstruction, Operand] = {op.instruction: op for op in node.ops}
        found: dict[Operand, str] = {}
        for instruction in body.instructions:
            key = node.operands[instruction.parameter_number] if instruction.opcode == "parameter" else ops.get(instruction)
            if key is not None:
                found.setdefault(key, instruction.name)
        names.read(found, dict.fromkeys(node.operands))
        for op in node.ops:
            if op not in names:
                names.rename(op, op.instruction.name)

    def _connect(self, producer: Node, consumer: Node, root: Op) -> None:
        """Let the ops of `consumer` that read `producer` read its root instead."""
        for reader in consumer.reads.pop(producer):
            reader.operands = [root if operand is producer else operand for operand in reader.operands]
            root.users.append(reader)
        producer.users.remove(consumer)

    def _return_results(self, source: Node, node: Node, copies: dict[Op, Op]) -> None:
        """Let a fusion return the results of `source`, whose ops it has as `copies`, from the last to the first as XLA does."""
        names = node.names
        assert names is not None, "the node is a fusion"
        elements = _elements_of_results(source)
        order = [op for op in _post_order(source.root) if op in copies and not (source.is_multi_output and op is source.root)]
        if source.names is not None:
            clones = {op: self._module.unique_instruction_name(clone_name(source.names[op])) for op in order}
        else:
            clones = {source.root: source.name}
        for op in reversed(order):
            names.append(copies[op], clones[op], op.operands, parameter=op if op in names else None)
            if not source.is_multi_output and op is source.root and (source.users or self.root is source):
                self._return_too(node, copies[op])
                self._read_element(self._new_element(source, node), node, len(node.root.operands) - 1)
            elif elements.get(op):
                self._return_too(node, copies[op])
                for element in elements[op]:
                    source.users.discard(element)
                    self._renew(element, node)
                    self._read_element(element, node, len(node.root.operands) - 1)
        self._take_operands(node)

    def _new_element(self, node: Node, fusion: Node) -> Node:
        """Return a new get-tuple-element node of a fusion for all users of a node with one result; the caller connects it."""
        name = self._module.unique_instruction_name("get-tuple-element")
        old = node.instruction
        attributes: dict[str, AttributeValue] = {"index": 0, **_metadata(fusion)}
        shape = node.result_ops[0].instruction.shape if node.is_multi_output else node.shape
        made = HloInstruction(name, "get-tuple-element", shape, (), attributes, None, old.where)
        element = Node(made, self.new_number())
        element.ops = [Op(made)]
        for user in list(node.users):
            user.operands = [element if operand is node else operand for operand in user.operands]
            if user.names is not None:
                user.names.replace_parameter(node, element)
            readers = user.reads.pop(node)
            user.reads[element] = readers
            for reader in readers:
                reader.operands = [element if operand is node else operand for operand in reader.operands]
            element.users.add(user)
        node.users = UserList()
        if self.root is node:
            self.root = element
        self._alive[element] = None
        return element

    def _renew(self, element: Node, fusion: Node) -> None:
        """Give a get-tuple-element a new name, the last place and the fusion's metadata, since XLA makes another one."""
        element.instruction.attrs.pop("metadata", None)
        element.instruction.attrs.update(_metadata(fusion))
        element.number = self.new_number()
        element.name = element.instruction.name = self._module.unique_instruction_name("get-tuple-element")

    def _return_too(self, node: Node, result: Op) -> None:
        """Let a fusion also return the value of one of its ops."""
        names = node.names
        assert names is not None, "the node is a fusion"
        if not node.is_multi_output:
            root = Op(HloInstruction("tuple", "tuple", node.shape, where=node.instruction.where))
            root.operands = [node.root]
            node.root.users.append(root)
            node.ops.insert(0, root)
            names.rename(root, "tuple")
            self._read_element(self._new_element(node, node), node, 0)
        else:
            root = node.root
            names.rename(root, "tuple")
        root.operands.append(result)
        result.users.append(root)
        shapes = tuple(op.instruction.shape for op in node.result_ops)
        root.instruction = HloInstruction("tuple", "tuple", Shape.make_tuple(shapes), where=root.instruction.where)

    def _read_element(self, element: Node, node: Node, index: int) -> None:
        element.instruction.attrs["index"] = index
        element.operands = [node]
        element.root.operands = [node]
        element.reads = {node: [element.root]}
        node.users.add(element)

    def _take_operands(self, node: Node) -> None:
        """Set the operands of a fusion to the sources of its parameters."""
        assert node.names is not None, "the node is a fusion"
        before = set(node.operands)
        node.operands = [source for source in node.names.parameters if isinstance(source, Node)]
        for operand in node.operands:
            if operand not in before:
                operand.users.add(node)

    def remove(self, node: Node) -> None:
        """Remove a node without users. As in XLA, the body of a fusion that was made here stays for dce."""
        self._remove(node)
        if node.is_changed:
            bodies = self._kept_bodies if _has_own_body(node.instruction) else self._unused_bodies
            bodies.append((node, _make_body(node)))

    def _remove(self, node: Node) -> None:
        assert not node.users, f"{node.name} is still used"
        for operand in dict.fromkeys(node.operands):
            operand.users.remove(node)
        del self._alive[node]
        self._gone.append(node.instruction)

    def write(self) -> None:
        """Write all fusions into the module. New instructions come last, in the order in which they were made."""
        pairs: dict[HloInstruction, HloInstruction] = {}
        for node in self.post_order():
            if not node.is_changed and node.instruction.parent is None:
                self.computation.add_named(node.instruction)
        for node in self.post_order():
            operands = [operand.instruction for operand in node.operands]
            old = node.instruction
            if node.is_changed and not _has_own_body(old):
                node.instruction = _make_fusion(node, operands)
                pairs[old] = node.instruction
                continue
            if node.is_changed:
                self._kept_bodies.append((node, _make_body(node)))
            if operands != list(old.operands):
                old.operands = tuple(operands)
        if not pairs and not self._kept_bodies and not self._gone:
            return
        made = [node for node in self._alive if node.is_changed and node.instruction.parent is None]
        bodies = [(node, node.instruction.fused_computation) for node in made]
        for _, body in sorted((*bodies, *self._unused_bodies), key=lambda pair: pair[0].number):
            self._module.add_named_computation(body)
        for node, body in self._kept_bodies:
            _rewrite(node, body)
        for instruction in (*self._gone, *pairs):
            instruction.operands = ()
        for old in pairs:
            self._drop_body(old)
        self.computation.root = self.root.instruction
        self.computation.substitute(pairs)
        for fusion in self._without_body:
            self._drop_body(fusion)
        self.computation.remove_all(set(self._gone))
        for node in self._alive:
            node.instruction.order_users(user.instruction for user in node.users)
        places = {node.instruction: node.number for node in self._alive}
        self.computation.instructions.sort(key=places.__getitem__)

    def _drop_body(self, old: HloInstruction) -> None:
        """Remove the body of a fusion that changed, whose name the new one has, or that was merged into one of several results.

        As in XLA, bodies of other merged producers stay for dce.
        """
        if old.opcode == "fusion":
            body = old.fused_computation
            old.called = {}
            if not body.callers:
                self._module.remove_computation(body)


def _metadata(node: Node) -> dict[str, AttributeValue]:
    attributes = node.instruction.attrs
    return {"metadata": attributes["metadata"]} if "metadata" in attributes else {}


def _elements_of_results(node: Node) -> dict[Op, list[Node]]:
    """Return the get-tuple-element nodes of each result of a multi-output fusion."""
    found: dict[Op, list[Node]] = {}
    if node.is_multi_output:
        results = node.result_ops
        for element in list(node.users):
            found.setdefault(results[element.instruction.tuple_index], []).append(element)
    return found


def _post_order(root: Op) -> list[Op]:
    """Return the ops that `root` depends on, operands before users, in the order of XLA's `MakeInstructionPostOrder`."""
    done: set[Op] = set()
    order: list[Op] = []
    stack = [root]
    while stack:
        top = stack[-1]
        for operand in top.operands:
            if isinstance(operand, Op) and operand not in done:
                stack.append(operand)
                break
        else:
            stack.pop()
            done.add(top)
            order.append(top)
    return order


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
            if node.names is not None:
                node.names.remove_parameter(operand)
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


def _take_ops(producer: Node, consumer: Node) -> dict[Op, Op]:
    """Add the ops of a producer to a consumer, and return op → op of the consumer.

    The ops are copied, unless the consumer is the only user and no other node has copies. Then they are moved, though
    the producer keeps its list.
    """
    if len(producer.users) > 1 or producer.is_copied:
        producer.is_copied = True
        return copy_ops(producer, consumer)
    for operand, readers in producer.reads.items():
        consumer.reads.setdefault(operand, []).extend(readers)
    consumer.ops += producer.ops
    return {op: op for op in producer.ops}


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
        ops.append(_bitcast_op(root, made[root]))
    elif root.opcode == "tuple":
        result = ops[-1]
        for number, (instruction, operand) in enumerate(zip(root.operands, result.operands, strict=True)):
            if isinstance(operand, Node):
                op = _bitcast_op(instruction, operand)
                op.users = [result]
                result.operands[number] = op
                ops.insert(len(ops) - 1, op)


def _bitcast_op(parameter: HloInstruction, operand: Operand) -> Op:
    """Return a bitcast op of an operand; its instruction is outside any computation."""
    source = HloInstruction(parameter.name, "parameter", parameter.shape, (), {"parameter_number": 0})
    op = Op(HloInstruction("bitcast", "bitcast", parameter.shape, [source], where=parameter.where))
    op.operands = [operand]
    return op


def _make_fusion(node: Node, operands: Sequence[HloInstruction]) -> HloInstruction:
    """Return the fusion instruction of a node, outside any computation; its body is outside the module."""
    old = node.instruction
    attributes = {name: old.attrs[name] for name in ("metadata", "frontend_attributes") if name in old.attrs}
    attributes["kind"] = node.kind
    return HloInstruction(node.name, "fusion", node.shape, operands, attributes, {"calls": (_make_body(node),)}, old.where)


def _has_own_body(instruction: HloInstruction) -> bool:
    return instruction.opcode == "fusion" and len(instruction.fused_computation.callers) == 1


def _rewrite(node: Node, new: HloComputation) -> None:
    """Make the fusion instruction of a node what the node is; its body, which keeps its place in the module, becomes `new`."""
    fusion = node.instruction
    body = fusion.fused_computation
    fusion.shape = node.shape
    fusion.attrs["kind"] = node.kind
    for instruction in body.instructions:
        instruction.operands, instruction.called, instruction.parent = (), {}, None
    body.instructions = []
    for instruction in new.instructions:
        body.add_named(instruction)
    body.root = new.root
    body.forget_parameters()


def _make_body(node: Node) -> HloComputation:
    """Return the body of a fusion, outside the module."""
    names = node.names
    assert names is not None, "the node is a fusion"
    body = HloComputation(node.body_name, node.instruction.where)
    made: dict[Operand, HloInstruction] = {}
    numbers = {operand: number for number, operand in enumerate(node.operands)}
    for key, name in names.items():
        if isinstance(key, Op):
            source = key.instruction
            instruction = HloInstruction(
                name, source.opcode, source.shape, (), dict(source.attrs), dict(source.called), source.where
            )
        else:
            instruction = HloInstruction(name, "parameter", key.shape, attrs={"parameter_number": numbers[key]})
        made[key] = body.add(instruction, is_root=key is node.root)
    for op in node.ops:
        made[op].operands = tuple([made[operand] for operand in op.operands])
    return body
