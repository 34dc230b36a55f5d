"""Split the index vector of dynamic-slice and dynamic-update-slice into one scalar operand per dimension.

    dynamic-slice(p, ii)   =>   dynamic-slice(p, reshape(slice(ii), [0:1]), reshape(slice(ii), [1:2]))

XLA's `DynamicIndexSplitter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import PassContext

# The number of the first index operand.
_FIRST_INDEX: dict[Opcode, int] = {"dynamic-slice": 1, "dynamic-update-slice": 2}


class DynamicIndexSplitter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic-index-splitter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced: list[HloInstruction] = []
        for instruction in module.instructions_of(*_FIRST_INDEX):
            first = _FIRST_INDEX[instruction.opcode]
            if len(instruction.operands) <= first or instruction.operands[first].shape.rank == 0:
                continue
            indices = instruction.operands[first]
            count = indices.shape.dims[0]
            if count == 0:
                module.replace(instruction, instruction.operands[first - 1])
                replaced.append(instruction)
                continue
            editor = Editor(instruction)
            scalars = [editor.reshape(editor.slice(indices, [d], [d + 1]), ()) for d in range(count)]
            instruction.operands = (*instruction.operands[:first], *scalars)
        remove_unused(replaced)
