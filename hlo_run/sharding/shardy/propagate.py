"""Move shardings between the values of a module until none changes: by the users' priorities, then by kinds of instructions.

Instructions that only move elements come first, then those whose dimensions pass through, then all.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.mesh import Mesh
from hlo_run.hlo.values.sharding import DimSharding, NamedSharding
from hlo_run.sharding.shardy.annotations import has_axes, is_call, is_open
from hlo_run.sharding.shardy.axes import Axes
from hlo_run.sharding.shardy.conflicts import Direction, Directions, spread
from hlo_run.sharding.shardy.graph import Node, ShardingSlot, Value, ValueGraph
from hlo_run.sharding.shardy.projection import project
from hlo_run.sharding.shardy.rule import pointwise_rule

_MOVES_ELEMENTS: frozenset[Opcode] = frozenset(["reshape", "transpose"])
_DYNAMIC: frozenset[Opcode] = frozenset(["dynamic-slice", "dynamic-update-slice"])
_LEVELS = 5


class Propagation(Struct):
    """The propagation over one graph; `results` are the values of the entry's result, `result_places` their shardings there."""

    graph: ValueGraph
    results: list[Value]
    result_places: list[ShardingSlot]

    def run(self) -> None:
        """Propagate all shardings; changes the places."""
        _join_groups(self.graph)
        places = list(dict.fromkeys(place for place in self._places() if place.given is not None))
        priorities = sorted({dim.priority or 0 for place in places if place.given for dim in place.given.dims} - {0})
        for place in places:
            if place.given is not None:
                place.sharding = _of_priority_zero(place.given)
        self._by_kind()
        for priority in priorities:
            for place in places:
                if place.given is not None and place.sharding is not None:
                    place.sharding = _with_priority(place.sharding, place.given, priority)
            for node in self.graph.nodes:
                node.seen = None
            self._by_kind()

    def _places(self) -> list[ShardingSlot]:
        nodes = self.graph.nodes
        values = [value for node in nodes for value in (*node.operands, *node.results)]
        return [*(value.place for value in (*values, *self.results)), *self.result_places]

    def _by_kind(self) -> None:
        for level in range(_LEVELS):
            self._to_fixpoint(level)

    def _to_fixpoint(self, level: int) -> None:
        self._at_results()
        waiting = list(reversed(self.graph.nodes))
        pending = set(waiting)

        def notify(node: Node | None) -> None:
            if node is not None and node not in pending:
                pending.add(node)
                waiting.append(node)

        while waiting:
            node = waiting.pop()
            pending.discard(node)
            directions = _directions(node, level)
            if directions is not None:
                _visit(node, directions, lambda other, node=node: notify(other) if other is not node else None)
        self._at_results()

    def _at_results(self) -> None:
        """Move shardings between the values of the result and the result itself."""
        for value, place in zip(self.results, self.result_places, strict=True):
            rule = pointwise_rule(value.dims, 1, 1)
            node = Node([value], [Value(value.dims, place)], rule)
            place.readers.pop()
            _visit(node, lambda _: Direction.BOTH, lambda _: None)


def _directions(node: Node, level: int) -> Directions | None:
    """Return the directions in which shardings may move at a level, or None if they may not move at all."""
    if node.barrier is not None:
        barrier = node.barrier
        return lambda _: barrier
    if level == _LEVELS - 1:
        return lambda _: Direction.BOTH
    opcode = node.instruction.opcode if node.instruction is not None else ""
    first = Direction.NONE
    if _is_pass_through(node):
        first = Direction.BOTH
    elif opcode in _DYNAMIC:
        first = Direction.FORWARD
    is_edge = node.instruction is None
    if level == 0 and not is_edge and any(len(operand.uses) != 1 and operand.dims for operand in node.operands):
        first = Direction.NONE
    if level < 2:
        return (lambda _: first) if first else None
    general = Direction.BACKWARD if opcode == "broadcast" else Direction.BOTH
    if level == 3:
        return lambda _: _union(first, general)
    # Level 2: only along factors that pass through; edges have no other ones.
    rule = node.rule
    return lambda factor: _union(first, general if rule.passes(factor) else Direction.NONE)


