"""Write the shardings of Shardy into a module as shardings of HLO, and its ops as instructions that the partitioner knows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import DETACHED, InstructionMaker, bypass, remove_replaced
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.attribute_values import AttributeValue, FrontendAttributes
from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import DimSharding, NamedSharding, Sharding, SingleSharding, TupleSharding
from hlo_run.sharding.shardy.annotations import (
    BARRIER,
    CONSTRAINT,
    GROUP,
    TO_GLOBAL,
    TO_LOCAL,
    all_dims,
    closed,
    global_sharding,
    is_call,
    local_sharding,
    with_dims,
)
from hlo_run.sharding.shardy.axes import sub_axis, total_size
from hlo_run.sharding.shardy.graph import ManualRegion, ShardingSlot, Value, ValueGraph
from hlo_run.sharding.shardy.reshards import Reshards, reshards_of
from hlo_run.sharding.values import shardy
from hlo_run.sharding.values.make import REPLICATED, as_tiles, elements_of, same_for_all


def divisible(sharding: NamedSharding, dims: Sequence[int]) -> NamedSharding:
    """Return the sharding with the major axes of each dimension that divide it evenly."""
    mesh = sharding.mesh
    found: list[DimSharding] = []
    for dim, size in zip(sharding.dims, dims, strict=True):
        if size % total_size(dim.axes, mesh) == 0:
            found.append(dim)
            continue
        left, axes = size, list[AxisRef]()
        for ref in dim.axes:
            count = ref.size(mesh)
            shared = math.gcd(count, left)
            if shared > 1:
                axes.append(sub_axis(mesh, ref.axis, ref.pre_size, shared))
            if shared != count:
                break
            left //= shared
        found.append(DimSharding(tuple(axes), dim.is_closed))
    return with_dims(sharding, found)


def without_sub_axes(sharding: NamedSharding) -> NamedSharding:
    """Return the sharding whose open dimensions end before their first sub-axis."""
    dims: list[DimSharding] = []
    for dim in sharding.dims:
        place = next((n for n, ref in enumerate(dim.axes) if ref.sub_size is not None), len(dim.axes))
        dims.append(dim if dim.is_closed else DimSharding(dim.axes[:place]))
    return with_dims(sharding, dims)


def close(
    graph: ValueGraph, parameters: Sequence[Value], results: Sequence[Value], result_places: Sequence[ShardingSlot]
) -> None:
    """Let parameters and results of the entry divide evenly, then close all dimensions of all values."""
    ends = dict.fromkeys([(value.place, value.dims) for value in parameters])
    ends |= dict.fromkeys((place, value.dims) for place, value in zip(result_places, results, strict=True))
    for place, dims in ends:
        if place.sharding is not None and place.sharding.mesh.axes:
            place.sharding = without_sub_axes(divisible(place.sharding, dims))
    for node in graph.nodes:
        if node.border is not None:
            place, target = node.results[0].place, node.results[0]
            if place.sharding is not None:
                place.sharding = divisible(place.sharding, target.dims)
    places = dict.fromkeys([*(value.place for group in graph.values.values() for value in group), *result_places])
    for place in places:
        if place.sharding is not None:
            place.sharding = closed(place.sharding)


class Export:
    """Writes the shardings of one graph into its module."""

    def __init__(self, module: HloModule, graph: ValueGraph) -> None:
        self._module = module
        self._graph = graph
        self._reshards = {
            node.instruction: found
            for node in graph.nodes
            if node.instruction is not None and (found := reshards_of(node)) is not None
        }

    def run(self, result_places: Sequence[ShardingSlot]) -> None:
        """Edit the module in place."""
        manual = self._manual_axes()
        for instruction in list(self._graph.values):
            if instruction.parent is None:
                continue
            names, mesh = manual.get(instruction.parent, ((), None))
            self._give(instruction, names, mesh)
        for instruction in self._module.instructions_of("while", "conditional"):
            self._share_states(instruction)
        for computation, (names, mesh) in manual.items():
            for instruction in computation.instructions:
                if instruction.opcode not in CONTROL_FLOW:
                    for reducer in dict.fromkeys(instruction.called_computations):
                        self._give_reducer(reducer, names, mesh)
        self._copy_constraints_of_reducers()
        for node in self._graph.nodes:
            instruction = node.instruction
            if instruction is not None and instruction.parent is not None and instruction in self._reshards:
                names, mesh = manual.get(instruction.parent, ((), None))
                self._reshard(instruction, self._reshards[instruction], names, mesh)
        self._give_result(result_places)
        for region in reversed(self._graph.regions):
            self._write_region(region)
        for instruction in list(self._graph.values):
            if instruction.parent is not None and is_call(instruction, BARRIER, GROUP):
                self._drop(instruction)
        forget_attributes(self._module)

    def _give_reducer(self, reducer: HloComputation, names: tuple[str, ...], mesh: Mesh) -> None:
        """Give the scalars of a reducer in a manual computation manual shardings; its constraints become copies."""
        for instruction in reducer.post_order():
            if instruction.opcode == "parameter" or instruction.shape.is_tuple:
                continue
            sharding = hlo_sharding(None, instruction.shape, names, mesh)
            instruction.attrs["sharding"] = sharding
            if is_call(instruction, CONSTRAINT):
                self._as_copy(instruction)

    def _copy_constraints_of_reducers(self) -> None:
        """Make the remaining constraints, of reducers and comparators, copies. One value has one copy."""
        copied: dict[HloInstruction, HloInstruction] = {}
        for computation in self._module.computations:
            for call in [i for i in computation.post_order() if is_call(i, CONSTRAINT) and i not in self._graph.values]:
                if len(call.operands) != 1:
                    continue
                call.attrs.pop("sharding", None)
                (source,) = call.operands
                if source in copied:
                    self._module.replace_uses(call, copied[source])
                    remove_replaced(call)
                else:
                    copied[source] = self._as_copy(call)

    def _manual_axes(self) -> dict[HloComputation, tuple[tuple[str, ...], Mesh]]:
        """Return the names of the manual axes of computations in manual computations, and the mesh."""
        found: dict[HloComputation, tuple[tuple[str, ...], Mesh]] = {}

        def visit(computation: HloComputation, names: tuple[str, ...], mesh: Mesh) -> None:
            found[computation] = names, mesh
            for instruction in computation.instructions:
                if instruction.opcode in ("while", "conditional", "call"):
                    for called in instruction.called_computations:
                        visit(called, names, mesh)

        for region in self._graph.regions:
            shardings = (*region.in_shardings, *region.out_shardings)
            if shardings:
                visit(region.call.to_apply, region.manual, shardings[0].mesh)
        return found

    def _give(self, instruction: HloInstruction, names: tuple[str, ...], mesh: Mesh | None) -> None:
        """Give an instruction the sharding of its values, which have manual axes in a manual computation."""
        if is_call(instruction, GROUP, TO_LOCAL):
            return
        if instruction.opcode in ("infeed", "outfeed") and instruction.sharding is not None:
            return  # Shardy gives them none, and keeps those of HLO
        instruction.attrs.pop("sharding", None)
        values = self._graph.values[instruction]
        leaves = [value.place.sharding for value in values]
        is_element = instruction.opcode == "get-tuple-element" and instruction.operands[0].sharding is not None
        if mesh is None and is_element and leaves == [None]:
            instruction.attrs["sharding"] = REPLICATED
            return
        if mesh is None and all(leaf is None for leaf in leaves):
            if instruction.opcode in ("while", "conditional"):
                instruction.attrs["sharding"] = same_for_all(instruction.shape, REPLICATED)
            if is_call(instruction, CONSTRAINT):
                bypass(self._module, instruction)
            return
        shape = instruction.shape
        made = [hlo_sharding(leaf, part, names, mesh) for leaf, (_, part) in zip(leaves, shape.leaves(), strict=True)]
        instruction.attrs["sharding"] = TupleSharding(tuple(made)) if shape.is_tuple else made[0]
        if is_call(instruction, CONSTRAINT):
            self._as_copy(instruction)

    def _reshard(self, instruction: HloInstruction, found: Reshards, names: tuple[str, ...], mesh: Mesh | None) -> None:
        """Divide an instruction otherwise than its values, and copy them to and from that division."""
        parent = instruction.parent
        assert parent is not None, "the instruction is in a computation"
        operands = list(instruction.operands)
        for number, sharding in found.operands.items():
            operand = operands[number]
            maker = InstructionMaker(parent, attributes=metadata_of(operand))
            made = hlo_sharding(closed(sharding), operand.shape, names, mesh)
            operands[number] = maker.add("copy", operand.shape, [operand], sharding=made)
        instruction.operands = tuple(operands)
        if found.result is None:
            return
        copy = DETACHED.add_with(
            "copy", instruction.shape, (), {"sharding": instruction.given_sharding, **metadata_of(instruction)}
        )
        parent.add(copy)
        self._module.replace_uses(instruction, copy)
        copy.operands = (instruction,)
        instruction.attrs["sharding"] = hlo_sharding(closed(found.result), instruction.shape, names, mesh)

    def _as_copy(self, constraint: HloInstruction) -> HloInstruction:
        attributes = {name: value for name, value in constraint.attrs.items() if name in ("sharding", "metadata")}
        copy = InstructionMaker(where=constraint.where).add_with(
            "copy", constraint.shape, constraint.operands, attributes, name=constraint.name
        )
        assert constraint.parent is not None
        constraint.parent.add(copy)
        self._module.replace_uses(constraint, copy)
        remove_replaced(constraint)
        if constraint in self._graph.values:
            self._graph.values[copy] = self._graph.values[constraint]
        return copy

    def _give_result(self, result_places: Sequence[ShardingSlot]) -> None:
        """Give the result its shardings; a result of one array that is divided otherwise than its value goes through a tuple."""
        entry = self._module.entry
        root = entry.root
        shapes = [part for _, part in root.shape.leaves()]
        self._drop_outer_tuple(root)
        root = entry.root
        made = [hlo_sharding(place.sharding, part, (), None) for place, part in zip(result_places, shapes, strict=True)]
        if all(place.sharding is None for place in result_places):
            return
        if root.opcode == "tuple":
            root.attrs["sharding"] = TupleSharding(tuple(made))
            return
        if root.sharding is None:
            root.attrs["sharding"] = TupleSharding(tuple(made)) if root.shape.is_tuple else made[0]
            return
        old = elements_of(as_tiles(root.sharding))
        if all(one.is_same(other) for one, other in zip(made, old, strict=True)):
            return
        if root.shape.is_tuple:
            self._divide_elements(root, old, made)
            return
        holder = InstructionMaker(entry).add("tuple", Shape.make_tuple((root.shape,)), [root])
        holder.attrs["sharding"] = TupleSharding(tuple(old))
        entry.root = InstructionMaker(entry).add("get-tuple-element", root.shape, [holder], index=0, sharding=made[0])

    def _divide_elements(self, root: HloInstruction, old: Sequence[SingleSharding], made: Sequence[SingleSharding]) -> None:
        """Return a tuple of the elements of the root, whose result is divided otherwise."""
        if any(shape.is_tuple for shape in root.shape.tuple_shapes):
            root.attrs["sharding"] = TupleSharding(tuple(made))
            return
        elements: list[HloInstruction] = []
        maker = InstructionMaker(self._module.entry)
        for number, shape in enumerate(root.shape.tuple_shapes):
            elements.append(maker.add("get-tuple-element", shape, [root], index=number, sharding=old[number]))
        maker.computation.root = maker.add("tuple", root.shape, elements, sharding=TupleSharding(tuple(made)))

    def _drop_outer_tuple(self, root: HloInstruction) -> None:
        """Let the entry return a tuple itself where its root puts all its elements together again."""
        sources = {value.operands[0] for value in root.operands if value.opcode == "get-tuple-element"}
        if root.opcode != "tuple" or len(sources) != 1 or root.parent is None:
            return
        source = next(iter(sources))
        numbers = [value.tuple_index if value.opcode == "get-tuple-element" else -1 for value in root.operands]
        is_border = is_call(source, TO_GLOBAL)  # becomes a value for each element
        if source.shape == root.shape and numbers == list(range(len(numbers))) and source.sharding is None and not is_border:
            root.parent.root = source

    def _share_states(self, instruction: HloInstruction) -> None:
        """Give a loop's initial state, and the results of loop bodies and branches, the sharding of the instruction."""
        sharding = instruction.sharding
        if sharding is None:
            return
        tuples = [instruction.operands[0]] if instruction.opcode == "while" else []
        if instruction.opcode == "conditional":
            tuples += [computation.root for computation in instruction.called_computations]
        elif instruction.opcode == "while":
            tuples.append(instruction.while_body.root)
        for value in tuples:
            if value.opcode == "tuple":
                value.attrs["sharding"] = sharding

    def _write_region(self, region: ManualRegion) -> None:
        """Put the custom calls of manual regions around a manual computation."""
        if region.enter is not None:
            parts: list[HloInstruction] = []
            values = self._graph.values
            inner = [value for parameter in region.call.to_apply.parameters for value in values[parameter]]
            shapes = _array_shapes(region.enter.shape)
            for operand, shape, value, whole in zip(region.enter.operands, shapes, inner, region.in_shardings, strict=True):
                manual = _axes_numbers(whole, region.axes)
                local = value.place.sharding
                outside = _joined(local, whole, manual)
                copied = self._add(region.enter, "copy", operand.shape, operand, outside, region.outer)
                within = local_sharding(outside, _axes_numbers(whole, region.manual))
                parts.append(self._add(region.enter, "SPMDFullToShardShape", shape, copied, within, region.manual))
            self._replace(region.enter, parts)
        if region.leave is not None:
            wholes: list[HloInstruction] = []
            shapes = _array_shapes(region.leave.shape)
            results = self._graph.values[region.leave]
            for operand, shape, value in zip(region.leave.operands, shapes, results, strict=True):
                outside = value.place.sharding
                assert outside is not None, "results of manual computations have shardings"
                within = local_sharding(outside, _axes_numbers(outside, region.manual))
                copied = self._add(region.leave, "copy", operand.shape, operand, within, region.manual)
                wholes.append(self._add(region.leave, "SPMDShardToFullShape", shape, copied, outside, region.outer))
            self._replace(region.leave, wholes)
        region.call.attrs.pop("frontend_attributes", None)
        self._give_call(region)
        region.call.to_apply.name = self._module.unique_computation_name("xla.sdy.inlinable_manual_computation_body")

    def _give_call(self, region: ManualRegion) -> None:
        leaves = [local_sharding(whole, _axes_numbers(whole, region.manual)) for whole in self._outside(region)]
        shape = region.call.shape
        if not leaves:
            return
        made = [
            hlo_sharding(closed(leaf), part, region.manual, leaf.mesh)
            for leaf, (_, part) in zip(leaves, shape.leaves(), strict=True)
        ]
        sharding = TupleSharding(tuple(made)) if shape.is_tuple else made[0]
        region.call.attrs["sharding"] = sharding
        for user in region.call.users:
            if user.opcode == "get-tuple-element":
                user.attrs["sharding"] = made[user.tuple_index]

    def _outside(self, region: ManualRegion) -> list[NamedSharding]:
        found = [value.place.sharding for value in self._graph.values[region.call]]
        return [sharding for sharding in found if sharding is not None]

    def _add(
        self,
        like: HloInstruction,
        target: str,
        shape: Shape,
        operand: HloInstruction,
        sharding: NamedSharding,
        names: tuple[str, ...],
    ) -> HloInstruction:
        assert like.parent is not None
        made = hlo_sharding(closed(sharding), shape, names, sharding.mesh)
        if target == "copy":
            return InstructionMaker(like.parent, like.where, metadata_of(like)).add("copy", shape, [operand], sharding=made)
        maker = InstructionMaker(like.parent, attributes=metadata_of(like))
        return maker.add("custom-call", shape, [operand], custom_call_target=target, sharding=made)

    def _replace(self, call: HloInstruction, parts: Sequence[HloInstruction]) -> None:
        computation = call.parent
        assert computation is not None
        if not call.shape.is_tuple:
            self._module.replace_uses(call, parts[0])
        else:
            for user in [user for user in call.users if user.opcode == "get-tuple-element"]:
                self._module.replace_uses(user, parts[user.tuple_index])
                computation.remove(user)
            if call.users or call.is_root:
                made = InstructionMaker(computation).add("tuple", call.shape, parts)
                made.attrs["sharding"] = TupleSharding(tuple(elements_of(part.sharding)[0] for part in parts if part.sharding))
                self._module.replace_uses(call, made)
        call.control_predecessors = []
        computation.remove(call)

    def _drop(self, call: HloInstruction) -> None:
        if is_call(call, BARRIER):
            bypass(self._module, call)
        elif not call.users and call.parent is not None:
            call.parent.remove(call)


