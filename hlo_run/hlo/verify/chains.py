"""Verify async pairs and chains: the opcodes of start, update and done, their number, and their channels."""

from __future__ import annotations

from hlo_run.hlo.async_ops import is_async_wrapper, is_one_instruction
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import DONE_OF, TRANSFER
from hlo_run.hlo.verify.module import instruction_error

# A tuple, a loop's mostly, may stand between a transfer and its end.
# Which opcodes may use a start, and which the operand of a done may be.
_USERS: dict[Opcode, tuple[str, ...]] = {
    **{start: (done, "tuple") if start in TRANSFER else (done,) for start, done in DONE_OF.items()},
    "async-start": ("async-update", "async-done"),
    "async-update": ("async-update", "async-done"),
}
_STARTS: dict[Opcode, tuple[str, ...]] = {
    **{done: (start, "get-tuple-element") if start in TRANSFER else (start,) for start, done in DONE_OF.items()},
    "async-update": ("async-start", "async-update"),
    "async-done": ("async-start", "async-update"),
}

_GROUP = "_collectives_group"


def verify_chains(module: HloModule) -> None:
    """Raise ParseError for a start without exactly one done, a done of another op, and a transfer with different channels."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in _USERS:
                _verify_user(instruction)
            if instruction.opcode in _STARTS:
                _verify_operand(instruction)
            if instruction.opcode == "async-start":
                _verify_wrapped(instruction)


def _verify_user(start: HloInstruction) -> None:
    if start.opcode in TRANSFER and _is_wrapped_root(start):
        return
    users, allowed = start.users, _USERS[start.opcode]
    if len(users) != 1:
        raise instruction_error(start, f"requires one consumer, found {len(users)}")
    if users[0].opcode not in allowed:
        names = " or ".join(allowed)
        raise instruction_error(start, f"the consumer '{users[0].name}': expected {names}, found {users[0].opcode}")


def _is_wrapped_root(transfer: HloInstruction) -> bool:
    parent = transfer.parent
    return parent is not None and parent.root is transfer and is_async_wrapper(parent)


def _verify_wrapped(start: HloInstruction) -> None:
    if frontend_attribute(start, _GROUP) is not None:
        return  # collectives that run as one operation
    for computation in start.called_computations:
        if not is_one_instruction(computation) and any(i.opcode not in _SEND_RECV for i in computation.instructions):
            raise instruction_error(start, f"'{computation.name}' must hold nothing but parameters and its root")


# An async computation may contain a group of transfers.
_SEND_RECV = opcode_set("send recv send-done recv-done bitcast tuple get-tuple-element parameter")


def _verify_operand(done: HloInstruction) -> None:
    allowed = _STARTS[done.opcode]
    for operand in done.operands:
        if operand.opcode not in allowed:
            names = " or ".join(allowed)
            raise instruction_error(done, f"the operand '{operand.name}': expected {names}, found {operand.opcode}")
        if operand.opcode in TRANSFER:
            _verify_transfer(operand, done)


def _verify_transfer(start: HloInstruction, done: HloInstruction) -> None:
    for name, default in (("channel_id", None), ("is_host_transfer", False)):
        expected, found = start.attrs.get(name, default), done.attrs.get(name, default)
        if expected != found:
            raise instruction_error(done, f"{name}: expected {expected} as '{start.name}' has, found {found}")
