"""Divide the work of a module between its partitions: every device computes its tiles, and collectives move the rest.

    x = f32[8] parameter(0), sharding={devices=[2]<=[2]}     =>   x = f32[4] parameter(0)
    y = f32[] reduce(x, 0), to_apply=add                          y = f32[] all-reduce(reduce(x, 0)), to_apply=add

Each instruction has the tiles that its sharding says; one without a sharding is computed on all devices. What has an unreduced
sharding stays a sum of the devices' results. Manual regions run as
written. Needs the shardings of `sharding-propagation`, and leaves none but those of transfers. XLA's `SpmdPartitioner`
with the options of XLA:GPU. With `--xla_gpu_threshold_for_windowed_einsum_mib`, large products of dots are loops that send tiles
round a ring of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.artifact.division import DividedEntry, Division
from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.edit import next_channel_id
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo.values.attribute_values import EntryLayout
from hlo_run.hlo.values.sharding import Sharding, SingleSharding, TupleSharding, without_metadata
from hlo_run.options import CompileOptions
from hlo_run.pass_support.call_graph import flatten_call_graph
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.observer import SPMD_CLEANUP, Level, Step
from hlo_run.pass_support.print_options import dump_options
from hlo_run.records import replace
from hlo_run.sharding.analysis.division import division_of
from hlo_run.sharding.analysis.whole import has_sharding, is_for_partitioner
from hlo_run.sharding.partitioning.cleanup import clean_up
from hlo_run.sharding.partitioning.handlers.walk import partition_computation
from hlo_run.sharding.partitioning.preparation import prepare
from hlo_run.sharding.partitioning.rings import RingOptions
from hlo_run.sharding.partitioning.state import Channels
from hlo_run.sharding.values.make import (
    REPLICATED,
    as_tiles,
    device_array,
    elements_of,
    for_shape,
    maximal,
    partial_tile,
    same_for_all,
)
from hlo_run.sharding.values.moves import all_data_replicated, reverse

_CONTROL_FLOW: tuple[Opcode, ...] = ("while", "conditional", "call")
# Transfers say which device sends or receives.
_KEEPS_SHARDING: tuple[Opcode, ...] = ("infeed", "outfeed", "send", "send-done", "recv", "recv-done")


class SpmdPartitioning(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "spmd-partitioning"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place.

        Raises Unsupported for shardings over other devices than the module's partitions, ParseError for tiles that do not have
        the dimensions of their array.
        """

        def tell(row: str, changed: bool) -> None:
            def text() -> str:
                return module_to_string(module, dump_options(ctx.show))

            ctx.ran(SPMD_CLEANUP, lambda: Step(Level.HLO, SPMD_CLEANUP, row, text, changed=changed))

        replicas, partitions = module.replica_count, module.num_partitions
        is_divided = any(has_sharding(i) for i in module.instructions)
        if not is_divided and not is_for_partitioner(module):
            return
        flatten_call_graph(module)
        _complete(module, partitions)
        prepare(module)
        channels = Channels(next_channel_id(module))
        whole = module.entry
        divided = DividedEntry(
            tuple(_divisions(parameter, partitions) for parameter in whole.parameters), _divisions(whole.root, partitions)
        )
        unreduced = _as_copies(module)
        rings = _ring_options(ctx.options)
        divides_updates = ctx.options.xla_enable_enzyme_comms_opt
        for computation in _callees_first(module):
            sharding = _root_sharding(computation)
            if sharding is not None:
                made = partition_computation(
                    module, computation, sharding, replicas, partitions, channels, rings, unreduced, divides_updates
                )
                _put(module, computation, made)
        for instruction in module.instructions:
            if instruction.opcode not in _KEEPS_SHARDING:
                instruction.attrs.pop("sharding", None)
        clean_up(module, tell)
        _fit_layout(module)
        module.divided = divided if is_divided else None


