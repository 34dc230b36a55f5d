"""Lower convolutions, scatters and reshapes with dynamic sizes to static shapes, the bounds."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.convolutions import Convolution
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.hlo_passes.dynamic.sizes import Sizes, mask, window_sizes
from hlo_run.hlo_passes.dynamic.values import SizedValues

# s64 holds any linear index: a product of bounds may exceed s32.
_PLACE = "s64"


def refused(instruction: HloInstruction, what: str) -> Unsupported:
    """Return the error for an instruction without a rule; `what` names the unsupported case."""
    hint = "use --platform=Interpreter: the numpy reference supports dynamic sizes everywhere"
    return Unsupported(f"{what}: %{instruction.name} of shape {instruction.shape}", instruction.where, hint=hint)


# ---- convolutions ---------------------------------------------------------------------------------------------------


def convolution(values: SizedValues, instruction: HloInstruction) -> None:
    """Mask elements beyond the sizes with zeros, which act as padding. Raises Unsupported for a window of dynamic size."""
    editor = Editor(instruction)
    view = Convolution.of(instruction)
    labels = view.labels
    source, weights = instruction.operands[:2]
    given = values.sizes_by_dim(source)
    kernel = values.sizes_by_dim(weights)
    _check_convolution(instruction, view, given, kernel)
    summed = (labels.input.second_dim, *labels.input.spatial_dims)
    zeros = [editor.constant(0, operand.shape.element_type) for operand in (source, weights)]
    instruction.operands = (
        values.masked(editor, source, zeros[0], summed),
        values.masked(editor, weights, zeros[1], (labels.kernel.first_dim,)),
    )
    found: list[HloInstruction | None] = [None] * instruction.shape.rank
    found[labels.output.first_dim] = given[labels.input.first_dim]
    places = window_sizes(editor, tuple(given[dim] for dim in labels.input.spatial_dims), view.window)
    for dim, size in zip(labels.output.spatial_dims, places, strict=True):
        found[dim] = size
    values.keep(instruction, tuple(found))


def _check_convolution(instruction: HloInstruction, view: Convolution, given: Sizes, kernel: Sizes) -> None:
    """Raise Unsupported for windows and groups of dynamic size: their elements would have to move."""
    side, source = view.labels.kernel, view.labels.input
    if any(kernel[dim] is not None for dim in side.spatial_dims):
        raise refused(instruction, "a window of dynamic size")
    grouped = [kernel[side.first_dim], given[source.second_dim]]
    if view.feature_groups > 1 and any(size is not None for size in grouped):
        raise refused(instruction, "groups of dynamic size")
    if view.batch_groups > 1 and given[source.first_dim] is not None:
        raise refused(instruction, "groups of dynamic size")


# ---- scatters -------------------------------------------------------------------------------------------------------


def scatter(values: SizedValues, instruction: HloInstruction) -> None:
    """Set indices beyond their sizes to out-of-bounds values; the result keeps the sizes of the scattered-into operand."""
    count = len(instruction.operands) // 2
    inputs, indices, updates = instruction.operands[:count], instruction.operands[count], instruction.operands[count + 1 :]
    sizes = next((found for value in inputs if (found := values.sizes_of(value))), ())
    _check_scatter(values, instruction, inputs[0].shape, sizes, updates)
    rows = _row_sizes(values, instruction, indices, updates)
    editor = Editor(instruction)
    dtype = indices.shape.dtype
    nowhere = editor.constant(-1 if dtype.is_signed else (1 << dtype.bits) - 1, dtype.name)
    flags = mask(editor, indices.shape.dims, rows)
    if flags is not None:
        masked = editor.select(flags, indices, editor.broadcast(nowhere, indices.shape.dims))
        instruction.operands = (*inputs, masked, *updates)
    if not instruction.shape.is_tuple:
        values.keep(instruction, sizes)
        return
    for number in range(count):
        values.keep(instruction, sizes, (number,))


def _row_sizes(
    values: SizedValues, instruction: HloInstruction, indices: HloInstruction, updates: Sequence[HloInstruction]
) -> dict[int, HloInstruction]:
    """Return the sizes of the indices' dimensions, from the indices themselves or from the updates."""
    view = Indexed.of(instruction)
    batch, windows = view.row_dims, view.window_dims
    rows = {dim: size for dim, size in enumerate(values.sizes_of(indices)) if size is not None and dim in batch}
    for update in updates:
        scattered = [size for dim, size in enumerate(values.sizes_of(update)) if dim not in windows]
        for dim, size in zip(batch, scattered, strict=False):
            if size is not None and dim not in rows:
                rows[dim] = size
    return rows


