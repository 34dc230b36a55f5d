"""Tells which instructions take and give bf16, and which lose nothing by bf16 operands. XLA's `FloatSupport`."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set

# They only hand values on.
_CARRY = opcode_set("call conditional custom-call get-tuple-element tuple while opt-barrier")
_IN_BITS = opcode_set("count-leading-zeros shift-right-logical shift-right-arithmetic")
# The result is one of the operands' values.
_CHOOSE = opcode_set("""abs all-gather all-to-all broadcast clamp collective-broadcast collective-permute concatenate convert
    copy domain get-tuple-element maximum minimum pad ragged-all-to-all reshape reverse slice sort transpose tuple opt-barrier""")
_CHOSEN_OPERANDS = {"dynamic-slice": (0,), "dynamic-update-slice": (0, 1), "gather": (0,), "select": (1, 2)}


class FloatSupport(Struct, frozen=True):
    """With `mixes_all`, all instructions take any mix of f32 and bf16, and dots round their operands to bf16.

    Otherwise only instructions that hand values on do, and associative scans.
    """

    mixes_all: bool

    def gives_bf16(self, value: HloInstruction) -> bool:
        """True if the result may be bf16."""
        if self.mixes_all or value.opcode in _CARRY or value.opcode in _IN_BITS or value.opcode == "domain":
            return True
        return (value.opcode == "convert" and value.shape.element_type == "bf16") or is_associative_scan(value)

    def mixes(self, value: HloInstruction) -> bool:
        """True if operands and results may have different types."""
        return self.mixes_all or value.opcode in _CARRY or value.opcode == "convert" or is_associative_scan(value)

    def rounds(self, value: HloInstruction) -> bool:
        """True if the instruction rounds its operands to bf16."""
        return self.mixes_all and value.opcode == "dot"


def is_associative_scan(value: HloInstruction) -> bool:
    """True for a scan whose steps may be grouped in any way."""
    return value.opcode == "scan" and value.is_associative


def hands_on(value: HloInstruction, operand: int) -> bool:
    """True if a bf16 result needs no more than bf16 of an operand."""
    if value.opcode in _CHOOSE:
        return True
    if value.opcode == "bitcast":
        return value.shape.element_type == value.operands[0].shape.element_type
    if value.opcode in ("reduce", "reduce-window"):
        inner = [one for one in value.to_apply.instructions if one.opcode != "parameter"]
        return all(hands_on(one, number) for one in inner for number in range(len(one.operands)))
    return operand in _CHOSEN_OPERANDS.get(value.opcode, ())
