"""Compute chosen instructions in another element type.

    f16[4] add(x, y)   =>   f16[4] convert(f32[4] add(convert(x), convert(y)))      (f16:f32)

XLA's `ChangeOpDataType`: all operands must have one of the types, and the result must be an array of numbers.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import UsageError
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcodes_in
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.pass_support.hlo_pass import PassContext


class ChangeOpDataType(Struct, frozen=True):
    """The pass; see the module's docstring.

    `types` has the changes, such as `f16:f32+u16:u32`; without them nothing changes. `opcodes` names the instructions, separated
    by `+`, by default all.
    """

    name: ClassVar[str] = "change-op-data-type"

    types: str = ""
    opcodes: str = ""

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Raises UsageError for an unknown type."""
        del ctx
        changes: dict[str, str] = {}
        for pair in filter(None, self.types.split("+")):
            old, _, new = pair.partition(":")
            changes[old] = new
        for name in (*changes, *changes.values()):
            if name not in DTYPES:
                raise UsageError(f"'{name}' is no element type", hint="write types=FROM:TO+FROM:TO")
        opcodes = frozenset(opcodes_in(self.opcodes)) if self.opcodes else None
        for computation in module.computations if changes else ():
            for value in computation.post_order() if not computation.is_fusion else ():
                types = {operand.shape.element_type for operand in value.operands}
                is_number = value.shape.is_array and value.shape.element_type != "pred"
                if len(types) != 1 or not is_number or (opcodes is not None and value.opcode not in opcodes):
                    continue
                wanted = changes.get(types.pop())
                if wanted is not None:
                    _change(module, value, wanted)


def _change(module: HloModule, old: HloInstruction, new: str) -> None:
    editor = Editor(old)
    operands = [editor.convert(operand, new) for operand in old.operands]
    made = editor.computation.add(copy_instruction(old, operands, old.shape.with_element_type(new)))
    module.replace(old, editor.convert(made, old.shape.element_type))
    remove_unused([old])
