"""Turn operands of s32 convolutions into conversions of s8 values, which cuDNN reads.

    w = s32[3,3] constant(..)                              =>   w = s32[3,3] convert(s8[3,3] constant(..))
    x = s32[4,4] convert(s16[4,4] convert(s8[4,4] p))      =>   x = s32[4,4] convert(p)
    x = s32[16] reshape(s32[4,4] convert(s8[4,4] p))       =>   x = s32[16] convert(s8[16] reshape(p))

XLA's `ConvOperandCanonicalizer`, which is newer than released XLA. It runs with `--xla_gpu_experimental_enable_conv_fusion`
there. XLA moves conversions past any instruction, here past those that move elements: others would compute in s8.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.pass_support.hlo_pass import PassContext

_MOVES = MOVES_ELEMENTS | opcode_set("pad")
# Types between s8 and s32 that hold every s8.
_WIDER = frozenset("bf16 f16 f32 f64 s8 s16 s32 s64".split())


class ConvOperandCanonicalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conv-operand-canonicalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for convolution in module.instructions_of("convolution"):
            old = list(convolution.operands)
            new = [_canonical(operand) or operand for operand in old]
            if new != old:
                convolution.operands = tuple(new)
                remove_unused(dict.fromkeys(operand for operand in old if not operand.users))


def _canonical(operand: HloInstruction) -> HloInstruction | None:
    """Return the operand as a conversion of an s8 value; None if it is one, or cannot be one."""
    if operand.shape.element_type != "s32":
        return None
    editor = Editor(operand)
    if operand.opcode == "constant":
        narrow = _narrow(operand)
        return None if narrow is None else editor.convert(narrow, "s32")
    source = operand.operands[0] if operand.operands else None
    origin = None if source is None else _origin(source)
    if source is None or origin is None:
        return None
    if operand.opcode == "convert":
        return editor.convert(origin, "s32") if source.shape.element_type in _WIDER else None
    if operand.opcode not in _MOVES or source.shape.element_type != "s32":
        return None
    rest = [_narrow(value) or _origin(value) for value in operand.operands[1:]]
    if any(value is None for value in rest):
        return None
    operands = [origin, *(value for value in rest if value is not None)]
    moved = copy_instruction(operand, operands, operand.shape.with_element_type("s8"))
    return editor.convert(editor.computation.add(moved), "s32")


def _origin(value: HloInstruction) -> HloInstruction | None:
    """Return the s8 value that a conversion takes."""
    is_conversion = value.opcode == "convert" and value.operands[0].shape.element_type == "s8"
    return value.operands[0] if is_conversion else None


def _narrow(value: HloInstruction) -> HloInstruction | None:
    """Add a constant as s8, if it fits."""
    if value.opcode != "constant" or value.shape.element_type != "s32":
        return None
    array = value.constant_array
    if array.size and (int(np.min(array)) < -128 or int(np.max(array)) > 127):
        return None
    return Editor(value).constant(array.astype(np.int8), "s8")
