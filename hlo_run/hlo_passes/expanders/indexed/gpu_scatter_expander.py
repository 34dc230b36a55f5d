"""Expand scatters that no kernel can compute to a loop with one update per iteration.

    s = (f32[8], s32[8]) scatter(p, q, i, u, v), to_apply=both
        =>   while (n < rows): slice of p, q at row n of i; both(slice, row n of u, v); write it back if it is in bounds

Such scatters have several results, which atomics cannot update together, or elements of more than 64 bits, for which atomics do
not exist. A scatter with unique indices needs no atomics and stays. With `--xla_gpu_deterministic_ops` or
`--xla_gpu_enable_scatter_determinism_expander` all scatters whose result depends on the order of the updates become loops, if
`scatter_determinism_expander` left them. XLA's `GpuScatterExpander`, and `ScatterExpander` for determinism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.subgraphs.gather_scatter import depends_on_order, simple_scatter

_WIDEST_ATOMIC_BITS = 64


class GpuScatterExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gpu_scatter_expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        ordered = ctx.options.orders_scatters
        replaced = [s for s in module.instructions_of("scatter") if _needs_loop(s) or (ordered and depends_on_order(s))]
        for scatter in replaced:
            simple = simple_scatter(scatter)
            module.replace(scatter, simple)
            made = simple if simple.opcode == "scatter" else next((o for o in simple.operands if o.opcode == "scatter"), None)
            if made is not None:
                module.replace(made, _loop(module, made))
                remove_unused([made])
        remove_unused(replaced)


def _needs_loop(scatter: HloInstruction) -> bool:
    count = len(scatter.operands) // 2
    if scatter.unique_indices or scatter.input_batching_dims:
        return False
    is_wide = any(operand.shape.dtype.bits > _WIDEST_ATOMIC_BITS for operand in scatter.operands[:count])
    body = scatter.to_apply
    is_known = all(i.opcode in ELEMENTWISE or i.opcode in ("parameter", "constant", "tuple") for i in body.instructions)
    return is_known and (is_wide or count > 1)


def _loop(module: HloModule, scatter: HloInstruction) -> HloInstruction:
    """Return the results of the loop that replaces a scatter in simple form."""
    editor, count = Editor(scatter), len(scatter.operands) // 2
    state = editor.tuple([editor.constant(0, "s32"), *scatter.operands])
    called = {
        "condition": [module.add_computation(_condition(scatter, state.shape))],
        "body": [module.add_computation(_body(scatter, state.shape))],
    }
    loop = editor.add("while", state.shape, [state], called)
    return editor.joined([editor.element(loop, 1 + number) for number in range(count)], scatter)


def _parameter(name: str, shape: Shape) -> Editor:
    """Return the editor of a new computation with one parameter of `shape`, which is the editor's origin."""
    computation = HloComputation(name)
    return Editor(computation.add(HloInstruction("state", "parameter", shape, attrs={"parameter_number": 0})))


def _condition(scatter: HloInstruction, state: Shape) -> HloComputation:
    editor = _parameter(f"{scatter.name}_condition", state)
    rows = scatter.operands[len(scatter.operands) // 2].shape.dims[0]
    editor.computation.root = editor.compare(editor.element(editor.origin, 0), editor.constant(rows, "s32"), "LT")
    return editor.computation


def _body(scatter: HloInstruction, state: Shape) -> HloComputation:
    editor, count = _parameter(f"{scatter.name}_body", state), len(scatter.operands) // 2
    row, *values = (editor.element(editor.origin, number) for number in range(len(state.tuple_shapes)))
    inputs, indices, updates = values[:count], values[count], values[count + 1 :]
    window = updates[0].shape.dims[1:]
    starts, inside = _starts(editor, scatter, _row(editor, indices, row), window)
    old = [_slice(editor, value, starts, window) for value in inputs]
    new = [editor.reshape(_row(editor, update, row), window) for update in updates]
    combined = _combined(editor, scatter.to_apply, [*old, *new])
    flag = editor.broadcast(inside, window) if window else inside
    kept = [editor.select(flag, after, before) for after, before in zip(combined, old, strict=True)]
    results = [
        editor.add("dynamic-update-slice", value.shape, [value, part, *starts]) for value, part in zip(inputs, kept, strict=True)
    ]
    next_row = editor.binary("add", row, editor.constant(1, "s32"))
    editor.computation.root = editor.tuple([next_row, *results, indices, *updates])
    return editor.computation


def _row(editor: Editor, value: HloInstruction, row: HloInstruction) -> HloInstruction:
    zero = editor.constant(0, "s32")
    return _slice(editor, value, [row, *[zero] * (value.shape.rank - 1)], (1, *value.shape.dims[1:]))


def _slice(editor: Editor, value: HloInstruction, starts: Sequence[HloInstruction], sizes: Sequence[int]) -> HloInstruction:
    shape = Shape.array(value.shape.element_type, tuple(sizes))
    return editor.add("dynamic-slice", shape, [value, *starts], dynamic_slice_sizes=tuple(sizes))


def _starts(
    editor: Editor, scatter: HloInstruction, row: HloInstruction, window: Sequence[int]
) -> tuple[list[HloInstruction], HloInstruction]:
    """Return the start of an index row's window in each dimension, and a pred that is true if the window is in bounds."""
    dims, element_type = scatter.operands[0].shape.dims, row.shape.element_type
    dim_of = scatter.scatter_dims_to_operand_dims
    inside = editor.constant(np.True_, "pred")
    starts = [editor.constant(0, element_type)] * len(dims)
    for number, dim in enumerate(dim_of):
        start = editor.reshape(editor.slice(row, [0, number], [1, number + 1]), ())
        # The limit may exceed the maximum of a narrow index type.
        largest = int(np.iinfo(DTYPES[element_type].numpy).max)
        last = editor.constant(min(dims[dim] - window[dim], largest), element_type)
        for condition in (
            editor.compare(start, editor.constant(0, element_type), "GE"),
            editor.compare(start, last, "LE"),
        ):
            inside = editor.binary("and", inside, condition)
        starts[dim] = start
    return starts, inside


def _combined(editor: Editor, to_apply: HloComputation, arguments: Sequence[HloInstruction]) -> list[HloInstruction]:
    """Return the results of a scalar computation applied elementwise to arrays."""
    dims, made = arguments[0].shape.dims, dict[HloInstruction, HloInstruction]()
    for old in to_apply.post_order():
        if old.opcode == "parameter":
            made[old] = arguments[old.parameter_number]
        elif old.opcode == "tuple":
            continue
        else:
            shape = Shape.array(old.shape.element_type, dims if old.opcode != "constant" else ())
            new = editor.computation.add(copy_instruction(old, [made[operand] for operand in old.operands], shape))
            made[old] = editor.broadcast(new, dims) if old.opcode == "constant" and dims else new
    root = to_apply.root
    return [made[operand] for operand in root.operands] if root.opcode == "tuple" else [made[root]]
