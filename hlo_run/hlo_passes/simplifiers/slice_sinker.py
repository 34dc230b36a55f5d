"""Move slices behind elementwise instructions if the moved slices together have at least as many elements as the whole.

    add(p[0:6], q[0:6]), add(p[6:10], q[6:10])   =>   s = add(p, q);  s[0:6], s[6:10]

All operands of an instruction must be slices of arrays with equal dimensions, at the same position. Overlapping parts are
then computed once, and adjacent parts in one kernel. XLA's `SliceSinker`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.computation_order import in_definition_order
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class SliceSinker(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "slice-sinker"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place, by one walk over each. The slices that lose their users stay."""
        del ctx
        computations = dict.fromkeys(i.parent for i in in_definition_order(module, "slice"))
        for computation in computations:
            assert computation is not None, "the instruction is in a computation"
            if not computation.is_fusion:
                _sink_all(module, computation)


def _sink_all(module: HloModule, computation: HloComputation) -> None:
    for instruction in computation.post_order():
        if not _is_of_slices(instruction):
            continue
        group = [user for user in _users_of_slices(instruction) if _is_similar(user, instruction)]
        whole = instruction.operands[0].operands[0].shape
        if sum(user.shape.element_count for user in group) >= whole.element_count:
            _sink(module, group)


def _is_of_slices(i: HloInstruction) -> bool:
    """Return True for a used elementwise instruction of equal slices of arrays with equal dimensions."""
    if not i.operands or not i.users or any(operand.opcode != "slice" for operand in i.operands):
        return False
    if not is_elementwise(i) or i.opcode == "map" or i.control_predecessors or i.shape.dynamic_dims:
        return False
    first = i.operands[0]
    return all(
        operand.operands[0].shape.dims == first.operands[0].shape.dims and operand.slice_ranges == first.slice_ranges
        for operand in i.operands
    )


def _users_of_slices(i: HloInstruction) -> list[HloInstruction]:
    """Return the users of slices of the first array that `i` reads, each once."""
    slices = (user for user in i.operands[0].operands[0].users if user.opcode == "slice")
    return list(dict.fromkeys(user for piece in slices for user in piece.users))


def _is_similar(one: HloInstruction, two: HloInstruction) -> bool:
    """Return True if both apply the same operation to slices of the same arrays."""
    if one.opcode != two.opcode or one.shape.element_type != two.shape.element_type or not _is_of_slices(one):
        return False
    if [o.operands[0] for o in one.operands] != [o.operands[0] for o in two.operands]:
        return False
    return {k: v for k, v in one.attrs.items() if k != "metadata"} == {k: v for k, v in two.attrs.items() if k != "metadata"}


def _sink(module: HloModule, group: list[HloInstruction]) -> None:
    first = group[0]
    sources = [operand.operands[0] for operand in first.operands]
    computation = first.parent
    assert computation is not None, "the instruction is in a computation"
    shape = sources[0].shape.with_element_type(first.shape.element_type)
    whole = computation.add(copy_instruction(first, sources, shape))
    for old in group:
        piece = computation.add(copy_instruction(old.operands[0], [whole], old.shape))
        module.replace_uses(old, piece)