def hlo_sharding(sharding: NamedSharding | None, shape: Shape, names: tuple[str, ...], mesh: Mesh | None) -> SingleSharding:
    """Return a sharding as tiles; inside manual computations `names` are the manual axes of `mesh`.

    Raises Unsupported for unreduced axes there: a sharding of tiles has no such axes besides manual ones.
    """
    if sharding is None or (mesh is not None and not sharding.mesh.axes):
        if not names or mesh is None:
            return REPLICATED
        sharding = all_dims(mesh, shape.rank if shape.is_array else 0, is_closed=True)
    manual = tuple(AxisRef(number) for number, (name, _) in enumerate(sharding.mesh.axes) if name in names)
    if manual and sharding.unreduced:
        raise Unsupported("unreduced axes in a manual computation over other axes")
    made: Sharding = as_tiles(NamedSharding(sharding.mesh, sharding.dims, sharding.replicated, sharding.unreduced, manual))
    assert isinstance(made, SingleSharding), "one array has one sharding"
    return made


def forget_attributes(module: HloModule) -> None:
    """Remove Shardy's attributes from the module and all instructions."""
    for holder in (module, *module.instructions):
        found = holder.attrs.get("frontend_attributes")
        if isinstance(found, FrontendAttributes):
            kept = tuple(entry for entry in found.entries if not entry[0].startswith(shardy.PREFIX))
            if kept:
                holder.attrs["frontend_attributes"] = FrontendAttributes(kept)
            else:
                del holder.attrs["frontend_attributes"]


def metadata_of(like: HloInstruction) -> dict[str, AttributeValue]:
    """Return the attribute with the metadata of an instruction, if it has some."""
    return {"metadata": like.metadata} if like.metadata is not None else {}


def _joined(local: NamedSharding | None, whole: NamedSharding, manual: frozenset[int]) -> NamedSharding:
    return global_sharding(local, whole, manual) if local is not None else whole


def _array_shapes(shape: Shape) -> Sequence[Shape]:
    return shape.tuple_shapes if shape.is_tuple else (shape,)


def _axes_numbers(sharding: NamedSharding, names: Sequence[str]) -> frozenset[int]:
    return frozenset(number for number, (name, _) in enumerate(sharding.mesh.axes) if name in names)
