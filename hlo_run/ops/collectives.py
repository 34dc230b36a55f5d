"""Shape rules of collectives, and of their start and done opcodes (`ops.md` 11)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.collectives import Collective
from hlo_run.ops.groups import PARTITIONS, check_groups, device_counts, group_size
from hlo_run.ops.rule import Rule, array_operands, brief, dynamic_dims, make_array, operand, refuse, tuple_or_one


def _some_arrays(instruction: HloInstruction) -> list[Shape]:
    shapes = array_operands(instruction)
    if not shapes:
        raise refuse("expects at least 1 operand, but has 0 operands")
    return shapes


def _all_reduce(instruction: HloInstruction) -> Shape:
    check_groups(instruction, of_one_size=False)
    return tuple_or_one(_some_arrays(instruction))


def _first_operand(instruction: HloInstruction) -> Shape:
    return operand(instruction, 0)


def _second_result(instruction: HloInstruction) -> Shape:
    started = operand(instruction, 0)
    if len(started.tuple_shapes) < 2:
        raise refuse(f"the operand must be a tuple of at least 2 elements, but has shape {brief(started)}")
    return started.tuple_shapes[1]


def _scaled(shape: Shape, dim: int, size: int) -> Shape:
    return make_array(shape.element_type, (*shape.dims[:dim], size, *shape.dims[dim + 1 :]), dynamic_dims(shape))


def _gathered_dim(instruction: HloInstruction, shapes: list[Shape], outputs: tuple[Shape, ...]) -> int:
    dim: int = next(iter(instruction.dimensions), -1)
    for shape in shapes:
        if not 0 <= dim < shape.rank:
            raise refuse(f"dimensions names dimension {dim}, but an operand has shape {brief(shape)}")
    if len(outputs) != len(shapes):
        raise refuse(f"{len(shapes)} operands do not give a result of shape {brief(instruction.shape)}")
    for output in outputs:
        if not output.is_array or dim >= output.rank:
            raise refuse(f"dimensions names dimension {dim}, but a result has shape {brief(output)}")
    return dim


def _shards(instruction: HloInstruction, whole: int, part: int) -> int:
    """Return the number of shards of a dimension; refuse a number that differs from the devices in a group."""
    if not part:
        raise refuse("a dimension of size 0 has no shards")
    count, size = -(-whole // part), group_size(instruction)
    if size not in (1, count):
        raise refuse(f"the shapes are for groups of {count} devices, but the groups have {size}")
    return count


def _outputs(shape: Shape, count: int) -> tuple[Shape, ...]:
    return shape.tuple_shapes if count > 1 else (shape,)


def _all_gather(instruction: HloInstruction) -> Shape:
    check_groups(instruction)
    shapes = _some_arrays(instruction)
    return _gathered(instruction, shapes, _outputs(instruction.shape, len(shapes)))


def _gathered(instruction: HloInstruction, shapes: list[Shape], outputs: tuple[Shape, ...]) -> Shape:
    dim = _gathered_dim(instruction, shapes, outputs)
    count = _shards(instruction, outputs[0].dims[dim], shapes[0].dims[dim])
    return tuple_or_one([_scaled(shape, dim, shape.dims[dim] * count) for shape in shapes])


def _all_gather_start(instruction: HloInstruction) -> Shape:
    check_groups(instruction)
    shapes, written = _some_arrays(instruction), instruction.shape.tuple_shapes
    if len(written) < 2:
        raise refuse(f"expects a tuple of operands and results, but has shape {brief(instruction.shape)}")
    gathered = _gathered(instruction, shapes, _outputs(written[1], len(shapes)))
    return Shape.make_tuple((tuple_or_one(shapes), gathered))


def _reduce_scatter(instruction: HloInstruction) -> Shape:
    check_groups(instruction)
    shapes = _some_arrays(instruction)
    outputs = _outputs(instruction.shape, len(shapes))
    dim = _gathered_dim(instruction, shapes, outputs)
    count = _shards(instruction, shapes[0].dims[dim], outputs[0].dims[dim])
    for shape in shapes:
        if not count or shape.dims[dim] % count:
            raise refuse(f"dimension {dim} of {brief(shape)} is not divisible into {count} shards")
    return tuple_or_one([_scaled(shape, dim, shape.dims[dim] // count) for shape in shapes])


def _all_to_all(instruction: HloInstruction) -> Shape:
    check_groups(instruction)
    shapes, dims = _some_arrays(instruction), instruction.ints("dimensions")
    if not dims:
        for shape in shapes[1:]:
            if not shape.compatible(shapes[0]):
                raise refuse(f"operands differ in shape: {brief(shapes[0])} and {brief(shape)}")
        return Shape.make_tuple(tuple(shapes))
    if len(shapes) != 1:
        raise refuse(f"an all-to-all along a dimension expects 1 operand, but has {len(shapes)}")
    shape, count = shapes[0], group_size(instruction)
    if not 0 <= dims[0] < shape.rank:
        raise refuse(f"dimensions names dimension {dims[0]}, but the operand has shape {brief(shape)}")
    if shape.dims[dims[0]] % count:
        raise refuse(f"dimension {dims[0]} of {brief(shape)} is not divisible into {count} parts")
    return shape


def _ragged_all_to_all(instruction: HloInstruction) -> Shape:
    check_groups(instruction)
    shapes = array_operands(instruction)
    if len(shapes) != 6:
        raise refuse(f"expects 6 operands, but has {len(shapes)} operands")
    for shape in shapes[2:]:
        if not shape.dtype.is_integer or shape.rank not in (1, 2):
            raise refuse(f"offsets and sizes must be lists of integers, but one has shape {brief(shape)}")
        if not shape.compatible(shapes[2]):
            raise refuse(f"offsets and sizes differ in shape: {brief(shapes[2])} and {brief(shape)}")
    return shapes[1]


def _collective_broadcast(instruction: HloInstruction) -> Shape:
    # XLA does not check its groups.
    return tuple_or_one(_some_arrays(instruction))


def _collective_reduce(instruction: HloInstruction) -> Shape:
    check_groups(instruction)
    shapes = _some_arrays(instruction)
    if instruction.has_dynamic_root:
        *shapes, root = shapes
        wanted = Shape.array("s32", (len(shapes),))
        if not shapes or not root.compatible(wanted):
            raise refuse(f"the last operand must have the shape {brief(wanted)}, but has {brief(root)}")
    return tuple_or_one(shapes)


def _permute(instruction: HloInstruction) -> Shape:
    _check_pairs(instruction)
    shapes = [o.shape for o in instruction.operands]
    if not shapes:
        raise refuse("expects at least 1 operand, but has 0 operands")
    if "slice_sizes" in instruction.attrs:
        # Operands 0 and 1 are input and output; the others are the start indices of the slices in each.
        return shapes[1]
    return tuple_or_one(array_operands(instruction))


def _permute_start(instruction: HloInstruction) -> Shape:
    written = instruction.shape.tuple_shapes
    shapes = [o.shape for o in instruction.operands]
    result = _permute(instruction)
    inputs = tuple_or_one(shapes) if "slice_sizes" not in instruction.attrs else Shape.make_tuple(tuple(shapes))
    # Context elements of any shape may follow.
    return Shape.make_tuple((inputs, result, *written[2:]))


def _check_pairs(instruction: HloInstruction) -> None:
    permute = Collective.of(instruction)
    pairs = permute.pairs
    replicas, partitions = device_counts(instruction)
    limit = partitions if permute.mode == PARTITIONS else replicas
    allowed = _slice_count(instruction)
    for side, what in ((0, "source"), (1, "target")):
        numbers = [pair[side] for pair in pairs]
        for number in numbers:
            if number < 0 or (limit > 1 and number >= limit):
                raise refuse(f"{what} {number} is not among the {limit} devices of the module")
            if numbers.count(number) > allowed:
                often = "once" if allowed == 1 else f"{allowed} times"
                raise refuse(
                    f"{what} {number} appears more than {often} in source_target_pairs={braces([braces(pair) for pair in pairs])}"
                )


def _slice_count(instruction: HloInstruction) -> int:
    """Return the maximum number of slices per device: the number in operand 2 of an in-place permute, else 1."""
    if "slice_sizes" not in instruction.attrs or len(instruction.operands) < 3:
        return 1
    starts = operand(instruction, 2)
    if operand(instruction, 0).is_tuple:
        starts = starts.tuple_shapes[0] if starts.tuple_shapes else starts
    return max(1, len(starts.tuple_shapes))


INFER: dict[Opcode, Rule] = {
    "all-reduce": _all_reduce,
    "all-reduce-start": _all_reduce,
    "all-reduce-done": _first_operand,
    "all-gather": _all_gather,
    "all-gather-start": _all_gather_start,
    "all-gather-done": _second_result,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "ragged-all-to-all": _ragged_all_to_all,
    "collective-broadcast": _collective_broadcast,
    "collective-reduce": _collective_reduce,
    "collective-permute": _permute,
    "collective-permute-start": _permute_start,
    "collective-permute-done": _second_result,
}
