"""Give the results of a reduce its inputs' dimension order, and copy them to the wanted layout.

    r = f32[3,4]{0,1} reduce(f32[3,4,5]{2,1,0} p), dimensions={2}   =>   copy(f32[3,4]{1,0} reduce(p))

A convert that is the only user comes before the copy. Several inputs get the layout of the first one, by copies. A reduction
that is faster in the reduction emitter than as a loop keeps its layout: that emitter writes any layout. XLA's
`ReduceDecomposer`, as XLA:GPU configures it.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.tiling.reduction_description import ReductionDescription, describe_reduction
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class ReduceDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring. Without `keeps_fast` it also takes reduces that the emitter does faster."""

    name: ClassVar[str] = "reduce-decomposer"

    keeps_fast: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced: list[HloInstruction] = []
        for old in module.instructions_of("reduce"):
            reduce = _with_equal_layouts(module, old)
            replaced += [old] if reduce is not old else []
            if self.keeps_fast and _is_fast(reduce):
                continue
            natural = _natural(reduce)
            if [shape.minor_to_major for shape in natural] == [leaf.minor_to_major for _, leaf in reduce.shape.leaves()]:
                continue
            editor = Editor(reduce)
            results = editor.reduce_again(reduce, reduce.operands[: len(natural)], reduce.dimensions, natural)
            replaced += _copy_to_layout(module, reduce, results)
        remove_unused(replaced)


def _is_fast(reduce: HloInstruction) -> bool:
    """True for rows or columns worth the reduction emitter. Mirrors XLA's `IsReductionFromOrToContiguousDimensions`."""
    found = describe_reduction(reduce)
    return isinstance(found, ReductionDescription) and not found.is_elemental


def _with_equal_layouts(module: HloModule, reduce: HloInstruction) -> HloInstruction:
    """Return the reduction, or its replacement in which copies give all inputs the layout of the first."""
    inputs, editor = reduce.operands[: len(reduce.operands) // 2], Editor(reduce)
    order = inputs[0].shape.minor_to_major
    if all(value.shape.minor_to_major == order for value in inputs):
        return reduce
    shapes = [Shape.array(value.shape.element_type, value.shape.dims, order) for value in inputs]
    copies = [
        value if value.shape.minor_to_major == order else editor.add("copy", shape, [value])
        for value, shape in zip(inputs, shapes, strict=True)
    ]
    made = editor.computation.add(copy_instruction(reduce, [*copies, *reduce.operands[len(inputs) :]]))
    module.replace(reduce, made)
    return made


def _copy_to_layout(module: HloModule, reduce: HloInstruction, results: list[HloInstruction]) -> list[HloInstruction]:
    """Replace the reduction by copies of new results; return the instructions without users."""
    editor = Editor(reduce)
    if reduce.shape.is_tuple:
        pairs = zip(results, reduce.shape.tuple_shapes, strict=True)
        module.replace(reduce, editor.tuple([editor.add("copy", shape, [value]) for value, shape in pairs]))
        return [reduce]
    (value,), shape = results, reduce.shape
    convert = next(iter(reduce.users)) if len(reduce.users) == 1 and not reduce.is_root else None
    if convert is None or convert.opcode != "convert":
        module.replace(reduce, editor.add("copy", shape, [value]))
        return [reduce]
    after = Editor(convert)
    element_type = convert.shape.element_type
    converted = after.add("convert", replace(value.shape, element_type=element_type), [value])
    module.replace(convert, after.add("copy", convert.shape, [converted]))
    return [convert, reduce]


def _natural(reduce: HloInstruction) -> list[Shape]:
    """Return the results' shapes, in the layout of the inputs without the reduced dimensions."""
    source, reduced = reduce.operands[0].shape, reduce.dimensions
    kept = [d for d in range(source.rank) if d not in reduced]
    order = tuple(kept.index(d) for d in source.minor_to_major if d not in reduced)
    return [Shape.array(leaf.element_type, leaf.dims, order) for _, leaf in reduce.shape.leaves()]
