"""Rewrite stable sorts to sorts whose comparator orders equal elements by their original positions.

    sort(x), is_stable=true, to_apply=less   =>   sort(x, iota), to_apply=less.clone
        less.clone(a, b, i, j) = select(less(a, b) == less(b, a), i < j, less(a, b))

The kernels then need not be stable. The new instructions have no metadata, as in XLA. If an operand is an iota along the
sorted dimension, in the type of the new one (s32 unless the dimension needs s64), no new iota is added. XLA's
`stable_sort_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, InstructionMaker, clone_with_fusions, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_MOST_S32 = 2**31 - 1


class StableSortExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "stable-sort-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for sort in module.in_post_order("sort"):
            if sort.is_stable:
                _make_unstable(module, sort)


def _make_unstable(module: HloModule, sort: HloInstruction) -> None:
    (dimension,) = sort.dimensions
    count = len(sort.operands)
    counter = "s32" if sort.operands[0].shape.dims[dimension] <= _MOST_S32 else "s64"
    place = next((n for n, operand in enumerate(sort.operands) if _counts_along(operand, dimension, counter)), count)
    comparator = sort.to_apply
    if place < count:
        if len(comparator.callers) > 1:
            comparator = clone_with_fusions(module, comparator)
            sort.called = {"to_apply": (comparator,)}
        _break_ties(comparator, place)
        del sort.attrs["is_stable"]  # as in the sorts made below, so that `cse` finds them equal
        return
    editor, shape = Editor(sort, derives=False), sort.operands[0].shape
    iota = editor.add("iota", replace(shape, element_type=counter), iota_dimension=dimension)
    comparator = _with_two_parameters(module, comparator, counter, count)
    _break_ties(comparator, place)
    shapes = (*(sort.shape.tuple_shapes if sort.shape.is_tuple else (sort.shape,)), iota.shape)
    kept = {name: value for name, value in sort.attrs.items() if name not in ("is_stable", "sharding")}
    made = InstructionMaker(where=sort.where).add_with(
        "sort", Shape.make_tuple(shapes), (*sort.operands, iota), kept, {"to_apply": (comparator,)}
    )
    made.name = sort.name
    editor.computation.add(made)
    elements = [editor.element(made, number) for number in range(count)]
    module.replace(sort, elements[0] if not sort.shape.is_tuple else editor.tuple(elements))
    editor.computation.remove(sort)


def _counts_along(operand: HloInstruction, dimension: int, element_type: str) -> bool:
    """True for an iota of a type that has as many numbers as the dimension has elements. XLA looks for no other type."""
    is_iota = operand.opcode == "iota" and operand.iota_dimension == dimension
    return is_iota and operand.shape.element_type == element_type


def _with_two_parameters(module: HloModule, old: HloComputation, element_type: str, operand: int) -> HloComputation:
    """Add a clone of a comparator that has two more parameters, for the elements of the sort's operand of that number.

    They come after the other parameters, as in XLA. The order of instructions decides schedules.
    """
    clone = HloComputation(f"{old.name}.clone", old.where)
    made: dict[HloInstruction, HloInstruction] = {}
    last = [instruction for instruction in old.instructions if instruction.opcode == "parameter"][-1]
    for instruction in old.instructions:
        made[instruction] = clone.add(copy_instruction(instruction, ()), is_root=instruction.is_root)
        if instruction is not last:
            continue
        for side, name in enumerate(("lhs", "rhs")):
            scalar = Shape.array(element_type, ())
            InstructionMaker(clone).parameter(2 * operand + side, scalar, f"p.{operand}.{name}.clone")
    for instruction, new in made.items():
        new.operands = tuple([made[value] for value in instruction.operands])
    return module.add_computation(clone)


def _break_ties(comparator: HloComputation, place: int) -> None:
    """Let a comparator order elements that it finds equal by their values of operand `place`."""
    root, parameters = comparator.root, comparator.parameters
    swapped = {parameter: parameters[number ^ 1] for number, parameter in enumerate(parameters)}
    for instruction in comparator.post_order():
        if instruction.operands:
            copy = copy_instruction(instruction, [swapped.get(value, value) for value in instruction.operands])
            swapped[instruction] = comparator.add(copy)
    editor = Editor(root, derives=False)
    same = editor.compare(root, swapped.get(root, root), "EQ")
    first = editor.compare(parameters[2 * place], parameters[2 * place + 1], "LT")
    comparator.root = editor.add("select", root.shape, [same, first, root])
