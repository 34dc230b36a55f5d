"""Partition one computation: visit its instructions in order, and make the part of each."""

from __future__ import annotations

from hlo_run.errors import Unsupported
from hlo_run.hlo.fused_names import clone_name
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding
from hlo_run.records import replace
from hlo_run.sharding.analysis.whole import is_refused
from hlo_run.sharding.partitioning.grouping import align, group_state
from hlo_run.sharding.partitioning.handlers.ring_motion import move_into_loops
from hlo_run.sharding.partitioning.handlers.table import handler_of
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.reshard import reshard
from hlo_run.sharding.partitioning.rings import RingOptions, Rings
from hlo_run.sharding.partitioning.state import Builder, Channels, Part, State
from hlo_run.sharding.values.groups import GroupedSharding, manual_groups
from hlo_run.sharding.values.make import elements_of, for_shape, is_manual, maximal, part_of

# These have a manual sharding as it is; other manual instructions count as on one device.
_AS_MANUAL = opcode_set("all-reduce call conditional infeed outfeed parameter rng tuple while")
_BORDERS = ("SPMDFullToShardShape", "SPMDShardToFullShape")


def partition_computation(
    module: HloModule,
    computation: HloComputation,
    root_sharding: Sharding,
    replicas: int,
    partitions: int,
    channels: Channels,
    ring_options: RingOptions | None = None,
    unreduced: frozenset[HloInstruction] = frozenset(),
    divides_updates: bool = False,
) -> HloComputation:
    """Return the partitioned computation, outside of the module; its root has `root_sharding`.

    The devices' results of the instructions in `unreduced` stay addends of the values. With `divides_updates`, updates at
    constant places are divided.
    """
    builder = Builder(HloComputation(f"{computation.name}_spmd"), unreduced)
    partition_id = builder.add("partition-id", Shape.array("u32", ()))
    rings = Rings(ring_options)
    state = State(
        builder, module, partition_id, channels, replicas, partitions, reshard, rings=rings, divides_updates=divides_updates
    )
    parts: dict[HloInstruction, Part] = {}
    for instruction in computation.visit_order():
        builder.origin = instruction
        parts[instruction] = _visit(state, instruction, parts)
        _keep_order(instruction, parts)
        made = parts[instruction].hlo
        if made.opcode == instruction.opcode:
            made.attrs["sharding"] = instruction.given_sharding  # equal instructions with other shardings are not merged
        builder.origin = None
    builder.computation.root = parts[computation.root].reshard(root_sharding).hlo
    move_into_loops(state.rings.made)
    return builder.computation


def _keep_order(instruction: HloInstruction, parts: dict[HloInstruction, Part]) -> None:
    """Let the part run after the parts of the control predecessors."""
    before = [parts[p].hlo for p in instruction.control_predecessors]
    if before:
        hlo = parts[instruction].hlo
        hlo.control_predecessors = list(dict.fromkeys((*hlo.control_predecessors, *before)))


def _visit(state: State, instruction: HloInstruction, parts: dict[HloInstruction, Part]) -> Part:
    sharding = instruction.sharding
    assert sharding is not None, "every instruction has a sharding"
    operands = tuple(parts[operand] for operand in instruction.operands)
    opcode = instruction.opcode
    plain = Visit(instruction, operands, sharding, state, state.partitions, parts if state.divides_updates else None)
    is_border = opcode == "custom-call" and instruction.custom_call_target in _BORDERS
    if opcode in _AS_MANUAL or (is_border and instruction.custom_call_target == _BORDERS[0]):
        return handler_of(instruction)(plain)
    if is_manual(sharding) and not _reads_manual(instruction, operands):
        return _manual(state, instruction, operands, sharding)
    if _has_manual_groups(sharding) and not is_border and opcode != "get-tuple-element":
        return _in_groups(state, instruction, operands, sharding)
    if is_refused(instruction):
        raise Unsupported(f"'{opcode}' has an effect and cannot be replicated", instruction.where)
    return handler_of(instruction)(plain)


def _manual(state: State, instruction: HloInstruction, operands: tuple[Part, ...], sharding: Sharding) -> Part:
    """Copy an instruction of a manual region: every device runs it as it is."""
    values: list[HloInstruction] = []
    for part in operands:
        leaves = elements_of(part.sharding)
        one = maximal(0)
        alone = for_shape(part.base, [one if leaf.is_manual else leaf for leaf in leaves])
        wanted = for_shape(part.base, [one] * len(leaves))
        values.append(part.with_value(part.hlo, alone).reshard(wanted).hlo)
    made = state.builder.clone(instruction, instruction.shape, values, _name_in_region(instruction))
    return Part(made, instruction.shape, sharding, state)


def _name_in_region(instruction: HloInstruction) -> str:
    """Return the name for the copy of an instruction in a region, or "" to keep its name.

    XLA creates new control flow, which has the name of its opcode. It clones constants, which get the name of a clone.
    """
    if instruction.opcode == "constant":
        return clone_name(instruction.name)
    return instruction.opcode if instruction.opcode in CONTROL_FLOW else ""


def _reads_manual(instruction: HloInstruction, operands: tuple[Part, ...]) -> bool:
    """True if a manual element of a tuple is read: the other elements stay as they are."""
    if instruction.opcode != "get-tuple-element":
        return False
    part, index = operands[0], instruction.tuple_index
    return is_manual(part_of(part.sharding, part.base, index))


def _has_manual_groups(sharding: Sharding) -> bool:
    return any("manual" in leaf.subgroups for leaf in elements_of(sharding))


def _grouped(sharding: Sharding, shape: Shape, reference: GroupedSharding | None) -> tuple[Sharding, GroupedSharding] | None:
    """Return the sharding inside of manual groups, and the groups; None if they do not fit the reference."""
    inner: list[GroupedSharding] = []
    for leaf in elements_of(sharding):
        if "manual" not in leaf.subgroups:
            return None
        grouped = manual_groups(leaf)
        first = inner[0] if inner else reference
        found = align(grouped, first, is_strict=True) if first is not None else grouped
        if found is None:
            return None
        inner.append(found)
    return for_shape(shape, [grouped.sharding for grouped in inner]), inner[0]


def _in_groups(state: State, instruction: HloInstruction, operands: tuple[Part, ...], sharding: Sharding) -> Part:
    """Partition an instruction inside of the groups that a manual subgroup distinguishes."""
    found = _grouped(sharding, instruction.shape, None)
    if found is None:
        raise Unsupported("manual and automatic elements of one tuple", instruction.where)
    inner_sharding, groups = found
    inside = group_state(state, groups.devices)
    parts: list[Part] = []
    for part, operand in zip(operands, instruction.operands, strict=True):
        inner = _grouped(part.sharding, part.base, groups)
        if inner is None:
            if operand.opcode == "constant" and not operand.shape.dims:
                parts.append(replace(part, state=inside))
                continue
            raise Unsupported(f"operand %{operand.name} has other manual groups", instruction.where)
        parts.append(replace(part, sharding=inner[0], state=inside))
    visit = Visit(instruction, tuple(parts), inner_sharding, inside, state.partitions // groups.devices.dims[0])
    made = handler_of(instruction)(visit)
    return Part(made.hlo, instruction.shape, sharding, state)