def _ring_options(options: CompileOptions) -> RingOptions:
    """Return the options of products as loops; XLA's unit is MiB for one array, and bytes for two operands."""
    both = options.xla_gpu_operand_bytes_threshold_for_windowed_einsum
    return RingOptions(
        options.xla_gpu_threshold_for_windowed_einsum_mib << 20,
        both if both >= 0 else None,
        options.xla_gpu_multi_streamed_windowed_einsum,
    )


def _divisions(value: HloInstruction, partitions: int) -> tuple[Division | None, ...]:
    """Return how the leaves of a value are divided between the partitions. Tokens have no division and no value."""
    assert value.sharding is not None, "every instruction has a sharding"
    pairs = zip(value.shape.leaves(), elements_of(value.sharding), strict=False)
    leaves = [(shape, leaf) for (_, shape), leaf in pairs if shape.element_type != "token"]
    return tuple(division_of(shape, leaf, partitions) if shape.is_array else None for shape, leaf in leaves)


def _complete(module: HloModule, partitions: int) -> None:
    """Give every instruction a sharding with tiles: replicated ones to those without."""
    for computation in module.computations:
        for instruction in computation.post_order():
            sharding = instruction.sharding
            if sharding is None:
                sharding = _default_sharding(instruction)
            sharding = without_metadata(as_tiles(sharding))
            if instruction.shape.is_tuple and isinstance(sharding, SingleSharding):
                sharding = same_for_all(instruction.shape, sharding)
            leaves = [_known(leaf) for leaf in elements_of(sharding)]
            # That of an outfeed is the one of its operand.
            is_tuple = instruction.opcode == "outfeed" and isinstance(sharding, TupleSharding)
            instruction.attrs["sharding"] = TupleSharding(tuple(leaves)) if is_tuple else for_shape(instruction.shape, leaves)
            _check_ranks(instruction, leaves)
            for leaf in leaves:
                if leaf.kind == "tiled" and leaf.device_count != partitions:
                    message = f"a sharding over {partitions} partitions is needed, found {leaf}"
                    raise Unsupported(message, instruction.where, hint=f"--num_partitions={leaf.device_count}")
                _check_devices(instruction, leaf, partitions)
    for computation in reversed(_callees_first(module)):
        for instruction in computation.instructions:
            if instruction.opcode in _CONTROL_FLOW:
                _share_with_computations(instruction)


def _check_ranks(instruction: HloInstruction, leaves: Sequence[SingleSharding]) -> None:
    """Raise ParseError if the tiles of a leaf have other dimensions than its array."""
    for (_, shape), leaf in zip(instruction.shape.leaves(), leaves, strict=False):
        if leaf.kind == "tiled" and shape.is_array and leaf.data_rank != shape.rank:
            message = (
                f"the sharding {leaf} has {leaf.data_rank} dimensions, the array {shape.to_string(layout=False)} {shape.rank}"
            )
            raise ParseError(message, instruction.where, notes=(f"instruction %{instruction.name}",))


def _check_devices(instruction: HloInstruction, leaf: SingleSharding, partitions: int) -> None:
    """Raise ParseError if a sharding names a device that the run lacks, or one device twice."""
    named = list(map(int, device_array(leaf).flat)) if leaf.kind == "tiled" else []
    outside = [device for device in (*named, leaf.device) if not 0 <= device < partitions]
    if not outside and len(set(named)) == len(named):
        return
    fault = f"names device {outside[0]}, but the last one is {partitions - 1}" if outside else "names a device twice"
    raise ParseError(f"the sharding {leaf} {fault}", instruction.where, notes=(f"instruction %{instruction.name}",))


def _default_sharding(instruction: HloInstruction) -> Sharding:
    if instruction.opcode == "rng":
        return maximal(0)
    operand = instruction.operands[0].sharding if instruction.opcode == "reverse" else None
    if operand is not None:
        return reverse(elements_of(operand)[0], instruction.dimensions)
    return same_for_all(instruction.shape, REPLICATED)


def _known(leaf: SingleSharding) -> SingleSharding:
    """Return a sharding without groups; an unknown one counts as replicated."""
    return REPLICATED if leaf.kind == "unknown" else replace(leaf, shard_group=None)


