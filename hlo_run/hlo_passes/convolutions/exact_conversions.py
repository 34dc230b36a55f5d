"""Tells whether a value can be computed in a narrower type without a change."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.dtype import DTYPES


def keeps_value(value: HloInstruction, element_type: str) -> bool:
    """Return True if converting `value` to that narrower type and back does not change it.

    That is so for a conversion from the type, a constant that fits it, and their broadcasts, reshapes and transposes.
    """
    if value.shape.element_type == element_type:
        return True
    while value.opcode in ("broadcast", "reshape", "transpose"):
        value = value.operands[0]
    narrow, wide = DTYPES[element_type], value.shape.dtype
    match value.opcode:
        case "convert":
            is_wider = wide.is_float or (wide.is_signed and narrow.is_signed and wide.bits >= narrow.bits)
            return value.operands[0].shape.element_type == element_type and is_wider
        case "constant":
            literal = value.constant_array
            with np.errstate(over="ignore", invalid="ignore"):
                return bool((literal.astype(narrow.numpy).astype(literal.dtype) == literal).all())
        case _:
            return False
