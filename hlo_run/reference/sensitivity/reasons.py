"""Tells why a changed result of a kernel does not show, from the fate of the change."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.reference.numerics import dynamic
from hlo_run.reference.sensitivity.recorded_run import RecordedRun, Trace
from hlo_run.reference.values import Array, Value, quiet

UNUSED = "no result needs it"
NOT_RUN = "it does not run"
BELOW = "below the bounds"
# Why something was not measured.
LEFT_OUT = "left out to save time"
ENDLESS = "its change keeps a loop running"
UNSUPPORTED = "its change leads to what is not supported"


def reason(run: RecordedRun, kernel: HloInstruction, trace: Trace) -> str:
    """Return why `trace`, of this kernel alone, does not show."""
    if trace.exits:
        return BELOW
    for number in reversed(trace.unchanged):
        step = run.steps[number]
        own = step.instruction is kernel
        hidden = _hidden(run.base(number))
        if hidden:
            return f"its result is {hidden}" if own else f"hidden by {hidden} in %{step.instruction.name}"
    if trace.unchanged:
        return f"it does not change %{run.steps[trace.unchanged[-1]].instruction.name}"
    return UNUSED


def _hidden(value: Value) -> str:
    """Return what hides the operands of a value: NaN, infinity, zeros, or ""."""
    arrays = _floats(value)
    if not arrays:
        return ""
    with quiet():
        if any(np.isnan(array).any() for array in arrays):
            return "NaN"
        if any(np.isinf(array).any() for array in arrays):
            return "infinite values"
        return "zeros" if not any(array.any() for array in arrays) else ""


def _floats(value: Value) -> list[Array]:
    """Return the arrays of a value, floats and complex numbers in a type that numpy knows."""
    if isinstance(value, tuple):
        return [array for part in value for array in _floats(part)]
    array = dynamic.leave(value)
    return [array if array.dtype.kind in "biufc" else array.astype(np.float32)] if array.size else []