def _as_copies(module: HloModule) -> frozenset[HloInstruction]:
    """Let devices with addends of one value count as devices with copies of it; return the instructions with such values."""
    found: list[HloInstruction] = []
    for instruction in module.instructions:
        if instruction.sharding is None:
            continue
        leaves = elements_of(instruction.sharding)
        if any(leaf.kind == "unreduced" or "unreduced" in leaf.subgroups for leaf in leaves):
            found.append(instruction)
            instruction.attrs["sharding"] = for_shape(instruction.shape, [_with_copies(leaf, instruction) for leaf in leaves])
    return frozenset(found)


def _with_copies(leaf: SingleSharding, instruction: HloInstruction) -> SingleSharding:
    if leaf.kind == "unreduced":
        return REPLICATED
    if "unreduced" not in leaf.subgroups or leaf.tiles is None:
        return leaf
    if "manual" in leaf.subgroups:
        raise Unsupported("a sharding with manual and unreduced axes", instruction.where)
    return partial_tile(leaf.tiles.reshape((*leaf.data_dims, leaf.device_count // leaf.tile_count)))


def _share_with_computations(instruction: HloInstruction) -> None:
    """Give the parameters of called computations the shardings of what they get; a loop's condition is not divided."""
    if instruction.opcode == "while":
        for computation in (instruction.while_condition, instruction.while_body):
            computation.parameters[0].attrs["sharding"] = instruction.given_sharding
        root = instruction.while_condition.root
        assert root.sharding is not None
        root.attrs["sharding"] = all_data_replicated(elements_of(root.sharding)[0])
        return
    operands = instruction.operands[1:] if instruction.opcode == "conditional" else instruction.operands
    if instruction.opcode == "conditional":
        for computation, operand in zip(instruction.called_computations, operands, strict=True):
            computation.parameters[0].attrs["sharding"] = operand.given_sharding
    else:
        for parameter, operand in zip(instruction.to_apply.parameters, operands, strict=True):
            parameter.attrs["sharding"] = operand.given_sharding


def _callees_first(module: HloModule) -> list[HloComputation]:
    order: list[HloComputation] = []

    def visit(computation: HloComputation) -> None:
        for instruction in computation.post_order():
            for called in _callees(instruction):
                if called not in order:
                    visit(called)
        order.append(computation)

    visit(module.entry)
    return order


def _callees(instruction: HloInstruction) -> tuple[HloComputation, ...]:
    """Return what control flow calls; a loop's body before its condition, as XLA names their instructions in this order."""
    if instruction.opcode == "while":
        return (instruction.while_body, instruction.while_condition)
    return instruction.called_computations if instruction.opcode in _CONTROL_FLOW else ()


def _root_sharding(computation: HloComputation) -> Sharding | None:
    """Return the sharding that the root must have, or None for a computation that is not partitioned."""
    if computation.is_entry:
        return computation.root.sharding
    caller = next((c for c in computation.callers if c.opcode in _CONTROL_FLOW), None)
    if caller is None:
        return None
    if caller.opcode == "while" and computation is caller.while_condition:
        return computation.root.sharding
    return caller.sharding


def _put(module: HloModule, old: HloComputation, new: HloComputation) -> None:
    """Put a partitioned computation in the place of the original one."""
    is_entry = old.is_entry
    module.add_computation(new, is_entry=is_entry)
    for caller in list(old.callers):
        caller.called = {key: tuple(new if c is old else c for c in group) for key, group in caller.called.items()}
    if module.entry_computation is old:
        module.entry_computation = new
    if not is_entry or old is not module.entry:
        module.remove_computation(old)


def _fit_layout(module: HloModule) -> None:
    """Let the header's layout have the shapes of the parts."""
    layout = module.entry_layout
    if layout is None:
        return
    new = tuple(p.shape.in_layout_of(old) for old, p in zip(layout.parameters, module.entry.parameters, strict=True))
    module.attrs["entry_computation_layout"] = EntryLayout(new, module.entry.root.shape.in_layout_of(layout.result))
