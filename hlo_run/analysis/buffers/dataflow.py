"""Finds the value at each shape index of each instruction, through tuples, calls, branches and loops (SSA form).

    w = (s32[], f32[8]) while(t), ..        w{0} is a phi of t{0} and of what the body makes of it

A value is one array (or tuple table, or token), defined at (instruction, shape index). Most instructions define a value at
every index; some forward values of their operands. A phi joins different values at control flow. A value that a loop does
not change is one value inside and outside. Mirrors XLA's `HloDataflowAnalysis` in SSA form, numbers of values included.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from hlo_run.analysis.buffers.dataflow_values import HloPosition, HloUse, HloValue, ValueTree
from hlo_run.analysis.buffers.phi_graph import replaceable_phis
from hlo_run.analysis.computation_order import computation_post_order, flat_post_order, nested_computations
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW, FORWARDED_PART, SYNC_CONTROL_FLOW
from hlo_run.hlo.values.shape import Shape, ShapeIndex

# Their results contain only values of other instructions.
# Of their results, only the tuple or array itself is a value of theirs.
_OWN_TOP_ALONE: tuple[Opcode, ...] = ("tuple", "copy")
# Their arrays are those of the operand, and the tuples of them are values of theirs.
_OWN_TABLES: frozenset[Opcode] = frozenset(("async-update", "async-done", "all-gather-done", "collective-permute-done"))
_NO_OWN_VALUE = frozenset((*FORWARDED_PART, *SYNC_CONTROL_FLOW, "get-tuple-element"))

# The numbers of every operand, by user and operand.
_Places: TypeAlias = "dict[HloInstruction, dict[HloInstruction, list[int]]]"


class Dataflow(Struct, eq=False):
    """The result of the analysis: the value tree of each instruction of executed computations and reducers, and all values by id.

    `embedded` are the reducers: computations that instructions other than fusions embed in a kernel.
    """

    module: HloModule
    trees: dict[HloInstruction, ValueTree]
    values: list[HloValue]
    embedded: tuple[HloComputation, ...] = ()

    def value(self, instruction: HloInstruction, index: ShapeIndex = ()) -> HloValue:
        """Return the value at a shape index of an instruction."""
        return self.trees[instruction].at(index).value


def analyze_dataflow(module: HloModule) -> Dataflow:
    """Return the dataflow of a module; raises Unsupported if two instructions call one computation."""
    return _Analysis(module).run()


class _Analysis:
    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._order = flat_post_order(module)
        self._callers = _callers(self._order)
        self._ordinals = {instruction: number for number, instruction in enumerate(self._order)}
        self._trees: dict[HloInstruction, ValueTree] = {}
        self._own: dict[tuple[HloInstruction, ShapeIndex], HloValue] = {}
        self._phis: dict[tuple[HloInstruction, ShapeIndex], HloValue] = {}
        self._inputs: dict[HloValue, list[HloValue]] = {}
        self._next_id = 0
        self._computations = computation_post_order(module)
        self._reducers = _reducers(module, self._callers)

    def run(self) -> Dataflow:
        self._define_values()
        self._propagate()
        replaced = replaceable_phis({phi: self._inputs[phi] for phi in self._phis.values()})
        if replaced:
            self._trees = {instruction: _resolve(tree, replaced) for instruction, tree in self._trees.items()}
        return Dataflow(self._module, self._trees, self._collect(), tuple(self._reducers))

    # ---- what instructions define -------------------------------------------------------------------------------

    def _define_values(self) -> None:
        """Number the values as XLA does: computation by computation, including embedded ones."""
        for computation in self._computations:
            if not self._is_walked(computation):
                self._next_id += sum(_embedded_value_count(i) for i in computation.instructions)
                continue
            for instruction in computation.post_order():
                for index in self._defined_indices(instruction):
                    self._own[instruction, index] = self._new_value(instruction, index)

    def _is_walked(self, computation: HloComputation) -> bool:
        return computation is self._module.entry or computation in self._callers or computation in self._reducers

    def _new_value(self, instruction: HloInstruction, index: ShapeIndex, is_phi: bool = False) -> HloValue:
        value = HloValue(self._next_id, instruction, index, is_phi)
        self._next_id += 1
        return value

    def _defined_indices(self, instruction: HloInstruction) -> Iterator[ShapeIndex]:
        opcode = instruction.opcode
        if opcode in _OWN_TABLES:
            yield from (index for index, shape in _subshapes(instruction.shape) if shape.is_tuple)
            return
        if opcode in _NO_OWN_VALUE or (opcode == "parameter" and instruction.parent in self._callers):
            return
        if opcode in _OWN_TOP_ALONE:
            yield ()
            return
        for index, shape in _subshapes(instruction.shape):
            if not _is_forwarded(opcode, index, shape):
                yield index

    # ---- how values flow ----------------------------------------------------------------------------------------

    def _propagate(self) -> None:
        """Update instructions until nothing changes, in the flat order. Reducers need only one update."""
        for reducer in self._reducers:
            for instruction in reducer.post_order():
                self._trees[instruction] = self._transfer(instruction)
        waiting = list(range(len(self._order)))
        queued = set(waiting)
        while waiting:
            number = heapq.heappop(waiting)
            queued.discard(number)
            instruction = self._order[number]
            old = self._trees.get(instruction)
            new = self._transfer(instruction)
            if new == old:
                continue
            self._trees[instruction] = new
            if old is None and instruction.opcode not in SYNC_CONTROL_FLOW and not instruction.is_root:
                continue  # its users come later in the order and are already queued
            for other in self._depending(instruction):
                place = self._ordinals[other]
                if place not in queued:
                    queued.add(place)
                    heapq.heappush(waiting, place)

    def _depending(self, instruction: HloInstruction) -> Iterator[HloInstruction]:
        for user in instruction.users:
            yield user
            for computation in nested_computations(user):
                yield from computation.parameters
        if instruction.is_root and instruction.parent in self._callers:
            caller = self._callers[instruction.parent]
            yield caller
            if caller.opcode == "while":
                for computation in nested_computations(caller):
                    yield from computation.parameters

    def _transfer(self, instruction: HloInstruction) -> ValueTree:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode in FORWARDED_PART:
            part = self._trees[operands[0]].at(FORWARDED_PART[opcode])
            return self._with_own_tables(instruction, part, ()) if opcode in _OWN_TABLES else part
        match opcode:
            case "get-tuple-element":
                return self._trees[operands[0]].parts[instruction.tuple_index]
            case "tuple":
                return ValueTree(self._own[instruction, ()], tuple(self._trees[operand] for operand in operands))
            case "copy":
                return ValueTree(self._own[instruction, ()], self._trees[operands[0]].parts)
            case "parameter" if instruction.parent in self._callers:
                return self._parameter(instruction)
            case "call":
                return self._trees[instruction.called_computations[0].root]
            case "while":
                body = instruction.while_body
                return self._phi(instruction, [self._trees[body.root], self._trees[operands[0]]])
            case "conditional":
                return self._phi(instruction, [self._trees[c.root] for c in instruction.called_computations])
            case _:
                return self._tree(instruction, instruction.shape, ())

    def _with_own_tables(self, instruction: HloInstruction, part: ValueTree, index: ShapeIndex) -> ValueTree:
        """Return a tree of the operand's arrays below the tuples that the instruction defines."""
        own = self._own.get((instruction, index))
        if own is None:
            return part
        parts = tuple(self._with_own_tables(instruction, inner, (*index, n)) for n, inner in enumerate(part.parts))
        return ValueTree(own, parts)

    def _tree(self, instruction: HloInstruction, shape: Shape, index: ShapeIndex) -> ValueTree:
        """Return the tree of an instruction that defines all its values, or all but those that its first results forward."""
        if _is_forwarded(instruction.opcode, index, shape):
            return self._forwarded(instruction, index)
        if not shape.is_tuple:
            return ValueTree(self._own[instruction, index], ())
        parts = tuple(self._tree(instruction, part, (*index, n)) for n, part in enumerate(shape.tuple_shapes))
        return ValueTree(self._own[instruction, index], parts)

    def _forwarded(self, instruction: HloInstruction, index: ShapeIndex) -> ValueTree:
        operands = instruction.operands
        match instruction.opcode, index:
            case ("async-start", (1, *_)):
                return self._trees[instruction.called_computations[0].root].at(index[1:])
            case ("recv-done", _):
                return self._trees[operands[0]].parts[0]
            case ("copy-start", _):
                return self._trees[operands[0]]
            case (_, (0, number, *_)):
                return self._trees[operands[number]].at(index[2:])
            case _:
                return self._trees[operands[0]]

    def _parameter(self, parameter: HloInstruction) -> ValueTree:
        assert parameter.parent is not None, "the parameter is in a computation"
        caller, number = self._callers[parameter.parent], parameter.parameter_number
        match caller.opcode:
            case "while":
                root = caller.while_body.root
                inputs = [self._trees[caller.operands[0]]]
                if root is not parameter:
                    inputs += self._known(root)
                return self._phi(parameter, inputs)
            case "conditional":
                branch = caller.called_computations.index(parameter.parent)  # pyright: ignore[reportArgumentType]
                return self._phi(parameter, [self._trees[caller.operands[branch + 1]]])
            case _:
                return self._trees[caller.operands[number]]

    def _known(self, root: HloInstruction) -> list[ValueTree]:
        """Return the tree of a body's root. Before the body was visited, only the values that the root itself defines."""
        if root in self._trees:
            return [self._trees[root]]
        if root.opcode in _OWN_TOP_ALONE:
            return [ValueTree(self._own[root, ()])]
        return [] if (root, ()) not in self._own else [self._transfer(root)]

    def _phi(self, instruction: HloInstruction, inputs: list[ValueTree], index: ShapeIndex = ()) -> ValueTree:
        """Return the join of trees: a phi of `instruction` wherever several trees meet, even if their values are equal.

        Superfluous phis are removed at the end, but they take part in the numbering.
        """
        mine = self._phis.get((instruction, index))
        values = [tree.value for tree in inputs if tree.value is not mine]
        if len(values) == 1 and mine is None:
            value = values[0]
        else:
            if mine is None:
                mine = self._phis[instruction, index] = self._new_value(instruction, index, is_phi=True)
            self._inputs[mine] = values
            value = mine
        # The tree of a tuple that was not visited yet has no parts.
        parts = zip(*(tree.parts for tree in inputs if tree.parts), strict=True)
        return ValueTree(value, tuple(self._phi(instruction, list(p), (*index, n)) for n, p in enumerate(parts)))

    # ---- positions and uses -------------------------------------------------------------------------------------

    def _collect(self) -> list[HloValue]:
        """Return the values that have a position, by id, with their positions and uses."""
        for instruction, tree in self._trees.items():
            for index, value in tree.walk():
                if value.instruction is instruction and value.index == index:
                    value.positions.append(HloPosition(instruction, index))
        values = [value for value in (*self._own.values(), *self._phis.values()) if value.positions]
        for computation in filter(self._is_walked, self._computations):
            for instruction in computation.instructions:
                for index, value in self._trees[instruction].walk():
                    if value.instruction is not instruction or value.index != index:
                        value.positions.append(HloPosition(instruction, index))
        places: _Places = {}
        for value in values:
            _add_uses(value, places)
        return sorted(values, key=lambda value: value.id)


