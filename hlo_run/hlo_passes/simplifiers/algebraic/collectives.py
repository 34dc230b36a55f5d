"""Algebraic rules of collectives whose operand is a broadcast constant: every device has the same value."""

from __future__ import annotations

import numpy as np

from hlo_run.analysis.simple_reducer import simple_reducer
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules
from hlo_run.ops.groups import group_size


def _scalar(i: HloInstruction) -> HloInstruction | None:
    """Return the constant of which all operands' elements are copies."""
    value = i.operands[0]
    if len(i.operands) != 1 or not i.shape.is_array or value.opcode != "broadcast" or value.operands[0].shape.dims:
        return None
    return value.operands[0] if value.operands[0].opcode == "constant" else None


def collect_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """all-gather(broadcast(constant)) => broadcast(constant); also for all-to-all."""
    scalar = _scalar(i)
    return None if scalar is None else rw.spread(scalar, i.shape)


def reduce_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """all-reduce(broadcast(constant)) => broadcast(constant * devices) for sums, broadcast(constant) for extrema."""
    scalar, opcode = _scalar(i), simple_reducer(i.to_apply)
    if scalar is None or opcode not in ("add", "maximum", "minimum") or scalar.shape.element_type == "pred":
        return None
    if opcode != "add":
        return rw.spread(scalar, i.shape)
    if not i.replica_groups.groups() or scalar.shape.dtype.is_complex:
        return None
    number = scalar.constant_array
    with np.errstate(over="ignore"):
        total = number * np.asarray(group_size(i)).astype(number.dtype)
    return rw.spread(rw.constant(total, scalar.shape.element_type), i.shape)


RULES: Rules = {
    "all-gather": (collect_one_value,),
    "all-reduce": (reduce_one_value,),
    "all-to-all": (collect_one_value,),
    "reduce-scatter": (reduce_one_value,),
}
