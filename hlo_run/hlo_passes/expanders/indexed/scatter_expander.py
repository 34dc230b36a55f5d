"""Replace a scatter of one update by a dynamic-update-slice, if the window is in bounds.

    s = f32[64,128] scatter(p, s32[1,1] i, f32[1,3,128] u), to_apply=add
        =>   old = f32[3,128] dynamic-slice(p, i, 0)
             new = select(0 <= i and i <= 61, add(old, reshape f32[3,128] (u)), old)
             dynamic-update-slice(p, new, i, 0)

Needs the form of `scatter_simplifier` and an elementwise combiner. XLA's `ScatterExpander`, in its mode for simple scatters
(it makes a loop that later passes simplify).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from hlo_run.hlo.edit import Editor, copy_instruction, replace_each
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.gather_scatter import has_simple_scatter_form, scalar_indices


class ScatterExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scatter_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced = [s for s in module.in_post_order("scatter") if _updates_one_slice(s)]
        replace_each(module, replaced, _updated)


def _updates_one_slice(scatter: HloInstruction) -> bool:
    count = len(scatter.operands) // 2
    if not has_simple_scatter_form(scatter) or scatter.operands[count].shape.dims[0] != 1 or scatter.control_predecessors:
        return False
    body = scatter.to_apply
    return all(i.opcode in (*ELEMENTWISE, "parameter", "constant", "tuple") and i.opcode != "map" for i in body.instructions)


def _updated(scatter: HloInstruction) -> HloInstruction:
    editor, count = Editor(scatter), len(scatter.operands) // 2
    inputs, rows, updates = scatter.operands[:count], scatter.operands[count], scatter.operands[count + 1 :]
    sizes = updates[0].shape.dims[1:]
    mapped = scatter.scatter_dims_to_operand_dims
    starts = scalar_indices(editor, rows, mapped, inputs[0].shape.rank)
    old = [editor.add("dynamic-slice", replace(i.shape, dims=sizes), [i, *starts], dynamic_slice_sizes=sizes) for i in inputs]
    new = _combined(editor, scatter.to_apply, [*old, *(editor.reshape(update, sizes) for update in updates)])
    limits = [inputs[0].shape.dims[d] - sizes[d] for d in mapped]
    if (fits := _fits(editor, [starts[d] for d in mapped], limits)) is not None:
        chosen = editor.broadcast(fits, sizes)
        new = [editor.select(chosen, one, two) for one, two in zip(new, old, strict=True)]
    results = [
        editor.add("dynamic-update-slice", value.shape, [value, part, *starts]) for value, part in zip(inputs, new, strict=True)
    ]
    return editor.joined(results, scatter)


def _fits(editor: Editor, starts: Sequence[HloInstruction], limits: Sequence[int]) -> HloInstruction | None:
    """Return a pred that is true if every start is in [0, limit]; None if the index type guarantees it."""
    tests: list[HloInstruction] = []
    for start, limit in zip(starts, limits, strict=True):
        dtype = start.shape.dtype
        if dtype.is_signed:
            tests.append(editor.compare(start, editor.constant(0, dtype.name), "GE"))
        if limit < 1 << (dtype.bits - dtype.is_signed):
            tests.append(editor.compare(start, editor.constant(limit, dtype.name), "LE"))
    if not tests:
        return None
    all_of_them = tests[0]
    for test in tests[1:]:
        all_of_them = editor.binary("and", all_of_them, test)
    return all_of_them


def _combined(editor: Editor, combiner: HloComputation, values: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Apply a scalar combiner to arrays elementwise."""
    dims, made = values[0].shape.dims, dict[HloInstruction, HloInstruction]()
    for old in combiner.post_order():
        if old.opcode == "parameter":
            made[old] = values[old.parameter_number]
        elif old.opcode == "constant":
            made[old] = editor.broadcast(editor.constant(old.constant_array, old.shape.element_type), dims)
        elif old.opcode != "tuple":
            shape = replace(values[0].shape.with_element_type(old.shape.element_type), dims=dims)
            made[old] = editor.computation.add(copy_instruction(old, [made[operand] for operand in old.operands], shape))
    roots = combiner.root.operands if combiner.root.opcode == "tuple" else (combiner.root,)
    return [made[root] for root in roots]
