"""Shape rules of dot, ragged-dot and scaled-dot (`ops.md` 7)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import BlockScalingConfig, SparsityConfig
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.rule import Rule, array_operands, brief, dynamic_dims, is_open, make_array, refuse, wider_type


def preferred_type(instruction: HloInstruction, left: Shape, right: Shape) -> str:
    """Return the element type of a product: of the written shape, else the wider type of the operands."""
    inferred = wider_type(left.element_type, right.element_type)
    return inferred if is_open(instruction.shape) or not instruction.shape.is_array else instruction.shape.element_type


class _Side(Struct, frozen=True):
    """One operand of a dot: its shape, and its batch and contracting dimensions."""

    shape: Shape
    batch: tuple[int, ...]
    contracting: tuple[int, ...]

    @property
    def free(self) -> list[int]:
        """The dimensions that are neither batch nor contracting."""
        return [dim for dim in range(self.shape.rank) if dim not in self.batch and dim not in self.contracting]


def _side(instruction: HloInstruction, prefix: str, shape: Shape) -> _Side:
    if prefix == "lhs":
        batch, contracting = instruction.lhs_batch_dims, instruction.lhs_contracting_dims
    else:
        batch, contracting = instruction.rhs_batch_dims, instruction.rhs_contracting_dims
    for dims in (batch, contracting):
        if any(not 0 <= dim < shape.rank for dim in dims):
            raise refuse(f"{prefix} dimensions {braces(dims)} are not all dimensions of {brief(shape)}")
    if len({*batch, *contracting}) != len(batch) + len(contracting):
        raise refuse(f"a dimension of {brief(shape)} is named twice as batch or contracting")
    return _Side(shape, batch, contracting)


def _sides(instruction: HloInstruction, left: Shape, right: Shape) -> tuple[_Side, _Side]:
    one, two = _side(instruction, "lhs", left), _side(instruction, "rhs", right)
    for what, ours, theirs in (("batch", one.batch, two.batch), ("contracting", one.contracting, two.contracting)):
        if [left.dims[dim] for dim in ours] != [right.dims[dim] for dim in theirs]:
            raise refuse(f"{what} dimensions of {brief(left)} and {brief(right)} do not match")
    return one, two


def _product(kind: str, one: _Side, two: _Side, right_free: Sequence[int]) -> Shape:
    """Return the product's shape: batch dimensions, then the free dimensions of both sides."""
    parts = [(one.shape, dim) for dim in (*one.batch, *one.free)] + [(two.shape, dim) for dim in right_free]
    dynamic = [dynamic_dims(shape)[dim] for shape, dim in parts]
    for number, dim in enumerate(two.batch):
        dynamic[number] = dynamic[number] or dynamic_dims(two.shape)[dim]
    return make_array(kind, [shape.dims[dim] for shape, dim in parts], dynamic)


def _named_operands(instruction: HloInstruction) -> set[int]:
    """Return the numbers of the operands that the configurations of a dot's two sides name."""
    sparsity, scaling = (instruction.attrs.get(name) for name in ("sparsity_config", "block_scaling_config"))
    found: set[int] = set()
    if isinstance(sparsity, SparsityConfig):
        found |= {side.idx for side in (sparsity.lhs, sparsity.rhs) if side is not None}
    if isinstance(scaling, BlockScalingConfig):
        found |= {number for side in (scaling.lhs, scaling.rhs) if side is not None for number in (side.scale_idx, side.zero_idx)}
    return found


def _dot(instruction: HloInstruction) -> Shape:
    left, right, *extra = array_operands(instruction)
    named = _named_operands(instruction) & set(range(2, 2 + len(extra)))
    if len(named) != len(extra):
        raise refuse(
            f"Expected all {len(extra)} extra operands to be referenced by sparsity_config or block_scaling_config, "
            f"but {len(named)} were referenced"
        )
    one, two = _sides(instruction, left, right)
    return _product(preferred_type(instruction, left, right), one, two, two.free)


def _scaled_dot(instruction: HloInstruction) -> Shape:
    left, right, left_scale, right_scale = array_operands(instruction)
    one, two = _sides(instruction, left, right)
    if not left_scale.rank and not right_scale.rank:
        raise refuse("at least one of the scales must not be a scalar")
    _check_scale(left_scale, one)
    _check_scale(right_scale, two)
    return _product(preferred_type(instruction, left, right), one, two, two.free)


def _check_scale(scale: Shape, side: _Side) -> None:
    """Refuse a scale that does not divide its operand into blocks. A scalar means no scale."""
    dims = side.shape.dims
    if not scale.rank:
        return
    is_blank = all(count == 1 for count in scale.dims)
    if scale.rank != len(dims) or (len(side.contracting) != 1 and not is_blank):
        raise refuse(f"scale {brief(scale)} needs the rank of its operand {brief(side.shape)}, which contracts one dimension")
    if any(not count or size % count for size, count in zip(dims, scale.dims, strict=True)):
        raise refuse(f"the dimensions of {brief(side.shape)} must be multiples of those of its scale {brief(scale)}")


def _ragged_dot(instruction: HloInstruction) -> Shape:
    left, right, sizes = array_operands(instruction)
    one, two = _sides(instruction, left, right)
    ragged = instruction.lhs_ragged_dims
    groups = instruction.rhs_group_dims
    if len(ragged) != 1 or not 0 <= ragged[0] < left.rank:
        raise refuse(f"lhs_ragged_dims must name one dimension of {brief(left)}, but is {braces(ragged)}")
    kind = preferred_type(instruction, left, right)
    outer = _sizes_outer(one, ragged[0])
    if sizes.rank > len(outer) + 1 or (sizes.rank > 1 and sizes.dims[:-1] != tuple(outer)) or not sizes.rank:
        raise refuse(f"group sizes of shape {brief(sizes)} do not match outer dimensions {braces(outer)}")
    count = sizes.dims[-1]
    if ragged[0] in one.free:
        _check_groups(right, two, groups, count)
        return _product(kind, one, two, [dim for dim in two.free if dim not in groups])
    if groups:
        raise refuse("rhs_group_dims must be empty when the ragged dimension is batch or contracting")
    product = _product(kind, one, two, two.free)
    if ragged[0] in one.batch:
        return product
    return make_array(kind, (count, *product.dims), (False, *dynamic_dims(product)))


def _sizes_outer(one: _Side, ragged: int) -> list[int]:
    """Return the sizes of the dimensions that group sizes may have before the last: those that precede the ragged one."""
    if ragged in one.batch:
        dims: Sequence[int] = one.batch[: one.batch.index(ragged)]
    elif ragged in one.contracting:
        dims = (*one.batch, *one.contracting[: one.contracting.index(ragged)])
    else:
        dims = (*one.batch, *(dim for dim in one.free if dim < ragged))
    return [one.shape.dims[dim] for dim in dims]


def _check_groups(right: Shape, two: _Side, groups: Sequence[int], count: int) -> None:
    if len(groups) != 1 or groups[0] not in two.free:
        raise refuse(f"rhs_group_dims must name one free dimension of {brief(right)}, but is {braces(groups)}")
    if right.dims[groups[0]] != count:
        raise refuse(f"the group dimension has {right.dims[groups[0]]} elements, but there are {count} group sizes")


INFER: dict[Opcode, Rule] = {"dot": _dot, "scaled-dot": _scaled_dot, "ragged-dot": _ragged_dot}
