"""Emits thunks of control flow, host transfers, send and recv, random state, and registered custom calls."""

from __future__ import annotations

import re

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.artifact import (
    ArrayTree,
    ConditionalThunk,
    CopyThunk,
    CustomCallThunk,
    InfeedThunk,
    MemsetThunk,
    OutfeedThunk,
    RecvThunk,
    RngSeedThunk,
    RngStateThunk,
    SendThunk,
    Thunk,
    WhileThunk,
)
from hlo_run.errors import Unsupported
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.runtime.thunk_context import EmitThunk, ThunkContext, backend_config, record

_PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")


def _while(context: ThunkContext, loop: HloInstruction) -> list[Thunk]:
    condition, body = loop.while_condition, loop.while_body
    predicate = context.array(condition.root).slice
    thunk = WhileThunk(loop.name, predicate, context.sequence(condition), context.sequence(body), _trip_count(loop))
    return [thunk]


def _trip_count(loop: HloInstruction) -> int | None:
    """Return the trip count of a loop with `known_trip_count`, as its counter shows it: the annotation may be stale."""
    if not record(backend_config(loop), "known_trip_count"):
        return None
    counter = find_counter(loop)
    return counter.trip_count if counter is not None else None


def _conditional(context: ThunkContext, conditional: HloInstruction) -> list[Thunk]:
    selector = context.array(conditional.operands[0])
    called = conditional.called
    branches = called.get("branch_computations") or (*called["true_computation"], *called["false_computation"])
    sequences = tuple(context.sequence(branch) for branch in branches)
    return [ConditionalThunk(conditional.name, selector.slice, selector.dtype == "pred", sequences)]


def _call(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Run the thunks of the called computation in place of the call, as XLA does."""
    return list(context.sequence(call.called_computations[0]))


def _custom_call(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Call the function registered for the target. If none is registered, the run fails when it reaches the call."""
    target = call.custom_call_target
    config = call.backend_config
    operands = tuple(context.tree(operand) for operand in call.operands)
    return [CustomCallThunk(call.name, target, operands, context.tree(call), config)]


def _copies(source: ArrayTree, result: ArrayTree, name: str) -> list[Thunk]:
    """Copy the arrays whose source and result have different slices."""
    if isinstance(source, tuple):
        assert isinstance(result, tuple), "both have one shape"
        return [thunk for pair in zip(source, result, strict=True) for thunk in _copies(*pair, name)]
    assert not isinstance(result, tuple), "both have one shape"
    return [] if source.slice == result.slice else [CopyThunk(name, source.slice, result.slice)]


def _identity(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Emit an annotation, which does not change the value. Raises Unsupported if it changes the shape."""
    if len(call.operands) != 1 or not call.shape.compatible(call.operands[0].shape):
        raise Unsupported(f"a call of '{call.custom_call_target}' has one operand, of the call's shape", call.where)
    return _copies(context.tree(call.operands[0]), context.tree(call), call.name)


def _nothing(_emission: ThunkContext, _call: HloInstruction) -> list[Thunk]:
    return []


def _infeed(context: ThunkContext, infeed: HloInstruction) -> list[Thunk]:
    return [InfeedThunk(infeed.name, context.tree(infeed, (0,)), infeed.fed)]


def _outfeed(context: ThunkContext, outfeed: HloInstruction) -> list[Thunk]:
    return [OutfeedThunk(outfeed.name, context.tree(outfeed.operands[0]))]


def _channel(instruction: HloInstruction) -> int:
    return instruction.channel_id or 0


def _pairs(instruction: HloInstruction) -> tuple[tuple[int, int], ...]:
    """Return the (source, target) pairs of a transfer between devices, from its frontend attribute."""
    text = frontend_attribute(instruction, "_xla_send_recv_source_target_pairs")
    return tuple((int(source), int(target)) for source, target in _PAIR.findall(text or ""))


def _send(context: ThunkContext, send: HloInstruction) -> list[Thunk]:
    to_host = send.is_host_transfer
    source = context.tree(send.operands[0])
    copies = _copies(source, context.tree(send, (0,)), send.name)
    kind = "kHostSend" if to_host else "kSend"
    return [*copies, SendThunk(send.name, _channel(send), to_host, source, _pairs(send), kind)]


def _recv_done(context: ThunkContext, done: HloInstruction) -> list[Thunk]:
    """Receive the message. It happens at recv-done, so that messages sent after the recv count."""
    recv = _started(done)
    if recv.is_host_transfer:
        raise Unsupported(f"'recv' from the host (%{recv.name})", recv.where)
    return [RecvThunk(done.name, _channel(recv), context.tree(done, (0,)), _pairs(recv))]


def _started(done: HloInstruction) -> HloInstruction:
    """Return the recv of a recv-done: its operand, or a recv on the same channel if a tuple is between them.

    Raises Unsupported unless the recvs on that channel have the same pairs.
    """
    operand, module = done.operands[0], done.parent.module if done.parent else None
    if operand.opcode == "recv" or module is None:
        return operand
    found = [recv for recv in module.instructions_of("recv") if recv.channel_id == done.channel_id]
    if len({_pairs(recv) for recv in found}) != 1:
        raise Unsupported(f"%{done.name} has several possible recvs with different source-target pairs", done.where)
    return found[0]


def _rng_state(context: ThunkContext, state: HloInstruction) -> list[Thunk]:
    return [RngStateThunk(state.name, context.array(state).slice, state.rng_delta)]


def _rng_seed(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    return [RngSeedThunk(call.name, context.array(call))]


def _replica_id(context: ThunkContext, instruction: HloInstruction) -> list[Thunk]:
    return [MemsetThunk(instruction.name, context.array(instruction).slice, 0, "kReplicaId")]


def _partition_id(context: ThunkContext, instruction: HloInstruction) -> list[Thunk]:
    return [MemsetThunk(instruction.name, context.array(instruction).slice, 0, "kPartitionId")]


OPCODES: dict[Opcode, EmitThunk] = {
    "while": _while,
    "conditional": _conditional,
    "call": _call,
    "infeed": _infeed,
    "outfeed": _outfeed,
    "send": _send,
    "send-done": _nothing,
    "recv": _nothing,
    "recv-done": _recv_done,
    "rng-get-and-update-state": _rng_state,
    "replica-id": _replica_id,
    "partition-id": _partition_id,
}
_IDENTITIES = """Sharding MoveToHost MoveToDevice annotate_device_placement Pin Unpin LayoutConstraint InspectSharding
    SPMDFullToShardShape SPMDShardToFullShape""".split()
CUSTOM_CALLS: dict[str, EmitThunk] = {
    **dict.fromkeys(_IDENTITIES, _identity),
    **dict.fromkeys("AllocateBuffer CreateBuffer NopReturnToken __nop".split(), _nothing),
    "GetRngSeed": _rng_seed,
}


def custom_call(context: ThunkContext, call: HloInstruction) -> list[Thunk]:
    """Emit a custom call whose target is not in `CUSTOM_CALLS`."""
    return _custom_call(context, call)
