"""The values of a module that can be divided, and the nodes between which shardings move.

A value is one array: a leaf of an instruction's result. Values that must have the same sharding, such as a result of a loop and
the parameters of its body, share a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import NamedSharding
from hlo_run.sharding.shardy.annotations import (
    BARRIER,
    BARRIER_DIRECTION,
    CONSTRAINT,
    GROUP,
    GROUP_NUMBER,
    RESULT,
    TO_GLOBAL,
    TO_LOCAL,
    Annotations,
    global_sharding,
    is_call,
    local_sharding,
    with_all_manual_axes,
)
from hlo_run.sharding.shardy.axes import total_size
from hlo_run.sharding.shardy.conflicts import Direction
from hlo_run.sharding.shardy.constraints import Given
from hlo_run.sharding.shardy.rule import Rule, pointwise_rule
from hlo_run.sharding.shardy.rules import is_elementwise, rule_of
from hlo_run.sharding.values import shardy


class ShardingSlot:
    """The place of the sharding of one or several values.

    `given` is the sharding before the propagation, with its priorities. `members` are the places of the same sharding group.
    """

    __slots__ = ("given", "group", "readers", "sharding")

    def __init__(self, sharding: NamedSharding | None = None) -> None:
        self.sharding = sharding
        self.given = sharding
        self.group: list[ShardingSlot] = [self]
        # The nodes that read the values, one entry per use; None for a use that no sharding moves through.
        self.readers: list[list[Node | None]] = []


class Value:
    """One array of the module: its extents, its place, and its uses."""

    __slots__ = ("dims", "maker", "place", "uses")

    def __init__(self, dims: tuple[int, ...], place: ShardingSlot | None = None) -> None:
        self.dims = dims
        self.place = place or ShardingSlot()
        self.maker: Node | None = None
        self.uses: list[Node | None] = []
        self.place.readers.append(self.uses)


class Node(Struct, eq=False):
    """An instruction, or an edge between the sources of a value and the value, along which shardings move by a rule.

    `barrier` limits the direction. `border` is None but for edges into (`to_local`) and out of manual computations.
    """

    operands: list[Value]
    results: list[Value]
    rule: Rule
    instruction: HloInstruction | None = None
    is_elementwise: bool = False
    barrier: Direction | None = None
    border: Border | None = None
    # What the last visit saw, so that a visit that would see the same is left out.
    seen: object = None


class Border(Struct, frozen=True):
    """The border of a manual computation: the sharding of the whole array there, and the numbers of the manual axes."""

    whole: NamedSharding
    manual: frozenset[int]
    is_into: bool

    def before(self, sharding: NamedSharding) -> NamedSharding:
        """Return the sharding of a target as its sources have it."""
        if self.is_into:
            return global_sharding(sharding, self.whole, self.manual)
        return local_sharding(sharding, self.manual)

    def after(self, sharding: NamedSharding) -> NamedSharding:
        """Return the sharding of a target from the shardings of its sources."""
        if self.is_into:
            return local_sharding(sharding, self.manual)
        return global_sharding(sharding, self.whole, self.manual)


class ManualRegion(Struct, frozen=True):
    """A manual computation: its call, the custom calls around it (None where it has no operands), shardings, and axes.

    `outer` has the names of the axes that are manual around it.
    """

    call: HloInstruction
    enter: HloInstruction | None
    leave: HloInstruction | None
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]
    axes: tuple[str, ...]
    outer: tuple[str, ...]

    @property
    def manual(self) -> tuple[str, ...]:
        """The names of all axes that are manual inside."""
        return (*self.outer, *self.axes)


class ValueGraph(Struct):
    """The graph of a module. `changing` has the number of changing elements in the state of each loop."""

    annotations: Annotations
    given: Given
    changing: dict[HloInstruction, int]
    nodes: list[Node] = field(default_factory=list[Node])
    values: dict[HloInstruction, list[Value]] = field(default_factory=dict[HloInstruction, list[Value]])
    regions: list[ManualRegion] = field(default_factory=list[ManualRegion])
    groups: dict[str, list[Value]] = field(default_factory=dict[str, list[Value]])

    def build(self, entry: HloComputation) -> list[Value]:
        """Add the nodes of all computations; return the values of the entry's result."""
        for parameter in entry.parameters:
            self.values[parameter] = self._new_values(parameter)
        results = self._walk(entry, ())
        for value in results:
            value.uses.append(None)
        return results

    def _new_values(self, instruction: HloInstruction) -> list[Value]:
        shapes = [shape for _, shape in instruction.shape.leaves()]
        given = self.given.get(instruction)
        return [
            Value(_dims(shape), ShardingSlot(given[number] if given is not None and shape.is_array else None))
            for number, shape in enumerate(shapes)
        ]

    def _walk(self, computation: HloComputation, outer: tuple[str, ...]) -> list[Value]:
        regions = {region.call: region for region in _regions(computation, self.annotations, outer)}
        self.regions += regions.values()
        for instruction in computation.post_order():
            if instruction in self.values:
                continue
            self.values[instruction] = self._values_of(instruction, regions.get(instruction), outer)
        return self.values[computation.root]

    def _values_of(self, instruction: HloInstruction, region: ManualRegion | None, outer: tuple[str, ...]) -> list[Value]:
        opcode = instruction.opcode
        if opcode == "tuple" or is_call(instruction, RESULT, TO_LOCAL):
            return [value for operand in instruction.operands for value in self.values[operand]]
        if opcode == "get-tuple-element":
            shapes = instruction.operands[0].shape.tuple_shapes
            first = sum(len(list(shape.leaves())) for shape in shapes[: instruction.tuple_index])
            return self.values[instruction.operands[0]][first : first + len(list(instruction.shape.leaves()))]
        if region is not None:
            return self._manual(region)
        if is_call(instruction, TO_GLOBAL):
            return [value for operand in instruction.operands for value in self.values[operand]]
        if opcode == "while":
            return self._loop(instruction, outer)
        if opcode == "conditional":
            return self._branches(instruction, outer)
        if opcode == "call":
            for parameter, operand in zip(instruction.to_apply.parameters, instruction.operands, strict=True):
                self.values[parameter] = self.values[operand]
            return self._walk(instruction.to_apply, outer)
        if opcode == "opt-barrier":
            return [self._edge([value], None) for value in self.values[instruction.operands[0]]]
        return self._plain(instruction)

    def _plain(self, instruction: HloInstruction) -> list[Value]:
        operands = [value for operand in instruction.operands for value in self.values[operand]]
        if is_call(instruction, GROUP):
            for value in operands:
                value.uses.append(None)
                self.groups.setdefault(frontend_attribute(instruction, GROUP_NUMBER) or "", []).append(value)
            return self._new_values(instruction)
        results = self._new_values(instruction)
        rule = None if is_call(instruction, CONSTRAINT) and instruction not in self.given else rule_of(instruction)
        barrier = None
        if is_call(instruction, BARRIER):
            rule = pointwise_rule(results[0].dims, 1, 1)
            barrier = _direction(instruction)
        if rule is None or len(operands) != len(rule.operands):
            for value in operands:
                value.uses.append(None)
            return results
        self._add(Node(operands, results, rule, instruction, is_elementwise(instruction), barrier))
        return results

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        for value in node.results:
            value.maker = node
        for value in node.operands:
            value.uses.append(node)

    def _edge(self, sources: list[Value], place: ShardingSlot | None, border: Border | None = None) -> Value:
        """Add the edge from sources to a new value."""
        first = sources[0]
        target = Value(first.dims, place)
        self._add(Node(list(sources), [target], pointwise_rule(first.dims, len(sources), 1), border=border))
        return target

    def _loop(self, loop: HloInstruction, outer: tuple[str, ...]) -> list[Value]:
        starts = self.values[loop.operands[0]]
        changing = self.changing.get(loop, len(loop.shape.tuple_shapes))
        count = sum(len(list(shape.leaves())) for shape in loop.shape.tuple_shapes[:changing])
        places = [ShardingSlot() for _ in range(count)]
        for computation in (loop.while_condition, loop.while_body):
            inner = [Value(starts[n].dims, place) for n, place in enumerate(places)]
            self.values[computation.parameters[0]] = [*inner, *starts[count:]]
        for value in self._walk(loop.while_condition, outer):
            value.uses.append(None)
        roots = self._walk(loop.while_body, outer)
        targets = [self._edge([starts[n], roots[n]], place) for n, place in enumerate(places)]
        return [*targets, *starts[count:]]

    def _branches(self, instruction: HloInstruction, outer: tuple[str, ...]) -> list[Value]:
        for value in self.values[instruction.operands[0]]:
            value.uses.append(None)
        roots: list[list[Value]] = []
        for computation, operand in zip(instruction.called_computations, instruction.operands[1:], strict=True):
            self.values[computation.parameters[0]] = self.values[operand]
            roots.append(self._walk(computation, outer))
        if instruction.operands[0].shape.element_type == "pred":  # no sharding moves through an if of StableHLO
            for value in (value for values in roots for value in values):
                value.uses.append(None)
            return self._new_values(instruction)
        return [self._edge(list(sources), None) for sources in zip(*roots, strict=True)]

    def _manual(self, region: ManualRegion) -> list[Value]:
        operands = [value for operand in region.call.operands for value in self.values[operand]]
        inner: list[Value] = []
        body = region.call.to_apply
        shapes = [shape for parameter in body.parameters for _, shape in parameter.shape.leaves()]
        for value, shape, whole in zip(operands, shapes, region.in_shardings, strict=True):
            border = Border(whole, _numbers(whole, region.axes), is_into=True)
            inner.append(self._edge([value], ShardingSlot(local_sharding(whole, border.manual)), border))
            inner[-1].dims = _dims(shape)
        taken = iter(inner)
        for parameter in body.parameters:
            self.values[parameter] = [next(taken) for _ in parameter.shape.leaves()]
        results: list[Value] = []
        for value, whole in zip(self._walk(body, region.manual), region.out_shardings, strict=True):
            border = Border(whole, _numbers(whole, region.axes), is_into=False)
            results.append(self._edge([value], ShardingSlot(whole), border))
        if region.leave is not None:
            for result, (_, shape) in zip(results, region.leave.shape.leaves(), strict=True):
                result.dims = _dims(shape)
        return results


