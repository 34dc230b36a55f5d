"""Move conversions so that data movement works on the narrower type.

    t = transpose(convert f32 (bf16 p))   =>   convert f32 (transpose(p))
    c = convert bf16 (slice(f32 p))       =>   slice(convert bf16 (p))

Widening conversions move behind data movement (concatenate, pad, reshape, slice, transpose), narrowing ones before it; the
first of the two must have no other users. A narrowing goes as far as it can. XLA's `ConvertMover`.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.pass_support.hlo_pass import PassContext

# The opcodes that XLA's convert-mover moves a conversion across.
_MOVING: frozenset[Opcode] = frozenset(("concatenate", "pad", "reshape", "slice", "transpose"))


class ConvertMover(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "convert-mover"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place, by one walk over each."""
        del ctx
        computations = dict.fromkeys(i.parent for i in module.instructions_of("convert"))
        for computation in computations:
            assert computation is not None, "the instruction is in a computation"
            unused = Leftovers()
            order = computation.post_order()
            for instruction in order:
                new = _converted_later(instruction) if instruction.opcode in _MOVING else None
                if new is not None:
                    module.replace(instruction, new)
                    unused.add(instruction)
            unused.remove()
            left = deque(i for i in reversed(order) if i.parent is computation)
            while left:
                convert = left.popleft()
                if convert.opcode == "convert" and (new := _converted_earlier(convert)) is not None:
                    module.replace(convert, new)
                    remove_unused([convert])
                    left.extendleft(new.operands)


def _width(value: HloInstruction) -> int:
    """Return the bits that a value's elements need; 1 for pred, which takes a byte."""
    return 1 if value.shape.element_type == "pred" else value.shape.dtype.bits


def _is_packed(value: HloInstruction) -> bool:
    return value.shape.element_type != "pred" and value.shape.dtype.bits < 8


def _converted_later(i: HloInstruction) -> HloInstruction | None:
    """Return the widening of narrow moved elements, which replaces a move of widened elements; None if it does not apply."""
    converts = [o for o in i.operands if o.opcode == "convert" and len(o.users) == 1 and not o.is_root]
    if i.control_predecessors or not converts or any(o not in converts and o.opcode != "constant" for o in i.operands):
        return None
    source = converts[0].operands[0]
    narrow = source.shape
    if any(o.operands[0].shape.element_type != narrow.element_type for o in converts) or _width(source) >= _width(i):
        return None
    if _is_packed(source) or any(o.shape.dynamic_dims for o in (*i.operands, i)):
        return None
    if not all(o in converts or _fits(o, narrow.dtype) for o in i.operands):
        return None
    plain = Editor(i, derives=False)
    sources = [o.operands[0] if o in converts else _narrowed(plain, o, narrow.element_type) for o in i.operands]
    moved = plain.computation.add(copy_instruction(i, sources, i.shape.with_element_type(narrow.element_type)))
    return plain.convert(moved, i.shape.element_type)


def _fits(constant: HloInstruction, narrow: DType) -> bool:
    """Return True if a constant does not change when it is narrowed and widened again."""
    literal = constant.constant_array
    with np.errstate(all="ignore"):
        return _real_for(literal, narrow).astype(narrow.numpy).astype(literal.dtype).tobytes() == literal.tobytes()


def _real_for(literal: Array, narrow: DType) -> Array:
    """Return the real parts of complex numbers if the narrow type is real, since numpy warns when it drops imaginary parts."""
    return literal if narrow.is_complex else np.real(literal)


def _narrowed(editor: Editor, constant: HloInstruction, element_type: str) -> HloInstruction:
    if not constant.shape.dtype.is_complex:
        return editor.convert(constant, element_type)  # `constant_folding` computes it, as in XLA
    return editor.constant(_real_for(constant.constant_array, DTYPES[element_type]), element_type)


def _converted_earlier(convert: HloInstruction) -> HloInstruction | None:
    """Return the move of narrowed elements, which replaces a narrowing of moved elements; None if it does not apply."""
    moving = convert.operands[0]
    if moving.opcode not in _MOVING or len(moving.users) > 1 or moving.control_predecessors or convert.control_predecessors:
        return None
    if _width(convert) >= _width(moving) or _is_packed(convert) or moving.shape.dynamic_dims:
        return None
    plain, narrow = Editor(convert, derives=False), convert.shape.element_type
    operands = [plain.convert(operand, narrow) for operand in moving.operands]
    return plain.computation.add(copy_instruction(moving, operands, convert.shape))
