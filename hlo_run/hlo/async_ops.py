"""Queries on async chains: an async-start, any number of async-updates and an async-done around one computation."""

from __future__ import annotations

from hlo_run.hlo.graph import HloComputation, HloInstruction

MAIN_THREAD = "main"


def async_start(instruction: HloInstruction) -> HloInstruction | None:
    """Return the start of the chain that an async op belongs to; None if the chain is broken."""
    while instruction.opcode in ("async-update", "async-done") and len(instruction.operands) == 1:
        instruction = instruction.operands[0]
    return instruction if instruction.opcode == "async-start" else None


def execution_thread(start: HloInstruction) -> str:
    """Return the execution thread of an async-start; the default is `main`."""
    return start.async_execution_thread or MAIN_THREAD


def is_one_instruction(computation: HloComputation) -> bool:
    """True if all instructions but the root are parameters, so that the short form `add-start` is complete (XLA's rule)."""
    root = computation.root
    return all(i is root or i.opcode == "parameter" for i in computation.instructions)


def is_async_wrapper(computation: HloComputation) -> bool:
    """True if an async-start calls the computation."""
    return any(caller.opcode == "async-start" for caller in computation.callers)
