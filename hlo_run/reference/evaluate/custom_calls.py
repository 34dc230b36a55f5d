"""Evaluate custom calls: annotations, hints, sharding boundaries, library calls, and registered functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from hlo_run import custom_calls
from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.buffer_calls import array_of
from hlo_run.reference.evaluate import block_scaling, library_calls
from hlo_run.reference.evaluate.async_ops import zeros
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.evaluate.shards import to_global, to_local, to_shard, to_whole
from hlo_run.reference.numerics import dynamic, factorizations, matrix_calls, sort
from hlo_run.reference.values import TOKEN, Array, Calls, Evaluator, Value, as_array, out_of_memory, unsupported


def target_of(instruction: HloInstruction) -> str:
    """Return the `custom_call_target` of a custom call, without quotes."""
    return instruction.custom_call_target.strip('"')


def _identity(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    if len(operands) != 1 or not array_of(instruction.shape).compatible(array_of(instruction.operands[0].shape)):
        raise _unknown(instruction)
    return operands[0]


def _first(_instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the first operand: the indices of a gather or scatter that the hint is about."""
    return operands[0]


def _buffer(instruction: HloInstruction, _operands: Sequence[Value], _calls: Calls) -> Value:
    """Return zeros for memory, a token or a workspace: programs write it before they read it."""
    return zeros(array_of(instruction.shape))


_IDENTITIES = """Sharding MoveToHost MoveToDevice annotate_device_placement Pin Unpin xla.sdy.FuncResultSharding
    xla.sdy.PropagationBarrier LayoutConstraint InspectSharding""".split()
_HINTS = "AssumeGatherIndicesInBound GatherScatterIndicesBitpacked".split()
_BUFFERS = "AllocateBuffer CreateBuffer NopReturnToken __nop".split()

EVALUATE: dict[str, Evaluator] = {
    **factorizations.CUSTOM_CALLS,
    **sort.CUSTOM_CALLS,
    **library_calls.CUSTOM_CALLS,
    **block_scaling.CUSTOM_CALLS,
    **dict.fromkeys(_IDENTITIES, _identity),
    **dict.fromkeys(_HINTS, _first),
    **dict.fromkeys(_BUFFERS, _buffer),
    "PadToStatic": dynamic.pad_to_static,
    "SliceToDynamic": dynamic.slice_to_dynamic,
}
_SHARDS: Mapping[str, ProgramEvaluator] = {
    "SPMDFullToShardShape": to_shard,
    "SPMDShardToFullShape": to_whole,
    "xla.sdy.GlobalToLocalShape": to_local,
    "xla.sdy.LocalToGlobalShape": to_global,
}


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
    if evaluate is None and custom_calls.is_registered(target, "Interpreter"):
        return _registered(instruction, target, operands)
    if evaluate is None:
        evaluate = matrix_calls.evaluator_of(target, instruction.backend_config)
    if evaluate is None:
        raise _unknown(instruction)
    try:
        return evaluate(instruction, operands, device)
    except MemoryError:
        raise out_of_memory(instruction) from None
    except (ValueError, IndexError) as error:
        # The verifier checks HLO ops, but not the operands of custom calls.
        what = f"the operands of the custom call '{target}' do not fit together"
        raise Unsupported(what, instruction.where, notes=(f"instruction %{instruction.name}", str(error))) from error


def _registered(instruction: HloInstruction, target: str, operands: list[Value]) -> Value:
    """Call the function registered for the target, with copies of the operands that it may keep."""
    config = instruction.backend_config
    copies = [_copied(operand) for operand in operands]
    return _as_value(instruction, instruction.shape, custom_calls.call(target, "Interpreter", copies, config, instruction.name))


def _copied(value: Value) -> Value:
    return tuple(_copied(part) for part in value) if isinstance(value, tuple) else as_array(value).copy()


def _as_value(instruction: HloInstruction, shape: Shape, result: Any) -> Value:
    """Return the result of a registered function as a value of `shape`; raises DeviceError if it does not fit."""
    shape = array_of(shape)
    if shape.is_tuple:
        parts = list(cast("Sequence[object]", result)) if isinstance(result, tuple | list) else [result]
        if len(parts) == len(shape.tuple_shapes):
            return tuple(_as_value(instruction, s, part) for s, part in zip(shape.tuple_shapes, parts, strict=True))
        raise DeviceError(f"custom call {target_of(instruction)} returned {len(parts)} parts (%{instruction.name})")
    if not shape.is_array:
        return TOKEN
    array: Array = np.asarray(result)
    if array.shape != shape.dims or array.dtype != shape.dtype.numpy:
        found = f"{array.dtype}{list(array.shape)}"
        raise DeviceError(f"custom call {target_of(instruction)} returned {found}, not {shape} (%{instruction.name})")
    return array


def _unknown(instruction: HloInstruction) -> Unsupported:
    target = target_of(instruction)
    return unsupported(instruction, f"the custom call '{target}'", custom_calls.how_to_register(target))


PROGRAM: dict[Opcode, ProgramEvaluator] = {"custom-call": _custom_call}
