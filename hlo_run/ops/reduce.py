"""Shape rules of reductions, map, sort, top-k and scan (`ops.md` 6)."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.reducer import check_reducer
from hlo_run.ops.rule import (
    SCALAR_PRED,
    Rule,
    array_operand,
    array_operands,
    braces,
    brief,
    called,
    compatible_up_to_precision,
    dim_list,
    dynamic_dims,
    make_array,
    one_dim,
    refuse,
    results_of,
    same_dims,
    same_type,
    tuple_or_one,
    wrong_parameter,
)


def values_and_inits(instruction: HloInstruction) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of the first and the second half of the operands; refuse values whose dimensions differ."""
    shapes = array_operands(instruction)
    if not shapes or len(shapes) % 2:
        raise refuse(f"expects as many initial values as arrays, but has {len(shapes)} operands")
    values, inits = shapes[: len(shapes) // 2], shapes[len(shapes) // 2 :]
    same_dims(values)
    if any(init.rank for init in inits):
        raise refuse(f"initial values must be scalars, but one has shape {brief(next(i for i in inits if i.rank))}")
    return values, inits


def _reduce(instruction: HloInstruction) -> Shape:
    values, inits = values_and_inits(instruction)
    dims = dim_list(instruction, "dimensions", values[0].rank)
    types = check_reducer(instruction, [i.element_type for i in inits], [v.element_type for v in values])
    dynamic = dynamic_dims(values[0])
    kept = [(size, dynamic[dim]) for dim, size in enumerate(values[0].dims) if dim not in dims]
    shapes = [make_array(kind, [size for size, _ in kept], [d for _, d in kept]) for kind in types]
    return like_result(instruction, shapes)


def like_result(instruction: HloInstruction, shapes: list[Shape]) -> Shape:
    """Return the tuple of `shapes` if the reducer returns a tuple, else the only shape."""
    return Shape.make_tuple(tuple(shapes)) if called(instruction, "to_apply").root.shape.is_tuple else shapes[0]


def _map(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    if not shapes:
        raise refuse("map expects at least 1 operand, but has 0 operands")
    # A scalar may be mixed with any shape.
    full = next((shape for shape in shapes if shape.dims), shapes[0])
    for shape in shapes:
        if shape.dims and shape.dims != full.dims:
            raise refuse(f"operand shapes differ in dimensions: {brief(full)} and {brief(shape)}")
        if shape.dims != full.dims and not same_type(shape, full):
            raise refuse(f"a scalar of shape {brief(shape)} does not match operands of shape {brief(full)}")
    mapped = called(instruction, "to_apply")
    _check_scalars(instruction, [shape.element_type for shape in shapes], "mapped computation")
    result = mapped.root.shape
    if not result.is_array or result.rank:
        raise refuse(f"mapped computation '{mapped.name}' must return a scalar, but returns {brief(result)}")
    return make_array(result.element_type, full.dims, dynamic_dims(full))


def _check_scalars(instruction: HloInstruction, types: Sequence[str], what: str) -> None:
    """Refuse a computation whose parameters are not scalars of these element types (floats of any width)."""
    computation = called(instruction, "to_apply")
    parameters = computation.parameters
    if len(parameters) != len(types):
        raise refuse(f"{what} '{computation.name}' has {len(parameters)} parameters, but must have {len(types)}")
    for number, (parameter, kind) in enumerate(zip(parameters, types, strict=True)):
        expected = make_array(kind, ())
        if not compatible_up_to_precision(parameter.shape, expected):
            raise wrong_parameter(computation, number, expected, what)


def _sort(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    if not shapes:
        raise refuse("sort expects at least 1 operand, but has 0 operands")
    same_dims(shapes)
    one_dim(instruction, "dimensions", shapes[0].rank)
    comparator = called(instruction, "to_apply")
    _check_scalars(instruction, [shape.element_type for shape in shapes for _ in range(2)], "comparator")
    if not comparator.root.shape.compatible(SCALAR_PRED):
        raise refuse(f"comparator '{comparator.name}': expected pred[], found {brief(comparator.root.shape)}")
    return tuple_or_one(shapes)


def _topk(instruction: HloInstruction) -> Shape:
    shape, k = array_operand(instruction), instruction.k
    if not shape.rank or not 0 <= k <= shape.dims[-1]:
        raise refuse(f"k={k} is not within the last dimension of {brief(shape)}")
    flags = (*dynamic_dims(shape)[:-1], False)
    values = make_array(shape.element_type, (*shape.dims[:-1], k), flags)
    return Shape.make_tuple((values, make_array("s32", values.dims, flags)))


def _scan(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    carries = instruction.num_carries
    dims = instruction.dimensions
    body = called(instruction, "to_apply")
    results = results_of(body.root.shape)
    if len(dims) != 1 or dims[0] < 0:
        raise refuse(f"dimensions must name exactly one dimension, but is {braces(dims)}")
    inputs, outputs = len(shapes) - carries, len(results) - carries
    if carries < 0 or inputs < 0 or outputs < 0:
        raise refuse(f"{carries} carries do not match {len(shapes)} operands and {len(results)} results")
    if len(body.parameters) != len(shapes):
        raise refuse(f"'{body.name}' has {len(body.parameters)} parameters, but must have {len(shapes)}")
    length = _scanned_length(instruction, shapes[:inputs], dims[0])
    for number, (shape, parameter) in enumerate(zip(shapes, body.parameters, strict=True)):
        row = _without(shape, dims[0]) if number < inputs else shape
        if not row.compatible(parameter.shape):
            raise wrong_parameter(body, number, row, "scanned computation")
    for number, carry in enumerate(results[outputs:]):
        if not carry.compatible(body.parameters[inputs + number].shape):
            raise refuse(f"'{body.name}' returns {brief(carry)} as carry {number}, which does not match its parameter")
    if length is None:
        raise refuse("scan has no inputs or outputs")
    return Shape.make_tuple((*(_stacked(result, dims[0], length) for result in results[:outputs]), *results[outputs:]))


def _scanned_length(instruction: HloInstruction, inputs: Sequence[Shape], dim: int) -> int | None:
    """Return the number of steps: the size of the scanned dimension of the inputs, or of the written outputs."""
    written = instruction.shape.tuple_shapes
    outputs = written[: len(written) - instruction.num_carries]
    lengths: list[int] = []
    for shape in (*inputs, *outputs):
        if dim >= shape.rank:
            raise refuse(f"the scanned dimension is {dim}, but {brief(shape)} has rank {shape.rank}")
        lengths.append(shape.dims[dim])
    if len(set(lengths)) > 1:
        raise refuse(f"the scanned dimensions differ in size: {braces(lengths)}")
    return lengths[0] if lengths else None


def _without(shape: Shape, dim: int) -> Shape:
    flags = dynamic_dims(shape)
    return make_array(shape.element_type, (*shape.dims[:dim], *shape.dims[dim + 1 :]), (*flags[:dim], *flags[dim + 1 :]))


def _stacked(shape: Shape, dim: int, length: int) -> Shape:
    if not shape.is_array or dim > shape.rank:
        raise refuse(f"cannot stack results of shape {brief(shape)} along dimension {dim}")
    order = [d + (d >= dim) for d in shape.minor_to_major]
    # The new dimension is directly outside the one that it displaces; a last dimension is innermost.
    order.insert(order.index(dim + 1) + 1 if dim < shape.rank else 0, dim)
    return Shape.array(shape.element_type, (*shape.dims[:dim], length, *shape.dims[dim:]), tuple(order))


INFER: dict[Opcode, Rule] = {
    "reduce": _reduce,
    "map": _map,
    "sort": _sort,
    "topk": _topk,
    "scan": _scan,
}
