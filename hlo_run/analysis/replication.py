"""Finds the values that are the same on all devices, or on the devices of a group.

The devices are the replicas of one partition, or the partitions of one replica. A value is the same on devices if its operands
are and its operation does not depend on the device. Parameters are the same if a `parameter_replication` or, between partitions,
a sharding says so. XLA's `HloReplicationAnalysis`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS, SIDE_EFFECT
from hlo_run.hlo.values.shape import Shape, ShapeIndex
from hlo_run.hlo.values.sharding import SingleSharding, TupleSharding
from hlo_run.hlo.views.collectives import Collective

Groups = Sequence[Sequence[int]]

_FROM_OPERANDS = MOVES_ELEMENTS | opcode_set("""concatenate convolution dot reduce gather scatter iota pad dynamic-slice
    dynamic-update-slice reduce-window""")


class Sameness(Struct, frozen=True):
    """The devices with the same value: all, none, or for each number of the other axis the devices with one entry of `roots`."""

    kind: str
    roots: tuple[tuple[int, ...], ...] = ()

    def and_(self, other: Sameness) -> Sameness:
        """Return the devices on which both values are the same."""
        if self.kind == "all" or other.kind == "none":
            return other
        if other.kind == "all" or self.kind == "none":
            return self
        rows = tuple(tuple(zip(a, b, strict=False)) for a, b in zip(self.roots, other.roots, strict=False))
        if all(len(set(row)) == len(row) for row in rows):
            return UNIQUE
        return Sameness("groups", tuple(tuple(row.index(entry) for entry in row) for row in rows))

    def within(self, groups: Groups) -> bool:
        """True if the devices of each group have one value; without groups, if all have."""
        if self.kind != "groups" or not groups:
            return self.kind == "all"
        return all(len({row[device] for device in group}) == 1 for row in self.roots for group in groups if group)


SAME, UNIQUE = Sameness("all"), Sameness("none")


class Replication:
    """The analysis of a module; see the module's docstring.

    `across_partitions` compares partitions, else replicas. With `in_groups` it knows values that are the same in some groups
    only. `loops` are whiles with the same number of iterations everywhere, whatever their condition.
    """

    def __init__(
        self,
        module: HloModule,
        across_partitions: bool,
        in_groups: bool = False,
        loops: Container[HloInstruction] = (),
    ) -> None:
        self._across_partitions, self._in_groups, self._loops = across_partitions, in_groups, loops
        self._replicas = module.replica_count
        self._partitions = module.num_partitions
        self._found: dict[HloInstruction, dict[ShapeIndex, Sameness]] = {}
        for parameter in module.entry.parameters:
            self._found[parameter] = self._of_parameter(parameter)
        self._run(module.entry, differs=False)

    def is_same(self, instruction: HloInstruction, groups: Groups = (), index: ShapeIndex = ()) -> bool:
        """True if the devices of each group, or all, have the same value at a shape index of an instruction."""
        return self._found.get(instruction, {}).get(index, UNIQUE).within(groups)

    def _of_parameter(self, parameter: HloInstruction) -> dict[ShapeIndex, Sameness]:
        leaves = [index for index, _ in parameter.shape.leaves()]
        flags = parameter.parameter_replication
        sharding = parameter.sharding if self._across_partitions else None
        elements = sharding.elements if isinstance(sharding, TupleSharding) else [sharding] * len(leaves)
        found: dict[ShapeIndex, Sameness] = {}
        for number, index in enumerate(leaves):
            element = elements[number] if number < len(elements) else None
            is_same = isinstance(element, SingleSharding) and element.is_replicated
            if flags:
                is_same = bool(flags[number]) and (is_same or not self._across_partitions)
            found[index] = SAME if is_same else UNIQUE
        return found

    def _run(self, computation: HloComputation, differs: bool) -> bool:
        """Visit a computation; with `differs` nothing in it is the same. Return whether anything changed."""
        changed = False
        for instruction in computation.post_order():
            match instruction.opcode:
                case "while":
                    changed |= self._visit_loop(instruction, differs)
                case "call" | "fusion":
                    changed |= self._visit_call(instruction, differs)
                case "conditional":
                    changed |= self._visit_conditional(instruction, differs)
                case _:
                    changed |= self._join(instruction, self._leaves(instruction, differs))
        return changed

    def _leaves(self, instruction: HloInstruction, differs: bool) -> dict[ShapeIndex, Sameness]:
        if instruction.opcode == "parameter":
            return self._found.get(instruction, _everywhere(instruction.shape, UNIQUE))
        if instruction.opcode == "tuple":
            operands = enumerate(instruction.operands)
            return {(n, *index): same for n, operand in operands for index, same in self._found[operand].items()}
        if instruction.opcode == "get-tuple-element":
            own = instruction.tuple_index
            return {index[1:]: same for index, same in self._found[instruction.operands[0]].items() if index[:1] == (own,)}
        if instruction.opcode == "opt-barrier":
            return dict(self._found[instruction.operands[0]])
        return _everywhere(instruction.shape, UNIQUE if differs else self._of_result(instruction))

    def _join(self, instruction: HloInstruction, found: dict[ShapeIndex, Sameness]) -> bool:
        before = self._found.get(instruction)
        if before is None:
            self._found[instruction] = dict(found)
            return True
        after = {index: same.and_(found.get(index, UNIQUE)) for index, same in before.items()}
        self._found[instruction] = after
        return after != before

    def _pass_on(self, source: HloInstruction, target: HloInstruction) -> bool:
        return source in self._found and self._join(target, self._found[source])

    def _visit_loop(self, loop: HloInstruction, differs: bool) -> bool:
        condition, body = loop.while_condition, loop.while_body
        changed = False
        while True:
            updated = False
            for source in (loop.operands[0], body.root):
                for target in (condition.parameters[0], body.parameters[0]):
                    updated |= self._pass_on(source, target)
            updated |= self._run(condition, differs)
            goes_on = loop in self._loops or self._found[condition.root].get((), UNIQUE) == SAME
            updated |= self._run(body, differs or not goes_on)
            if not updated:
                break
            changed = True
        changed |= self._pass_on(loop.operands[0], loop)
        return self._pass_on(body.root, loop) or changed

    def _visit_call(self, call: HloInstruction, differs: bool) -> bool:
        (called,) = call.called_computations[:1]
        changed = False
        if len(called.callers) > 1:
            changed |= self._run(called, differs=True)
        else:
            for operand, parameter in zip(call.operands, called.parameters, strict=True):
                changed |= self._pass_on(operand, parameter)
            changed |= self._run(called, differs)
        return self._pass_on(called.root, call) or changed

    def _visit_conditional(self, choice: HloInstruction, differs: bool) -> bool:
        changed = False
        branches = choice.called_computations
        for operand, branch in zip(choice.operands[1:], branches, strict=True):
            changed |= self._pass_on(operand, branch.parameters[0])
        is_common = self._found[choice.operands[0]].get((), UNIQUE) == SAME
        for branch in branches:
            changed |= self._run(branch, differs or not is_common)
            if is_common:
                changed |= self._pass_on(branch.root, choice)
        return changed if is_common else self._join(choice, _everywhere(choice.shape, UNIQUE)) or changed

    def _of_operands(self, instruction: HloInstruction) -> Sameness:
        found = SAME
        for operand in instruction.operands:
            for same in self._found.get(operand, {(): UNIQUE}).values():
                found = found.and_(same)
        return found

    def _of_result(self, instruction: HloInstruction) -> Sameness:
        opcode = instruction.opcode
        if opcode in ("all-reduce", "all-gather"):
            found = self._of_operands(instruction)
            is_of_replicas = instruction.channel_id is None
            return found if found == SAME or (is_of_replicas and self._across_partitions) else self._collected(instruction)
        if opcode in SIDE_EFFECT or instruction.has_side_effect:
            return UNIQUE
        if opcode in ("replica-id", "partition-id"):
            return SAME if (opcode == "replica-id") == self._across_partitions else UNIQUE
        if opcode == "constant":
            return SAME
        if self._in_groups and opcode == "dynamic-slice" and (entry := self._entry_of_table(instruction)) is not None:
            return entry
        return self._of_operands(instruction) if opcode in _FROM_OPERANDS or is_elementwise(instruction) else UNIQUE

    def _entry_of_table(self, instruction: HloInstruction) -> Sameness | None:
        """Devices with equal entries in a table of a number per device have the same entry."""
        table, *indices = instruction.operands
        own = "partition-id" if self._across_partitions else "replica-id"
        is_entry = table.opcode == "constant" and table.shape.element_type == "s32" and instruction.shape.dims == (1,)
        if not is_entry or indices[0].opcode != own:
            return None
        count = self._partitions if self._across_partitions else self._replicas
        entries = [int(entry) for entry in table.constant_array[:count]]
        return Sameness("groups", (tuple(entries.index(entry) for entry in entries),))

    def _collected(self, instruction: HloInstruction) -> Sameness:
        """Devices of one group have the same result."""
        collective = Collective.of(instruction)
        groups, has_channel = collective.groups, collective.has_channel
        if collective.mode == "flattened_id":
            return self._collected_globally(groups)
        if (has_channel and self._across_partitions) or len(groups) < 2:
            return SAME
        return self._of_groups([groups]) if self._in_groups and not has_channel else UNIQUE

    def _collected_globally(self, groups: Groups) -> Sameness:
        """Cut groups of all devices into the groups of each replica (or partition)."""
        rows = self._replicas if self._across_partitions else self._partitions
        count = self._partitions if self._across_partitions else self._replicas
        cut: list[list[list[int]]] = [[] for _ in range(rows)]
        for group in groups:
            own: dict[int, list[int]] = {}
            for device in group:
                replica, partition = divmod(device, self._partitions)
                row, member = (replica, partition) if self._across_partitions else (partition, replica)
                own.setdefault(row, []).append(member)
            for row, members in own.items():
                cut[row].append(members)
        if all(len(sets) == 1 and len(sets[0]) == count for sets in cut):
            return SAME
        return self._of_groups(cut) if self._in_groups else UNIQUE

    def _of_groups(self, rows: Sequence[Groups]) -> Sameness:
        roots: list[tuple[int, ...]] = []
        for groups in rows:
            row = [0] * (1 + max((device for group in groups for device in group), default=0))
            for group in groups:
                for device in group:
                    row[device] = min(group)
            roots.append(tuple(row))
        return Sameness("groups", tuple(roots))


def _everywhere(shape: Shape, same: Sameness) -> dict[ShapeIndex, Sameness]:
    return {index: same for index, _ in shape.leaves()}
