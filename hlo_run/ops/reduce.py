"""Shape rules of reductions, windows, scatter, sort and their kin (`ops.md` 6)."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.attributes import Window, WindowDim
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.shape import Shape
from hlo_run.ops.rule import (
    Rule,
    array_operand,
    array_operands,
    brief,
    check_parameters,
    dim_list,
    one_dim,
    refuse,
    resized,
    same_dims,
    tuple_or_one,
)


def _values_and_inits(instruction: HloInstruction) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of the first and the second half of the operands; the second half must be scalars."""
    shapes = array_operands(instruction)
    if not shapes or len(shapes) % 2:
        raise refuse(f"expects as many initial values as arrays, but has {len(shapes)} operands")
    values, inits = shapes[: len(shapes) // 2], shapes[len(shapes) // 2 :]
    same_dims(values)
    if any(init.rank for init in inits):
        raise refuse(f"initial values must be scalars, but one has shape {brief(next(i for i in inits if i.rank))}")
    return values, inits


def _reducer_types(instruction: HloInstruction, values: Sequence[Shape]) -> list[str]:
    """Return the element types of the reducer's results after checking its parameters."""
    reducer = _called(instruction, "to_apply")
    scalars = [Shape.array(value.element_type, ()) for value in values]
    check_parameters(reducer, [*scalars, *scalars], "reducer")
    results = _results(reducer)
    if len(results) != len(values) or any(result.rank or not result.is_array for result in results):
        raise refuse(f"reducer '{reducer.name}' must return {len(values)} scalars, but returns {brief(reducer.root.shape)}")
    for parameter, result in zip(reducer.parameters, results, strict=False):
        if parameter.shape.element_type != result.element_type:
            raise refuse(f"reducer '{reducer.name}': expected {brief(parameter.shape)}, found {brief(result)}")
    return [result.element_type for result in results]


def _called(instruction: HloInstruction, attribute: str) -> HloComputation:
    return instruction.called[attribute][0]


def _results(computation: HloComputation) -> tuple[Shape, ...]:
    shape = computation.root.shape
    return shape.tuple_shapes if shape.is_tuple else (shape,)


def _reduce(instruction: HloInstruction) -> Shape:
    values, _ = _values_and_inits(instruction)
    dims = dim_list(instruction, "dimensions", values[0].rank)
    types = _reducer_types(instruction, values)
    kept = [size for dim, size in enumerate(values[0].dims) if dim not in dims]
    return tuple_or_one([resized(value, kept, kind) for value, kind in zip(values, types, strict=True)])


def window_sizes(sizes: Sequence[int], window: Window) -> list[int]:
    """Return the number of window positions per dimension; refuses windows of another rank or without a size."""
    if len(window.dims) != len(sizes):
        raise refuse(f"the window has {len(window.dims)} dimensions, but the operand has {len(sizes)}")
    return [_positions(size, dim) for size, dim in zip(sizes, window.dims, strict=True)]


def _positions(size: int, dim: WindowDim) -> int:
    if min(dim.size, dim.stride, dim.base_dilation, dim.window_dilation) < 1:
        raise refuse("window sizes, strides and dilations must be positive")
    padded = dim.pad_low + _dilated(size, dim.base_dilation) + dim.pad_high
    extent = _dilated(dim.size, dim.window_dilation)
    return 0 if padded < extent or padded < 0 else (padded - extent) // dim.stride + 1


def _dilated(size: int, dilation: int) -> int:
    return (size - 1) * dilation + 1 if size else 0


def _reduce_window(instruction: HloInstruction) -> Shape:
    values, _ = _values_and_inits(instruction)
    sizes = window_sizes(values[0].dims, instruction.attrs.get("window", Window()))
    types = _reducer_types(instruction, values)
    return tuple_or_one([resized(value, sizes, kind) for value, kind in zip(values, types, strict=True)])


def _select_and_scatter(instruction: HloInstruction) -> Shape:
    value, source, init = array_operands(instruction)
    sizes = window_sizes(value.dims, instruction.attrs.get("window", Window()))
    if list(source.dims) != sizes or init.rank:
        raise refuse(f"the source must have {sizes} elements, but has shape {brief(source)}")
    scalar = Shape.array(value.element_type, ())
    check_parameters(_called(instruction, "select"), [scalar, scalar], "select")
    check_parameters(_called(instruction, "scatter"), [scalar, scalar], "scatter")
    return value


def _map(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    if not shapes:
        raise refuse("map expects at least 1 operand, but has 0 operands")
    same_dims(shapes)
    mapped = _called(instruction, "to_apply")
    check_parameters(mapped, [Shape.array(shape.element_type, ()) for shape in shapes], "mapped computation")
    if not mapped.root.shape.is_array or mapped.root.shape.rank:
        raise refuse(f"mapped computation '{mapped.name}' must return a scalar, but returns {brief(mapped.root.shape)}")
    return shapes[0].with_element_type(mapped.root.shape.element_type)


def _sort(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    if not shapes:
        raise refuse("sort expects at least 1 operand, but has 0 operands")
    same_dims(shapes)
    one_dim(instruction, "dimensions", shapes[0].rank)
    comparator = _called(instruction, "to_apply")
    check_parameters(comparator, [Shape.array(s.element_type, ()) for s in shapes for _ in range(2)], "comparator")
    if not comparator.root.shape.compatible(Shape.array("pred", ())):
        raise refuse(f"comparator '{comparator.name}': expected pred[], found {brief(comparator.root.shape)}")
    return tuple_or_one(shapes)


def _topk(instruction: HloInstruction) -> Shape:
    shape, k = array_operand(instruction), instruction.attrs["k"]
    if not shape.rank or not 0 <= k <= shape.dims[-1]:
        raise refuse(f"k={k} is not within the last dimension of {brief(shape)}")
    values = resized(shape, (*shape.dims[:-1], k))
    return Shape.make_tuple((values, values.with_element_type("s32")))


def _scan(instruction: HloInstruction) -> Shape:
    shapes, carries = array_operands(instruction), instruction.attrs["num_carries"]
    if not 0 <= carries < len(shapes):
        raise refuse(f"num_carries={carries} does not go with {len(shapes)} operands")
    inputs, inits = shapes[: len(shapes) - carries], shapes[len(shapes) - carries :]
    dim = one_dim(instruction, "dimensions", inputs[0].rank)
    body = _called(instruction, "to_apply")
    outputs = _results(body)[: len(_results(body)) - carries]
    length = inputs[0].dims[dim]
    stacked = [Shape.array(out.element_type, (*out.dims[:dim], length, *out.dims[dim:])) for out in outputs]
    return Shape.make_tuple((*stacked, *inits))


def _scatter(instruction: HloInstruction) -> Shape:
    shapes, attrs = array_operands(instruction), instruction.attrs
    count = len(shapes) // 2
    if len(shapes) % 2 == 0:
        raise refuse(f"scatter expects operands, indices and as many updates, but has {len(shapes)} operands")
    sources, indices, updates = shapes[:count], shapes[count], shapes[count + 1 :]
    same_dims(sources)
    same_dims(updates)
    rank, vector_dim = sources[0].rank, attrs["index_vector_dim"]
    if not indices.dtype.is_integer or not 0 <= vector_dim <= indices.rank:
        raise refuse(f"scatter indices of shape {brief(indices)} do not go with index_vector_dim={vector_dim}")
    window = dim_list(instruction, "update_window_dims", updates[0].rank, ordered=True)
    inserted = dim_list(instruction, "inserted_window_dims", rank, ordered=True)
    if len(window) + len(inserted) + len(attrs.get("input_batching_dims", ())) != rank:
        raise refuse(f"window, inserted and batching dimensions do not add up to the operand's shape {brief(sources[0])}")
    batch = [size for dim, size in enumerate(updates[0].dims) if dim not in window]
    if batch != [size for dim, size in enumerate(indices.dims) if dim != vector_dim]:
        raise refuse(f"updates of shape {brief(updates[0])} do not go with indices of shape {brief(indices)}")
    types = _reducer_types(instruction, sources)
    return tuple_or_one([source.with_element_type(kind) for source, kind in zip(sources, types, strict=True)])


INFER: dict[str, Rule] = {
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "map": _map,
    "sort": _sort,
    "topk": _topk,
    "scan": _scan,
    "scatter": _scatter,
}
