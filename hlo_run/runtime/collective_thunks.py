"""Emits thunks of collectives, with their groups, reduction and dimension."""

from __future__ import annotations

from hlo_run.artifact import REDUCED_ELEMENTS, ArraySpec, ArrayTree, CollectiveKind, CollectiveThunk, GroupMode, Thunk
from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE, ASYNC_START, PERMUTE, REDUCING_COLLECTIVE, TAKES_GLOBAL_IDS
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import computation_to_string
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.runtime.thunk_context import EmitThunk, ThunkContext
from hlo_run.walks import post_order

_KINDS: dict[str, CollectiveKind] = {
    "all-reduce": "kAllReduce",
    "reduce-scatter": "kReduceScatter",
    "all-gather": "kAllGather",
    "all-to-all": "kAllToAll",
    "collective-broadcast": "kCollectiveBroadcast",
    "collective-permute": "kCollectivePermute",
    "ragged-all-to-all": "kRaggedAllToAll",
}


def _collective(context: ThunkContext, instruction: HloInstruction) -> list[Thunk]:
    return [collective_thunk(context, instruction)]


def collective_thunk(context: ThunkContext, instruction: HloInstruction) -> CollectiveThunk:
    """Return the thunk of a collective, or of the collective that a start such as `all-gather-start` begins."""
    opcode = instruction.opcode.removesuffix("-start")
    # The other starts return (operands, results, ..).
    index = (1,) if instruction.opcode in ASYNC_START and instruction.opcode != "all-reduce-start" else ()
    reduction, reducer = _reduction(instruction) if opcode in REDUCING_COLLECTIVE else ("", "")
    dims = instruction.attrs.get("dimensions", ())
    channel = instruction.channel_id
    return CollectiveThunk(
        instruction.name,
        _KINDS[opcode],
        # Ops on one channel belong together even in different computations: two branches of a conditional may meet.
        f"{opcode} on channel {channel}" if channel is not None else f"{opcode} %{instruction.name}",
        tuple(array for operand in instruction.operands for array in _arrays(context.tree(operand))),
        _arrays(context.tree(instruction, index)),
        _mode(instruction),
        _groups(instruction),
        dims[0] if dims else -1,
        reduction,
        tuple(tuple(sizes) for sizes in instruction.attrs.get("slice_sizes", ())),
        reducer,
    )


def _arrays(tree: ArrayTree) -> tuple[ArraySpec, ...]:
    if isinstance(tree, ArraySpec):
        return (tree,)
    return tuple(array for part in tree for array in _arrays(part))


def _mode(instruction: HloInstruction) -> GroupMode:
    has_channel = instruction.channel_id is not None
    is_global = instruction.use_global_device_ids
    if is_global and not has_channel:
        raise ParseError("use_global_device_ids needs a channel_id", instruction.where)
    if not has_channel:
        return "kCrossReplica"
    if instruction.opcode not in TAKES_GLOBAL_IDS:
        return "kCrossPartition"
    return "kFlattenedID" if is_global else "kCrossReplicaAndPartition"


def _groups(instruction: HloInstruction) -> tuple[tuple[int, ...], ...]:
    if instruction.opcode in PERMUTE:
        return tuple(tuple(pair) for pair in instruction.source_target_pairs)
    value = instruction.attrs.get("replica_groups")
    groups = value.groups() if isinstance(value, ReplicaGroups) else value or ()
    return tuple(tuple(group) for group in groups if group)


def _reduction(instruction: HloInstruction) -> tuple[str, str]:
    """Return the opcode of the reducer, or "" and a module that applies it to arrays if it is more than one instruction.

    Raises Unsupported for a reducer of several arrays at once.
    """
    reducer = instruction.to_apply
    root = reducer.root
    is_plain = len(root.operands) == 2 and set(root.operands) == set(reducer.parameters)
    if root.opcode in ASSOCIATIVE and len(reducer.parameters) == 2 and is_plain:
        return root.opcode, ""
    if len(reducer.parameters) != 2 or not root.shape.is_array or not _is_uniform(instruction):
        raise Unsupported(
            f"'{instruction.opcode.removesuffix('-start')}' with the reduction %{reducer.name}: %{instruction.name}",
            instruction.where,
            hint="reduce with a computation of two scalars of the operands' type",
        )
    return "", _applied(reducer)


def _is_uniform(instruction: HloInstruction) -> bool:
    reducer = instruction.to_apply
    shapes = [reducer.root.shape, *(value.shape for value in (*reducer.parameters, *instruction.operands))]
    return len({shape.element_type for shape in shapes}) == 1


def _applied(reducer: HloComputation) -> str:
    """Return the text of a module that applies a reducer to the elements of two arrays of `REDUCED_ELEMENTS` elements."""
    order = post_order(reducer, lambda c: [inner for i in c.instructions for inner in i.called_computations])
    computations = "\n".join(computation_to_string(computation, FULL) for computation in order)
    array = f"{reducer.root.shape.element_type}[{REDUCED_ELEMENTS}]"
    return (
        f"HloModule reducer\n{computations}\nENTRY reduce_elements {{\n  a = {array} parameter(0)\n  b = {array} parameter(1)\n"
        f"  ROOT r = {array} map(a, b), dimensions={{0}}, to_apply=%{reducer.name}\n}}\n"
    )


OPCODES: dict[str, EmitThunk] = dict.fromkeys(_KINDS, _collective)
