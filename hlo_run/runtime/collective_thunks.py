"""Emits thunks of collectives, with their groups, reduction and dimension."""

from __future__ import annotations

from hlo_run.artifact import ArraySpec, ArrayTree, CollectiveKind, CollectiveThunk, GroupMode, Thunk
from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_START, OPERATION_OF, REDUCING_COLLECTIVE
from hlo_run.hlo.views import collectives
from hlo_run.hlo.views.collectives import Collective
from hlo_run.runtime.thunk_context import EmitThunk, ThunkContext

_KINDS: dict[Opcode, CollectiveKind] = {
    "all-reduce": "kAllReduce",
    "reduce-scatter": "kReduceScatter",
    "all-gather": "kAllGather",
    "all-to-all": "kAllToAll",
    "collective-broadcast": "kCollectiveBroadcast",
    "collective-permute": "kCollectivePermute",
    "ragged-all-to-all": "kRaggedAllToAll",
}

_MODES: dict[collectives.GroupMode, GroupMode] = {
    "cross_replica": "kCrossReplica",
    "cross_partition": "kCrossPartition",
    "cross_replica_and_partition": "kCrossReplicaAndPartition",
    "flattened_id": "kFlattenedID",
}


def _collective(context: ThunkContext, instruction: HloInstruction) -> list[Thunk]:
    return [collective_thunk(context, instruction)]


def collective_kernel(context: ThunkContext, fusion: HloInstruction) -> list[Thunk]:
    """Return the thunk of a fusion of one all-reduce, for which XLA has a Triton kernel."""
    operands = tuple(array for operand in fusion.operands for array in _arrays(context.tree(operand)))
    return [_thunk(fusion.fused_computation.root, "kCollectiveKernel", fusion.name, operands, _arrays(context.tree(fusion)))]


def collective_thunk(context: ThunkContext, instruction: HloInstruction) -> CollectiveThunk:
    """Return the thunk of a collective, or of the collective that a start such as `all-gather-start` begins."""
    opcode = OPERATION_OF.get(instruction.opcode, instruction.opcode)
    # The other starts return (operands, results, ..).
    index = (1,) if instruction.opcode in ASYNC_START and instruction.opcode != "all-reduce-start" else ()
    operands = tuple(array for operand in instruction.operands for array in _arrays(context.tree(operand)))
    return _thunk(instruction, _KINDS[opcode], instruction.name, operands, _arrays(context.tree(instruction, index)))


def _thunk(
    instruction: HloInstruction,
    kind: CollectiveKind,
    name: str,
    operands: tuple[ArraySpec, ...],
    results: tuple[ArraySpec, ...],
) -> CollectiveThunk:
    opcode = OPERATION_OF.get(instruction.opcode, instruction.opcode)
    # The reducer is one operation: general-reduction-decomposer has replaced the others.
    reduction = instruction.to_apply.root.opcode if opcode in REDUCING_COLLECTIVE else ""
    dims = instruction.ints("dimensions")
    collective = Collective.of(instruction)
    if collective.mode is None:
        raise ParseError("use_global_device_ids needs a channel_id", instruction.where)
    return CollectiveThunk(
        name,
        kind,
        # Ops on one channel belong together even in different computations: two branches of a conditional may meet.
        f"{opcode} on channel {collective.channel}" if collective.has_channel else f"{opcode} %{instruction.name}",
        operands,
        results,
        _MODES[collective.mode],
        collective.pairs or collective.filled_groups,
        dims[0] if dims else -1,
        reduction,
        tuple(tuple(sizes) for sizes in instruction.in_place_slice_sizes),
    )


def _arrays(tree: ArrayTree) -> tuple[ArraySpec, ...]:
    if isinstance(tree, ArraySpec):
        return (tree,)
    return tuple(array for part in tree for array in _arrays(part))


OPCODES: dict[Opcode, EmitThunk] = dict.fromkeys(_KINDS, _collective)
