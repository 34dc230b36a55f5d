"""Let dots and convolutions read narrower operands, without a convert to a wider type that keeps all values.

    dot(convert s16[2,3] (s8[2,3] x), y)   =>   dot(x, y)

Slices, reshapes, transposes, gathers and reductions of dimensions of size 1 between the convert and the product are computed in
the narrow type. XLA's `ConvertOperandFolding`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.simple_reducer import is_identity, simple_reducer
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DType
from hlo_run.hlo.values.literal import float_info
from hlo_run.pass_support.hlo_pass import PassContext

_MOVES: tuple[Opcode, ...] = ("dynamic-slice", "gather", "reshape", "slice", "transpose")


class ConvertOperandFolding(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "convert_operand_folding"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for product in module.in_post_order("dot", "convolution"):
            for old in dict.fromkeys(product.operands):
                chain = _chain(old)
                if chain:
                    product.replace_operand(old, _narrow(chain))
                    remove_unused([old])


def _chain(value: HloInstruction) -> list[HloInstruction]:
    """Return the instructions from a convert that keeps all values to a value of it; none if there is no such convert."""
    found = [value]
    while found[-1].opcode != "convert":
        last = found[-1]
        if last.opcode not in _MOVES and not _is_reshape(last):
            return []
        found.append(last.operands[0])
    convert = found[-1]
    if not convert.shape.is_array or not keeps_values(convert.operands[0].shape.dtype, convert.shape.dtype):
        return []
    return found[::-1]


def _is_reshape(value: HloInstruction) -> bool:
    """True for a reduction of dimensions of size 1."""
    if value.opcode != "reduce" or not value.shape.is_array or value.shape.element_count != value.operands[0].shape.element_count:
        return False
    opcode = simple_reducer(value.to_apply)
    return opcode is not None and is_identity(value.operands[1], opcode)


def _narrow(chain: list[HloInstruction]) -> HloInstruction:
    convert, *moves = chain
    (result,) = convert.operands
    for move in moves:
        shape = move.shape.with_element_type(result.shape.element_type)
        editor = Editor(move)
        if move.opcode == "reduce":
            result = editor.add("reshape", shape, [result])
        else:
            result = editor.computation.add(copy_instruction(move, [result, *move.operands[1:]], shape))
    return result


def keeps_values(narrow: DType, wide: DType) -> bool:
    """True if each value of a type is a value of the other."""
    if narrow.is_complex or wide.is_complex or wide.kind == "pred":
        return False
    if narrow.kind == "pred":
        return True
    if not narrow.is_float and not wide.is_float:
        if narrow.is_signed == wide.is_signed:
            return narrow.bits <= wide.bits
        return wide.is_signed and narrow.bits < wide.bits
    if not narrow.is_float:
        digits = narrow.bits - narrow.is_signed
        return digits <= float_info(wide).nmant + 1 and (1 << digits) <= int(min(float(float_info(wide).max), 2.0**1000))
    if not wide.is_float:
        return False
    one, two = float_info(narrow), float_info(wide)
    least = float(one.smallest_subnormal) >= float(two.smallest_subnormal)
    return one.nmant <= two.nmant and bool(np.float64(one.max) <= np.float64(two.max)) and least