def _dims(shape: Shape) -> tuple[int, ...]:
    return shape.dims if shape.is_array else ()


def _numbers(sharding: NamedSharding, names: Sequence[str]) -> frozenset[int]:
    return frozenset(number for number, (name, _) in enumerate(sharding.mesh.axes) if name in names)


def arguments_of_regions(computations: Iterable[HloComputation], annotations: Annotations) -> Given:
    """Return the shardings that the parameters of manual computations have inside, without the manual axes."""
    found: Given = {}
    for region in (region for computation in computations for region in _regions(computation, annotations, ())):
        leaves = iter(region.in_shardings)
        for parameter in region.call.to_apply.parameters:
            wholes = [next(leaves) for _ in parameter.shape.leaves()]
            found[parameter] = tuple(local_sharding(whole, _numbers(whole, region.axes)) for whole in wholes)
    return found


def _regions(computation: HloComputation, annotations: Annotations, outer: tuple[str, ...]) -> list[ManualRegion]:
    """Return the manual computations that a computation calls."""
    found: list[ManualRegion] = []
    for call in [i for i in computation.post_order() if i.opcode == "call"]:
        sources = [_source(operand) for operand in call.operands]
        enter = next((source for source in sources if is_call(source, TO_LOCAL)), None)
        readers = [user for direct in call.users for user in (direct, *_readers(direct))]
        leave = next((user for user in readers if is_call(user, TO_GLOBAL)), None)
        border = enter or leave
        if border is None:
            continue
        axes = annotations.manual_axes(border)
        ins = annotations.shardings(enter, len(enter.operands), shardy.IN_SHARDINGS) if enter is not None else ()
        outs = annotations.shardings(leave, len(leave.operands), shardy.OUT_SHARDINGS) if leave is not None else ()
        shardings = [
            tuple(with_all_manual_axes(sharding, _numbers(sharding, axes)) for sharding in group or ()) for group in (ins, outs)
        ]
        leaves = (
            sum(len(list(operand.shape.leaves())) for operand in call.operands),
            len(list(call.to_apply.root.shape.leaves())),
        )
        if leaves != tuple(map(len, shardings)):
            problem = f"a manual computation of {leaves[0]} arrays into {leaves[1]}"
            raise Unsupported(f"{problem} with {len(shardings[0])} and {len(shardings[1])} shardings", border.where)
        if enter is not None:
            _check_parts(enter, enter.operands, [enter], shardings[0], axes)
        if leave is not None:
            _check_parts(leave, [leave], leave.operands, shardings[1], axes)
        found.append(ManualRegion(call, enter, leave, shardings[0], shardings[1], axes, outer))
    return found