def _is_pass_through(node: Node) -> bool:
    instruction = node.instruction
    if instruction is None or node.is_elementwise:
        return True
    return instruction.opcode in _MOVES_ELEMENTS or is_call(instruction, "MoveToDevice", "MoveToHost")


def _union(one: Direction, other: Direction) -> Direction:
    return Direction(one | other)


def _visit(node: Node, directions: Directions, notify: Callable[[Node | None], None]) -> None:
    """Move shardings through one node, and notify the nodes that see a change."""
    values = [*node.operands, *node.results]
    old = [value.place.sharding for value in values]
    if node.border is not None:
        last = old[-1]
        old[-1] = node.border.before(last) if last is not None else None
    if all(sharding is None or not any(dim.axes for dim in sharding.dims) for sharding in old):
        return
    rule = node.rule
    allowed = tuple(Direction.NONE if factor in rule.blocked else directions(factor) for factor in range(len(rule.sizes)))
    seen = (allowed, tuple(old))
    if node.seen is not None and node.seen == seen:
        return
    node.seen = seen
    mesh = _common_mesh(old)
    if mesh is None or not any(allowed):
        return
    count = len(node.operands)
    projection = project(rule, old[:count], old[count:], mesh)
    spread(projection, allowed.__getitem__, rule.sizes, mesh, node.is_elementwise)
    mappings = (*rule.operands, *rule.results)
    for value, before, array, mapping in zip(values, old, projection.arrays, mappings, strict=True):
        if not array.is_changed:
            continue
        new = array.sharding(mapping, rule.sizes, mesh)
        if new == before or (before is None and not has_axes(new)):
            continue
        if node.border is not None and value is values[-1]:
            new = node.border.after(new)
        for place in value.place.group:
            place.sharding = new
            _notify_readers(place, notify, value.maker if place is value.place else None)


def _notify_readers(place: ShardingSlot, notify: Callable[[Node | None], None], maker: Node | None) -> None:
    """Notify the maker and all readers of a place, so that the first reader is visited first."""
    notify(maker)
    for readers in place.readers:
        for reader in reversed(readers):
            notify(reader)


def _common_mesh(shardings: list[NamedSharding | None]) -> Mesh | None:
    """Return the mesh of all shardings, or None if there are two, or if it is one device."""
    found: Mesh | None = None
    for sharding in shardings:
        if sharding is None:
            continue
        mesh = sharding.mesh
        if mesh.maximal_device is not None:
            return None
        if found is not None and mesh != found and mesh.axes and found.axes:
            return None
        found = mesh if found is None or not found.axes else found
    return found


def _of_priority_zero(given: NamedSharding) -> NamedSharding:
    """Return a sharding whose dimensions of other priorities are closed and without axes; their axes are replicated."""
    dims: list[DimSharding] = []
    replicated: list[Axes] = [given.replicated]
    for dim in given.dims:
        if dim.priority:
            replicated.append(dim.axes)
            dims.append(DimSharding())
        else:
            dims.append(DimSharding(dim.axes, dim.is_closed))
    axes = sorted((ref for group in replicated for ref in group), key=lambda ref: (ref.axis, ref.pre_size))
    return NamedSharding(given.mesh, tuple(dims), tuple(axes), given.unreduced)


def _with_priority(sharding: NamedSharding, given: NamedSharding, priority: int) -> NamedSharding:
    """Return the sharding with the given dimensions of this priority."""
    dims = list(sharding.dims)
    used: set[object] = set()
    for number, dim in enumerate(given.dims):
        if dim.priority == priority:
            dims[number] = DimSharding(dim.axes, dim.is_closed)
            used.update(dim.axes)
    replicated = tuple(ref for ref in sharding.replicated if ref not in used)
    return NamedSharding(sharding.mesh, tuple(dims), replicated, sharding.unreduced)


def _join_groups(graph: ValueGraph) -> None:
    """Let the values of each sharding group share the sharding that one of them has, unless they contradict each other."""
    for values in graph.groups.values():
        places = list(dict.fromkeys(place for value in values for place in value.place.group))
        shardings = {place.given for place in places if place.given is not None and not is_open(place.given)}
        for place in places:
            place.group = places
            if len(shardings) == 1:
                place.given = place.sharding = next(iter(shardings))