def _callers(order: list[HloInstruction]) -> dict[HloComputation, HloInstruction]:
    callers: dict[HloComputation, HloInstruction] = {}
    for instruction in order:
        for computation in nested_computations(instruction):
            if computation in callers:
                raise Unsupported(
                    f"computation '{computation.name}' runs at two places, %{callers[computation].name} and %{instruction.name}",
                    instruction.where,
                    hint="give each its own copy of it",
                )
            callers[computation] = instruction
    return callers


def _reducers(module: HloModule, callers: dict[HloComputation, HloInstruction]) -> dict[HloComputation, None]:
    """Return the computations that instructions other than fusions and control flow embed in kernels: reducers, comparators."""
    walked = [module.entry, *callers]
    reached = dict.fromkeys(walked)
    found: dict[HloComputation, None] = {}
    for computation in walked:
        for instruction in computation.instructions:
            for callee in instruction.called_computations:
                if callee not in reached:
                    reached[callee] = None
                    walked.append(callee)
                    if not callee.is_fusion and all(i.opcode not in CONTROL_FLOW for i in callee.instructions):
                        found[callee] = None
    return found


def _resolve(tree: ValueTree, replaced: dict[HloValue, HloValue]) -> ValueTree:
    if not tree.parts:
        return ValueTree(replaced[tree.value]) if tree.value in replaced else tree
    parts = tuple(_resolve(part, replaced) for part in tree.parts)
    return ValueTree(replaced.get(tree.value, tree.value), parts)