def _check_parts(
    border: HloInstruction,
    wholes: Sequence[HloInstruction],
    parts: Sequence[HloInstruction],
    shardings: Sequence[NamedSharding],
    axes: Sequence[str],
) -> None:
    """Raise ParseError unless the manual axes divide each whole array into parts of the other side's dimensions."""
    dims = [[_dims(leaf) for value in side for _, leaf in value.shape.leaves()] for side in (wholes, parts)]
    for whole, part, sharding in zip(*dims, shardings, strict=False):
        manual = _numbers(sharding, axes)
        counts = [total_size((ref for ref in dim.axes if ref.axis in manual), sharding.mesh) for dim in sharding.dims]
        if len({len(whole), len(part), len(counts)}) > 1 or any(w != p * n for w, p, n in zip(whole, part, counts, strict=True)):
            message = f"the manual axes divide {list(whole)} by {counts}, which does not give {list(part)}"
            raise ParseError(message, border.where)


def _source(value: HloInstruction) -> HloInstruction:
    return value.operands[0] if value.opcode == "get-tuple-element" else value


def _readers(value: HloInstruction) -> list[HloInstruction]:
    return list(value.users) if value.opcode == "get-tuple-element" else []


def _direction(barrier: HloInstruction) -> Direction:
    """Return where shardings may pass a barrier: `1 : i32` or `FORWARD`. Raises ParseError for anything else."""
    word = (frontend_attribute(barrier, BARRIER_DIRECTION) or "0").split(":", maxsplit=1)[0].strip().upper()
    found = next((each for each in Direction if word in (each.name, str(each.value))), None)
    if found is None:
        raise ParseError(f"{BARRIER_DIRECTION} is none of 0 to {max(Direction):d}: {word}", barrier.where)
    return found
