"""Give every user of a constant a separate constant, so that each can have its own sharding.

    c = f32[] constant(1); a = add(x, c); b = multiply(y, c)   =>   a = add(x, c1); b = multiply(y, c2)

The option `split_expressions` does so for expressions of constants too: elementwise instructions, broadcasts and slices of
constants and iotas. XLA's `HloConstantSplitter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import in_definition_order
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import copy_instruction, has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes

_SOURCES: tuple[Opcode, ...] = ("constant", "iota")


class HloConstantSplitter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "hlo-constant-splitter"
    split_expressions: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place."""
        sources = in_definition_order(module, *_SOURCES)
        if sources and ctx.options.use_shardy_partitioner and has_shardy_attributes(module):
            return  # Shardy splits constants itself
        for computation in dict.fromkeys(source.parent for source in sources):
            if computation is not None and not computation.is_fusion:
                self._split(computation)

    def _split(self, computation: HloComputation) -> None:
        found: dict[HloInstruction, None] = {}
        for instruction in computation.post_order():
            if (
                instruction.opcode == "constant"
                or (self.split_expressions and instruction.opcode == "iota")
                or (self.split_expressions and _is_expression(instruction) and all(o in found for o in instruction.operands))
            ):
                found[instruction] = None
        split = [value for value in found if len(value.users) > (1 if value.opcode in _SOURCES else 0)]
        for value in split:
            for user in list(value.users):
                if value.opcode == "constant" or user not in found:
                    user.replace_operand(value, _copy(computation, value))


def _is_expression(instruction: HloInstruction) -> bool:
    if not instruction.operands or has_side_effect(instruction):
        return False
    return instruction.opcode in ("broadcast", "slice") or is_elementwise(instruction)


def _copy(computation: HloComputation, value: HloInstruction) -> HloInstruction:
    """Return a copy of an expression and of all that it is computed from, without shardings."""
    copies: dict[HloInstruction, HloInstruction] = {}

    def copied(part: HloInstruction) -> HloInstruction:
        if part not in copies:
            made = copy_instruction(part, [copied(operand) for operand in part.operands])
            made.attrs.pop("sharding", None)
            copies[part] = computation.add(made)
        return copies[part]

    return copied(value)
