"""Finds unreduced values that need steps after the propagation: uses that are not unreduced, and values that become sums.

Each use of a sum that is not unreduced itself completes the sum. What loops, branches, manual computations and results want as a
sum, and constraints, becomes one. `Sums` has the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import InstructionMaker, remove_replaced
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.mesh import Mesh
from hlo_run.hlo.values.sharding import DimSharding, NamedSharding
from hlo_run.sharding.shardy.annotations import CONSTRAINT, GROUP, TO_GLOBAL, TO_LOCAL, all_dims, is_call, with_dims
from hlo_run.sharding.shardy.axes import Axes, difference, in_mesh_order, is_strict_list_prefix
from hlo_run.sharding.shardy.graph import ManualRegion, ShardingSlot, Value, ValueGraph
from hlo_run.sharding.shardy.projection import project
from hlo_run.sharding.shardy.rule import Kind
from hlo_run.sharding.shardy.sums import Sums

_KEEPS_DATA: tuple[Opcode, ...] = ("transpose", "reshape", "copy")
_NO_USES: frozenset[Opcode] = frozenset(["tuple", "get-tuple-element", "parameter"])


def complete_sums(module: HloModule, graph: ValueGraph, result_places: Sequence[ShardingSlot]) -> None:
    """Add the steps of unreduced values to a module whose shardings are propagated.

    Raises Unsupported where XLA's partitioner fails too: for uneven tiles, parts of axes, and axes that stay unreduced in a
    manual computation over others.
    """
    places = {place for values in graph.values.values() for place in (value.place for value in values)}
    if any(place.sharding is not None and place.sharding.unreduced for place in (*places, *result_places)):
        _Completion(module, graph).run(result_places)


class _Completion:
    def __init__(self, module: HloModule, graph: ValueGraph) -> None:
        self._module = module
        self._graph = graph
        self._sums = Sums(module)
        self._nodes = {node.instruction: node for node in graph.nodes if node.instruction is not None}
        self._regions = {region.enter: region for region in graph.regions if region.enter is not None}
        # Shardings of new instructions, and what new sums were made of along which axes.
        self._shardings: dict[HloInstruction, NamedSharding] = {}
        self._origins: dict[HloInstruction, tuple[HloInstruction, Axes, bool]] = {}

    def run(self, result_places: Sequence[ShardingSlot]) -> None:
        self._share_backwards()
        entry = self._module.entry
        self._visit(entry)
        entry.root = self._with_elements(entry.root, [place.sharding for place in result_places])

    def _share_backwards(self) -> None:
        """Let what a transpose, a reshape or a copy reads have the unreduced axes of its result."""
        for instruction in reversed(list(self._graph.values)):
            if instruction.opcode not in _KEEPS_DATA or instruction.operands[0].opcode == "parameter":
                continue
            wanted = self._sharding(instruction)
            source = self._graph.values[instruction.operands[0]][0].place
            if wanted is None or not wanted.unreduced:
                continue
            old = source.sharding or all_dims(wanted.mesh, instruction.operands[0].shape.rank, is_closed=True)
            taken = (*(ref for dim in old.dims for ref in dim.axes), *old.replicated)
            if not any(one.overlaps(other) for one in wanted.unreduced for other in taken):
                source.sharding = _unreduced(old, wanted.unreduced)

    def _visit(self, computation: HloComputation) -> None:
        for instruction in computation.post_order():
            opcode = instruction.opcode
            if opcode in ("while", "conditional", "call"):
                for called in instruction.called_computations:
                    self._visit(called)
            if opcode == "call" or opcode in _NO_USES or is_call(instruction, GROUP, TO_GLOBAL):
                continue
            if opcode in ("while", "conditional", "opt-barrier"):
                self._visit_edges(instruction)
            elif is_call(instruction, TO_LOCAL):
                if instruction in self._regions:
                    self._visit_region(self._regions[instruction], instruction)
            elif not self._becomes_sum(instruction):
                self._visit_uses(instruction)
                self._visit_result(instruction)

    def _sharding(self, value: HloInstruction) -> NamedSharding | None:
        """Return the sharding of an array."""
        made = self._shardings.get(value)
        return made if made is not None else self._graph.values[value][0].place.sharding

    def _leaves(self, value: HloInstruction) -> list[NamedSharding | None]:
        if value in self._shardings:
            return [self._shardings[value]]
        return [leaf.place.sharding for leaf in self._graph.values[value]]

    def _visit_uses(self, instruction: HloInstruction) -> None:
        """Complete the sums that an instruction reads, except along the axes along which its result is unreduced."""
        target = self._leaves(instruction)[0] if self._leaves(instruction) else None
        operands = [self._used(operand, target) if operand.shape.is_array else operand for operand in instruction.operands]
        node = self._nodes.get(instruction)
        for number, (old, new) in enumerate(zip(instruction.operands, operands, strict=True)):
            if new is not old and node is not None and len(node.operands) == len(operands):
                node.operands[number] = Value(new.shape.dims, ShardingSlot(self._sharding(new)))
        if operands != list(instruction.operands):
            instruction.operands = tuple(operands)

    def _used(self, value: HloInstruction, target: NamedSharding | None) -> HloInstruction:
        """Return a value without the unreduced axes that `target` has not."""
        source = self._sharding(value)
        if source is None or not source.unreduced:
            return value
        axes = difference(source.unreduced, target.unreduced if target is not None else (), source.mesh)
        if not axes:
            return value
        if target is not None and target.mesh.axes and target.mesh != source.mesh:
            raise Unsupported("an unreduced value is used on another mesh", value.where)
        result = _unreduced(source, difference(source.unreduced, axes, source.mesh))
        origin, along, is_tiled = self._origins.get(value, (None, (), False))
        if origin is not None and along == axes:
            return self._with_sharding(self._sums.copied(origin, result), result) if is_tiled else origin
        return self._with_sharding(self._sums.complete(value, source, axes, result), result)

    def _with_sharding(self, value: HloInstruction, sharding: NamedSharding) -> HloInstruction:
        self._shardings[value] = sharding
        return value

    def _edge(self, value: HloInstruction, target: NamedSharding | None) -> HloInstruction:
        """Return a value with the unreduced axes of `target` and no others."""
        found = self._used(value, target)
        return self._as_sum(found, target) if target is not None else found

    def _as_sum(self, value: HloInstruction, target: NamedSharding) -> HloInstruction:
        """Return a value as a sum along the unreduced axes of `target` that it does not have."""
        mesh = target.mesh
        source = self._sharding(value) or all_dims(mesh, value.shape.rank, is_closed=True)
        more = difference(target.unreduced, source.unreduced, mesh)
        if not more:
            return value
        if (source.mesh.axes and source.mesh != mesh) or difference(source.unreduced, target.unreduced, mesh):
            raise Unsupported("a sum becomes one along other axes", value.where)
        source = NamedSharding(mesh, source.dims, source.replicated, source.unreduced)
        between: list[DimSharding] = []
        tiles: list[Axes] = []
        for old, new in zip(source.dims, target.dims, strict=True):
            rest = _rest(old.axes, new.axes, mesh)
            is_summed = bool(rest) and not difference(rest, more, mesh)
            tiles.append(rest if is_summed else ())
            between.append(old if is_summed else new)
        summed = in_mesh_order((ref for axes in tiles for ref in axes), mesh)
        if any(old.axes != new.axes for old, new in zip(source.dims, between, strict=True)):
            source = with_dims(source, between)
            value = self._with_sharding(self._sums.copied(value, source), source)
        origin = value
        copied = difference(more, summed, mesh)
        if copied:
            unreduced = in_mesh_order((*source.unreduced, *copied), mesh)
            result = NamedSharding(mesh, tuple(between), target.replicated, unreduced)
            value = self._with_sharding(self._sums.from_copies(value, source, copied, result), result)
            source = result
        if summed:
            value = self._with_sharding(self._sums.from_tiles(value, source, tiles, target), target)
        if not (copied and summed):
            self._origins[value] = origin, more, bool(summed)
        return value

    def _becomes_sum(self, constraint: HloInstruction) -> bool:
        """Put the steps of a constraint that makes a sum of its operand in its place; return False for other instructions."""
        if not is_call(constraint, CONSTRAINT):
            return False
        target = self._sharding(constraint)
        value = constraint.operands[0]
        made = self._as_sum(value, target) if target is not None else value
        if made is value:
            return False
        self._module.replace_uses(constraint, made)
        remove_replaced(constraint)
        return True

    def _visit_result(self, instruction: HloInstruction) -> None:
        """Let a result that no operand makes a sum become one, and complete a sum along other axes than the wanted ones."""
        sharding = self._leaves(instruction)[0] if instruction.shape.is_array else None
        if sharding is None or not sharding.unreduced or is_call(instruction, CONSTRAINT):
            return
        mesh = sharding.mesh
        reduced = self._reduced_axes(instruction)
        given = [self._sharding(operand) for operand in instruction.operands if operand.shape.is_array]
        known = (*reduced, *(ref for own in given if own is not None for ref in own.unreduced))
        if missing := difference(sharding.unreduced, known, mesh):
            source = _unreduced(sharding, difference(sharding.unreduced, missing, mesh))
            self._replace(instruction, self._sums.from_copies(instruction, source, missing, sharding), sharding)
            self._graph.values[instruction] = [Value(instruction.shape.dims, ShardingSlot(source))]
        elif others := difference(reduced, sharding.unreduced, mesh):
            self._replace(instruction, self._sums.complete(instruction, sharding, others, sharding), sharding)

    def _replace(self, old: HloInstruction, made: HloInstruction, sharding: NamedSharding) -> None:
        """Let all users of a value but the first step to `made` use `made`."""
        self._with_sharding(made, sharding)
        first = made
        while old not in first.operands:
            first = first.operands[0]
        for user in list(old.users):
            if user is not first:
                user.replace_operand(old, made)
        if old.is_root and old.parent is not None:
            old.parent.root = made

    def _reduced_axes(self, instruction: HloInstruction) -> Axes:
        """Return the axes that divide the dimensions which an instruction sums over."""
        node = self._nodes.get(instruction)
        if node is None or Kind.REDUCTION not in node.rule.kinds:
            return ()
        shardings = [value.place.sharding for value in (*node.operands, *node.results)]
        mesh = next((sharding.mesh for sharding in shardings if sharding is not None and sharding.mesh.axes), None)
        if mesh is None or any(sharding is not None and sharding.mesh not in (mesh, Mesh(())) for sharding in shardings):
            return ()
        count = len(node.operands)
        projection = project(node.rule, shardings[:count], shardings[count:], mesh, is_closed=True)
        factors = [factor for factor, kind in enumerate(node.rule.kinds) if kind is Kind.REDUCTION]
        arrays = [array.factors for array in projection.operands]
        return in_mesh_order({ref for of in arrays for factor in factors if factor in of for ref in of[factor].axes}, mesh)

    def _visit_edges(self, instruction: HloInstruction) -> None:
        """Give what goes into a loop, comes from branches or passes a barrier the unreduced axes that it has there."""
        targets = self._leaves(instruction)
        if instruction.opcode == "conditional":
            if instruction.operands[0].shape.element_type != "pred":
                for branch in instruction.called_computations:
                    branch.root = self._with_elements(branch.root, targets)
            return
        instruction.operands = (self._with_elements(instruction.operands[0], targets),)
        if instruction.opcode == "while":
            instruction.while_body.root = self._with_elements(instruction.while_body.root, targets)

    def _visit_region(self, region: ManualRegion, enter: HloInstruction) -> None:
        """Give the arguments of a manual computation the unreduced axes of its shardings."""
        inner = [value for parameter in region.call.to_apply.parameters for value in self._graph.values[parameter]]
        nodes = [value.maker for value in inner]
        operands = list(enter.operands)
        for number, (operand, node, value) in enumerate(zip(operands, nodes, inner, strict=True)):
            border = node.border if node is not None else None
            if border is not None and operand.shape.is_array:
                local = value.place.sharding
                operands[number] = self._edge(operand, border.before(local) if local is not None else border.whole)
        if operands != list(enter.operands):
            enter.operands = tuple(operands)

    def _with_elements(self, value: HloInstruction, targets: Sequence[NamedSharding | None]) -> HloInstruction:
        """Return a value whose leaves have the unreduced axes of the targets."""
        if value.shape.is_array:
            return self._edge(value, targets[0])
        if not value.shape.is_tuple or any(shape.is_tuple for shape in value.shape.tuple_shapes):
            return value
        computation = value.parent
        assert computation is not None, "the value is in a computation"
        sources = self._leaves(value)
        pairs = enumerate(zip(sources, targets, strict=True))
        needed = [number for number, (source, target) in pairs if _axes_of(source) != _axes_of(target)]
        if not needed:
            return value
        elements = list(value.operands) if value.opcode == "tuple" else self._elements(computation, value)
        for number in needed:
            elements[number] = self._edge(elements[number], targets[number])
        made = InstructionMaker(computation).add("tuple", value.shape, elements, name=value.name)
        self._graph.values[made] = [
            Value(element.shape.dims if element.shape.is_array else (), ShardingSlot(self._sharding(element)))
            for element in elements
        ]
        return made

    def _elements(self, computation: HloComputation, value: HloInstruction) -> list[HloInstruction]:
        """Return the elements of a tuple that another instruction makes."""
        found: list[HloInstruction] = []
        for number, shape in enumerate(value.shape.tuple_shapes):
            made = InstructionMaker(computation).add("get-tuple-element", shape, [value], index=number)
            self._graph.values[made] = [self._graph.values[value][number]]
            found.append(made)
        return found


def _unreduced(sharding: NamedSharding, axes: Axes) -> NamedSharding:
    """Return the sharding with other unreduced axes."""
    return NamedSharding(sharding.mesh, sharding.dims, sharding.replicated, axes)


def _axes_of(sharding: NamedSharding | None) -> Axes:
    return sharding.unreduced if sharding is not None else ()


def _rest(axes: Axes, wanted: Axes, mesh: Mesh) -> Axes:
    """Return the axes behind `wanted`, with which they begin; () if they do not, or if there are none."""
    if not is_strict_list_prefix(wanted, axes):
        return ()
    cut = difference(axes[len(wanted) - 1 : len(wanted)], wanted[-1:], mesh) if wanted else ()
    return (*cut, *axes[len(wanted) :])
