"""The number of partitions that a module's shardings need, whatever its header says."""

from __future__ import annotations

from contextlib import suppress

from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.sharding.values import shardy
from hlo_run.sharding.values.make import as_tiles, elements_of

# The calls that lead into the program of one partition.
_TO_SHARDS = ("SPMDFullToShardShape", "xla.sdy.GlobalToLocalShape")


def needed_partitions(module: HloModule) -> int:
    """Return the largest number of partitions that a sharding or a mesh of Shardy names; 1 if none names any."""
    counts = [
        leaf.device_count if leaf.kind == "tiled" else 1
        for instruction in module.instructions
        if instruction.sharding is not None
        for leaf in elements_of(as_tiles(instruction.sharding))
    ]
    meshes = frontend_attribute(module, shardy.MESHES)
    if meshes:
        with suppress(ValueError):  # the pass over Shardy's attributes refuses them
            counts += [mesh.size for mesh in shardy.read_meshes(meshes).values()]
    return max(counts, default=1)


def verify_partitions(module: HloModule, partitions: int) -> None:
    """Raise Unsupported if a module with parts for single partitions, as shard_map makes them, is for one partition only."""
    if partitions > 1:
        return
    call = next((i for i in module.instructions if _divides(i)), None)
    if call is None:
        return
    needed = needed_partitions(module)
    hint = f"--num_partitions={needed}" if needed > 1 else "--num_partitions=N sets their number"
    what = f"{needed} partitions" if needed > 1 else "several partitions"
    note = f"instruction %{call.name} takes a partition's part of an array"
    raise Unsupported(f"the module is for {what}, but has 1", call.where, hint=hint, notes=(note,))


def _divides(instruction: HloInstruction) -> bool:
    """True if a call takes parts that are smaller than the whole arrays."""
    if instruction.custom_call_target.strip('"') not in _TO_SHARDS:
        return False
    operands = [leaf.dims for operand in instruction.operands for _, leaf in operand.shape.leaves()]
    return operands != [leaf.dims for _, leaf in instruction.shape.leaves()]
