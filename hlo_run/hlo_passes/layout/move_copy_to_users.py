"""Move copies that change a layout behind their users, where they may cancel or move less data.

    t = f32[5,65]{0,1} tanh(f32[5,65]{0,1} copy(f32[5,65]{1,0} x))   =>   f32[5,65]{0,1} copy(f32[5,65]{1,0} tanh(x))

Applies to instructions of one array, and to those of several arrays if all are such copies. A reduce reads the copy's
operand and needs no copy after it. XLA's `MoveCopyToUsers`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.hlo.edit import Editor, Leftovers, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

# The first operand is the array; the others are scalars.
_OF_ONE_ARRAY = opcode_set("dynamic-slice pad reduce-window reverse slice")
# Elementwise, but XLA leaves them where they are.
_KEPT = opcode_set("bitcast-convert copy map reduce-precision")


class MoveCopyToUsers(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "move_copy_to_users"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the executed computations in place; one walk moves a copy behind a whole chain of users."""
        del ctx
        unused = Leftovers()
        for computation in executed_computations(module):
            for instruction in computation.post_order():
                arrays = _copied_arrays(instruction)
                if arrays:
                    module.replace(instruction, _behind_instruction(instruction, arrays))
                    unused.add(instruction)
        unused.remove()


def _copied_arrays(instruction: HloInstruction) -> int:
    """Return the number of leading operands that are copies to move; 0 if no copy can move behind the instruction."""
    operands, opcode = instruction.operands, instruction.opcode
    if not operands or not instruction.shape.is_array or instruction.control_predecessors:
        return 0
    count = 1 if opcode in _OF_ONE_ARRAY or (opcode == "reduce" and len(operands) == 2) else len(operands)
    is_passed = opcode in _OF_ONE_ARRAY or opcode in ("reduce", "concatenate")
    is_passed |= is_elementwise(instruction) and opcode not in _KEPT and count <= 2
    if not is_passed or not all(_changes_layout(operand) for operand in operands[:count]):
        return 0
    orders = {operand.operands[0].shape.minor_to_major for operand in operands[:count]}
    return count if len(orders) == 1 else 0


def _changes_layout(value: HloInstruction) -> bool:
    if value.opcode != "copy" or value.control_predecessors or not value.shape.is_array:
        return False
    return value.shape.minor_to_major != value.operands[0].shape.minor_to_major


def _behind_instruction(instruction: HloInstruction, arrays: int) -> HloInstruction:
    sources = [copy.operands[0] for copy in instruction.operands[:arrays]]
    operands = [*sources, *instruction.operands[arrays:]]
    computation = instruction.parent
    assert computation is not None, "the instruction is in a computation"
    if instruction.opcode == "reduce":
        return computation.add(copy_instruction(instruction, operands))
    shape = _with_order_of(instruction.shape, sources[0].shape)
    new = computation.add(copy_instruction(instruction, operands, shape, instruction.opcode))
    return Editor(instruction).add("copy", instruction.shape, [new])


def _with_order_of(shape: Shape, other: Shape) -> Shape:
    assert shape.layout is not None, "layouts are assigned"
    return replace(shape, layout=replace(shape.layout, minor_to_major=other.minor_to_major))