def _subshapes(shape: Shape) -> Iterator[tuple[ShapeIndex, Shape]]:
    """Yield (index, shape) of the shape and all its parts, a tuple before its elements."""
    waiting: list[tuple[ShapeIndex, Shape]] = [((), shape)]
    while waiting:
        index, part = waiting.pop()
        yield index, part
        if part.is_tuple:
            waiting += reversed([((*index, n), element) for n, element in enumerate(part.tuple_shapes)])


def _is_forwarded(opcode: Opcode, index: ShapeIndex, shape: Shape) -> bool:
    """True where an instruction that defines other results forwards an operand, or a result of its callee."""
    match opcode:
        case "async-start":
            return bool(index) and index[0] <= 1 and not shape.is_tuple
        case "copy-start":
            return index == (1,)
        case "all-gather-start" | "collective-permute-start":
            return bool(index) and index[0] == 0 and not shape.is_tuple
        case "send":
            return index == (0,)
        case "recv-done":
            return index == (0,)
        case _:
            return False


def _embedded_value_count(instruction: HloInstruction) -> int:
    if instruction.opcode in _NO_OWN_VALUE:
        return 0
    if instruction.opcode in _OWN_TOP_ALONE:
        return 1
    return sum(1 for _ in _subshapes(instruction.shape))


def _add_uses(value: HloValue, places: _Places) -> None:
    """Fill `uses` as XLA's `HloValue::GetUses` does. A root uses its values; tuple and get-tuple-element only forward theirs."""
    roots = {position.instruction for position in value.positions if position.instruction.is_root}
    for instruction, index in value.positions:
        for user in instruction.users:
            if user not in roots and (
                user.opcode in ("tuple", "domain") or (user.opcode in ("get-tuple-element", "copy") and index)
            ):
                continue
            value.uses += [HloUse(user, n, index) for n in _operand_numbers(user, instruction, places)]


def _operand_numbers(user: HloInstruction, operand: HloInstruction, places: _Places) -> list[int]:
    """Return the numbers of the operands of `user` that are `operand`. `places` caches them, since a root may have thousands."""
    numbers = places.get(user)
    if numbers is None:
        numbers = places[user] = {}
        for number, each in enumerate(user.operands):
            numbers.setdefault(each, []).append(number)
    return numbers[operand]
