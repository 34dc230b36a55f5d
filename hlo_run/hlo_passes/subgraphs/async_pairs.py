"""Replaces an instruction by a start and a done, which return its value later."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.edit import InstructionMaker, clone_called, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.library_calls import whole_backend_config

# Both instructions of the pair have these of the instruction that they replace.
_SHARED = ("metadata", "backend_config", "frontend_attributes")
_RECORD = "collective_backend_config"
_COLLECTIVE_DEFAULTS: dict[str, object] = {
    "is_sync": False,
    "is_pipelined": False,
    "backend": "DEFAULT",
    "collectives_mode": "COLLECTIVES_MODE_INVALID",
    "kernel_strategy": "KERNEL_STRATEGY_DEFAULT",
    "is_spmd_generated": False,
    "communication_domain": "COLLECTIVE_COMMUNICATION_DOMAIN_UNSPECIFIED",
}


def replace_by_pair(
    module: HloModule, old: HloInstruction, start: HloInstruction, done_opcode: Opcode, keeps_places: bool = True
) -> HloInstruction:
    """Add `start` and a done to the computation of `old`, and let its users use the done, which is returned.

    What ran before `old` runs before the start, what ran after it runs after the done. A schedule has both in its place, and so
    has the list of what something must follow, or unless `keeps_places` the done is at its end.
    """
    computation = old.parent
    assert computation is not None, "the instruction is in a computation"
    order = module.schedule.get(computation) if module.schedule is not None else None
    place = order.index(old) if order is not None else 0
    computation.add(start)
    done = InstructionMaker(computation, old.where).add(done_opcode, old.shape, [start], name=_done_name(start, done_opcode))
    for made in (start, done):
        made.attrs.update({name: old.attrs[name] for name in _SHARED if name in old.attrs})
    if old.sharding is not None:
        done.attrs["sharding"] = old.sharding
    if order is not None:
        order[-2:] = []
        order[place:place] = [start, done]
    start.control_predecessors = list(old.control_predecessors)
    old.control_predecessors = []
    for other in computation.instructions:
        if old in other.control_predecessors:
            before = [done if first is old else first for first in other.control_predecessors]
            other.control_predecessors = before if keeps_places else [*(first for first in before if first is not done), done]
    module.replace(old, done)
    computation.remove(old)
    return done


def _done_name(start: HloInstruction, opcode: Opcode) -> str:
    return opcode if opcode != "async-done" else f"{start.called_computations[0].root.opcode}-done"


def wrapped_start(module: HloModule, old: HloInstruction, thread: str = "main", contexts: Sequence[Shape] = ()) -> HloInstruction:
    """Return an `async-start` of a new computation with a copy of `old` alone, in no computation yet.

    Its shape is (operands, result, *contexts).
    """
    body = HloComputation("async_computation", old.where)
    body.execution_thread = thread
    parameters = [
        InstructionMaker(body).parameter(number, operand.shape, f"param_{number}") for number, operand in enumerate(old.operands)
    ]
    inner = body.add(copy_instruction(old, parameters), is_root=True)
    if old.opcode == "fusion":
        clone_called(module, inner)
    module.add_computation(body)
    if module.schedule is not None:
        module.schedule[body] = list(body.instructions)
    operands = Shape.make_tuple(tuple(operand.shape for operand in old.operands))
    shape = Shape.make_tuple((operands, old.shape, *contexts))
    attributes = {} if thread == "main" else {"async_execution_thread": thread}
    return InstructionMaker(where=old.where).add(
        "async-start", shape, old.operands, {"calls": (body,)}, name=f"{old.opcode}-start", **attributes
    )


def queue_of(instruction: HloInstruction) -> str:
    """Return the number of the stream in an instruction's backend_config; `0` is the default."""
    return str(config_of(instruction.backend_config).get("operation_queue_id", "0"))


def set_queue(instruction: HloInstruction, queue: str) -> None:
    """Write the number of a stream into an instruction's backend_config."""
    instruction.attrs["backend_config"] = whole_backend_config(
        config_of(instruction.backend_config) | {"operation_queue_id": queue}
    )


def set_earliest(instruction: HloInstruction) -> None:
    """Record in an instruction's backend_config that schedulers put it as early as they can."""
    instruction.attrs["backend_config"] = whole_backend_config(
        config_of(instruction.backend_config) | {"force_earliest_schedule": True}
    )


def allow_late(done: HloInstruction) -> None:
    """Record in the backend_config of a done that it need not follow its start at once."""
    done.attrs["backend_config"] = whole_backend_config(config_of(done.backend_config) | {"force_earliest_schedule": False})


def set_sync(start: HloInstruction, is_sync: bool) -> None:
    """Record in the backend_config of a collective's start whether it is synchronous."""
    set_collective_config(start, is_sync=is_sync)


def set_collective_config(collective: HloInstruction, **fields: bool | str) -> None:
    """Set fields of the record about collectives in the backend_config of a collective, or of its start."""
    config = config_of(collective.backend_config)
    record = _COLLECTIVE_DEFAULTS | dict(config.get(_RECORD, {})) | fields
    collective.attrs["backend_config"] = whole_backend_config(config | {_RECORD: record})