def _check_scatter(
    values: SizedValues, instruction: HloInstruction, shape: Shape, sizes: Sizes, updates: Sequence[HloInstruction]
) -> None:
    """Raise Unsupported if a window could reach beyond a size, or is smaller than the bound of the updated dimension."""
    view = Indexed.of(instruction)
    of_window = view.kept_dims
    for dim, size in enumerate(sizes):
        if size is not None and dim in of_window and dim in view.index_map:
            raise refused(instruction, "windows that move along a dynamic dimension")
    for update in updates:
        for dim, target in zip(view.window_dims, of_window, strict=True):
            size = values.sizes_by_dim(update)[dim]
            if size is not None and not (sizes and sizes[target] is size):
                raise refused(instruction, "updates of dynamic size")


# ---- reshapes -------------------------------------------------------------------------------------------------------


def dynamic_reshape(values: SizedValues, instruction: HloInstruction) -> HloInstruction:
    """Return the replacement of a dynamic-reshape, whose sizes are operands."""
    value, *sizes = instruction.operands
    editor = Editor(instruction)
    # Of a static result only the text of its type counts, as in XLA.
    dynamic = instruction.shape.dynamic_dims or (False,) * instruction.shape.rank
    wanted = [size if is_open else None for size, is_open in zip(sizes, dynamic, strict=True)]
    made = moved(editor, value, values.sizes_by_dim(value), instruction.shape.dims, wanted)
    values.keep(made, tuple(wanted))
    return made


def static_reshape(values: SizedValues, instruction: HloInstruction) -> HloInstruction:
    """Return the replacement of a reshape that moves elements; the result's one dynamic size is the count over the others."""
    (value,) = instruction.operands
    editor, sizes = Editor(instruction), values.sizes_by_dim(value)
    dynamic = [dim for dim, is_open in enumerate(instruction.shape.dynamic_dims) if is_open]
    if len(dynamic) != 1:
        raise refused(instruction, "a reshape to several dynamic dimensions")
    count = _product(editor, [_size(editor, bound, size) for bound, size in zip(value.shape.dims, sizes, strict=True)])
    rest = [bound for dim, bound in enumerate(instruction.shape.dims) if dim != dynamic[0]]
    each = _product(editor, [_size(editor, bound, None) for bound in rest])
    wanted: list[HloInstruction | None] = [None] * instruction.shape.rank
    wanted[dynamic[0]] = editor.convert(editor.binary("divide", count, each), "s32")
    made = moved(editor, value, sizes, instruction.shape.dims, wanted)
    values.keep(made, tuple(wanted))
    return made


def moved(
    editor: Editor, value: HloInstruction, sizes: Sizes, dims: tuple[int, ...], wanted: Sequence[HloInstruction | None]
) -> HloInstruction:
    """Return the valid elements of `value`, in order, as the valid elements of an array with bounds `dims`.

    A gather: the linear index of an element among the valid ones, in sizes `wanted`, gives its index in `value`, in `sizes`.
    """
    bounds = value.shape.dims
    place = _spread(editor, editor.constant(0, _PLACE), dims)
    stride = editor.constant(1, _PLACE)
    for dim in reversed(range(len(dims))):
        step = editor.binary("multiply", editor.iota(_PLACE, dims, dim), _spread(editor, stride, dims))
        place = editor.binary("add", place, step)
        stride = editor.binary("multiply", stride, _size(editor, dims[dim], wanted[dim]))
    source = _spread(editor, editor.constant(0, _PLACE), dims)
    within = 1
    known = sizes or (None,) * len(bounds)
    for dim in reversed(range(len(bounds))):
        size = _spread(editor, _size(editor, bounds[dim], known[dim]), dims)
        one = _spread(editor, editor.constant(1, _PLACE), dims)
        size = editor.binary("maximum", size, one)
        index = editor.binary("remainder", place, size)
        place = editor.binary("divide", place, size)
        source = editor.binary("add", source, editor.binary("multiply", index, _spread(editor, _place(editor, within), dims)))
        within *= bounds[dim]
    flat = editor.reshape(value, [within])
    return editor.add(
        "gather",
        Shape.array(value.shape.element_type, dims),
        [flat, source],
        offset_dims=(),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        index_vector_dim=len(dims),
        slice_sizes=(1,),
    )


def _place(editor: Editor, number: int) -> HloInstruction:
    return editor.constant(number, _PLACE)


def _size(editor: Editor, bound: int, size: HloInstruction | None) -> HloInstruction:
    return editor.convert(size, _PLACE) if size is not None else _place(editor, bound)


def _product(editor: Editor, factors: Sequence[HloInstruction]) -> HloInstruction:
    total = _place(editor, 1)
    for factor in factors:
        total = editor.binary("multiply", total, factor)
    return total


def _spread(editor: Editor, scalar: HloInstruction, dims: tuple[int, ...]) -> HloInstruction:
    return editor.broadcast(scalar, dims)
