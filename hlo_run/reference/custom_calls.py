"""Custom calls whose meaning is known: annotations, hints, crossings between whole arrays and shards, the old top-k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference import dynamic, factorizations, sort
from hlo_run.reference.async_ops import zeros
from hlo_run.reference.device import Device
from hlo_run.reference.plan import Frame, ProgramEvaluator
from hlo_run.reference.shards import to_shard, to_whole
from hlo_run.reference.values import Calls, Evaluator, Value, out_of_memory, unsupported


def target_of(instruction: HloInstruction) -> str:
    """Return the name of what a custom call calls."""
    return str(instruction.attrs.get("custom_call_target", "")).strip('"')


def _identity(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    if len(operands) != 1 or not instruction.shape.compatible(instruction.operands[0].shape):
        raise _unknown(instruction)
    return operands[0]


def _first(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """A hint about gather or scatter indices: the indices."""
    return operands[0]


def _buffer(instruction: HloInstruction, _operands: Sequence[Value], _calls: Calls) -> Value:
    """Memory, a token or a workspace; nobody may read what is in it before writing."""
    return zeros(instruction.shape)


_IDENTITIES = """Sharding MoveToHost MoveToDevice annotate_device_placement Pin Unpin xla.sdy.FuncResultSharding
    xla.sdy.PropagationBarrier xla.sdy.GlobalToLocalShape xla.sdy.LocalToGlobalShape LayoutConstraint InspectSharding""".split()
_HINTS = "AssumeGatherIndicesInBound GatherScatterIndicesBitpacked".split()
_BUFFERS = "AllocateBuffer CreateBuffer NopReturnToken __nop".split()

EVALUATE: dict[str, Evaluator] = {
    **factorizations.CUSTOM_CALLS,
    **sort.CUSTOM_CALLS,
    **dict.fromkeys(_IDENTITIES, _identity),
    **dict.fromkeys(_HINTS, _first),
    **dict.fromkeys(_BUFFERS, _buffer),
    "PadToStatic": dynamic.pad_to_static,
    "SliceToDynamic": dynamic.slice_to_dynamic,
}
_SHARDS: Mapping[str, ProgramEvaluator] = {"SPMDFullToShardShape": to_shard, "SPMDShardToFullShape": to_whole}


def _get_rng_seed(instruction: HloInstruction, device: Device) -> Value:
    return np.full(instruction.shape.dims, device.world.seed, instruction.shape.dtype.numpy)


def _custom_call(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    target = target_of(instruction)
    shard = _SHARDS.get(target)
    if shard is not None:
        return (yield shard(instruction, operands, device))
    if target == "GetRngSeed":
        return _get_rng_seed(instruction, device)
    evaluate = EVALUATE.get(target)
    if evaluate is None:
        raise _unknown(instruction)
    try:
        return evaluate(instruction, operands, device)
    except MemoryError:
        raise out_of_memory(instruction) from None


def _unknown(instruction: HloInstruction) -> Unsupported:
    return unsupported(instruction, f"the custom call '{target_of(instruction)}'")


PROGRAM: dict[str, ProgramEvaluator] = {"custom-call": _custom_call}
