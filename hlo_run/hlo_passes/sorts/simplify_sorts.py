"""Remove operands of sorts that neither the comparator nor a user of the sort reads.

    s = (f32[8], s32[8]) sort(p, i);  k = get-tuple-element(s), index=0   =>   k = f32[8] sort(p)

A sort along a dimension of size 1 is replaced by its operands. XLA's `SortSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, clone_with_fusions, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class SimplifySorts(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "simplify-sorts"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        version = module.version
        for sort in module.instructions_of("sort"):
            if sort.control_predecessors:
                continue
            dim: int = sort.dimensions[0]
            if sort.operands[0].shape.dims[dim] == 1 and not sort.operands[0].shape.dynamic_dims:
                module.replace(sort, Editor(sort).joined(sort.operands, sort))
                remove_unused([sort])
            elif sort.shape.is_tuple:
                _leave_out(module, sort)
        if module.version != version:
            remove_uncalled(module)


def _leave_out(module: HloModule, sort: HloInstruction) -> None:
    """Rebuild a sort without its unused operands."""
    if sort.is_root or any(user.opcode != "get-tuple-element" for user in sort.users):
        return
    comparator = sort.to_apply
    read = [p.parameter_number // 2 for p in comparator.parameters if p.users or p.is_root]
    needed = sorted({*read, *(user.tuple_index for user in sort.users)})
    if len(needed) == len(sort.operands) or not needed:
        return
    editor = Editor(sort)
    operands = [sort.operands[n] for n in needed]
    shapes = [sort.shape.tuple_shapes[n] for n in needed]
    shape = shapes[0] if len(shapes) == 1 else Shape.make_tuple(tuple(shapes))
    rest = {name: value for name, value in sort.attrs.items() if name in ("dimensions", "is_stable")}
    made = editor.add_with("sort", shape, operands, rest, {"to_apply": [_without(module, comparator, needed)]})
    for user in list(sort.users):
        number = needed.index(user.tuple_index)
        module.replace(user, editor.element(made, number) if shape.is_tuple else made)
    users = list(sort.users)
    remove_unused(users)


def _without(module: HloModule, comparator: HloComputation, needed: list[int]) -> HloComputation:
    """Return a copy of a comparator with only the parameters of the operands in `needed`."""
    copy = clone_with_fusions(module, comparator)
    for parameter in copy.parameters:
        operand, side = divmod(parameter.parameter_number, 2)
        if operand in needed:
            parameter.attrs["parameter_number"] = 2 * needed.index(operand) + side
        else:
            copy.remove(parameter)
    return copy
