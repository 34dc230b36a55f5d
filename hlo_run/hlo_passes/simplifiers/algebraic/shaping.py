"""Algebraic rules of data movement, iotas and constants. The rules in `LAYOUT_RULES` need assigned layouts."""

from __future__ import annotations

import numpy as np

from hlo_run.analysis.bitcast_kind import common_groups, reshape_is_bitcast, transpose_is_bitcast
from hlo_run.analysis.elementwise import is_element_operation
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo.values.literal import Array
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules, is_plain, scalar_of, without_dynamic_dims


def to_own_shape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(A), copy(A), bitcast(A) to the shape that A has => A; but not a copy that gives the entry's result a sharding."""
    value = i.operands[0].shape
    if i.opcode == "copy" and i.sharding is not None and i.is_root and rw.computation.is_entry:
        return None
    same = value == i.shape if rw.sees_layouts else value.compatible(i.shape)
    return i.operands[0] if same else None


def reshape_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(reshape(A)) => reshape(A); also for bitcasts and copies."""
    inner = i.operands[0]
    return rw.like(i, inner.operands) if inner.opcode == i.opcode else None


def reshape_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(broadcast(A)) => broadcast(A) if the reshape keeps the dimensions of A."""
    inner = i.operands[0]
    if inner.opcode != "broadcast" or 1 in inner.operands[0].shape.dims:
        return None
    moved = _kept_dims(inner.shape.dims, i.shape.dims)
    dims = [moved.get(d) for d in inner.dimensions]
    found = tuple(d for d in dims if d is not None)
    return rw.add("broadcast", i.shape, inner.operands, dimensions=found) if len(found) == len(dims) else None


def reshape_of_iota(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(iota) => iota if the reshape keeps the iota dimension."""
    inner = i.operands[0]
    if inner.opcode != "iota":
        return None
    dim = _kept_dims(inner.shape.dims, i.shape.dims).get(inner.iota_dimension)
    return rw.at(inner).add("iota", i.shape, iota_dimension=dim) if dim is not None else None


def _kept_dims(before: tuple[int, ...], after: tuple[int, ...]) -> dict[int, int]:
    """Map the dimensions, larger than 1, that a reshape neither splits nor merges to their new numbers."""
    if 0 in before:
        return {}
    groups = common_groups(before, after)
    return {ours[0]: theirs[0] for ours, theirs in groups if len(ours) == len(theirs) == 1}


def transpose_of_nothing(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(A), dimensions={0,1,2} => A."""
    is_identity = i.dimensions == tuple(range(i.shape.rank))
    return i.operands[0] if is_identity and not (rw.sees_layouts and i.operands[0].shape != i.shape) else None


def transpose_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(transpose(A)) => transpose(A)."""
    inner = i.operands[0]
    if inner.opcode != "transpose":
        return None
    dimensions = tuple(inner.dimensions[d] for d in i.dimensions)
    return rw.add("transpose", i.shape, inner.operands, dimensions=dimensions)


def transpose_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(broadcast(A)) => broadcast(A) if the dimensions of A keep their order."""
    inner = i.operands[0]
    if inner.opcode != "broadcast":
        return None
    dims = tuple(list(i.dimensions).index(d) for d in inner.dimensions)
    is_sorted = list(dims) == sorted(dims) and list(inner.dimensions) == sorted(inner.dimensions)
    return rw.bare.add("broadcast", i.shape, inner.operands, dimensions=dims) if is_sorted else None


def transpose_of_iota(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(iota) => iota."""
    inner = i.operands[0]
    if inner.opcode != "iota":
        return None
    return rw.add("iota", i.shape, iota_dimension=list(i.dimensions).index(inner.iota_dimension))


def transpose_of_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(A) => reshape(A) if only dimensions of size 1 move."""
    source = i.operands[0]
    real = [d for d in i.dimensions if source.shape.dims[d] != 1]
    return rw.add("reshape", i.shape, [source]) if real == sorted(real) else None


def broadcast_as_reshape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(A) that adds no element => reshape(A), or transpose(A) if it adds no dimension and changes their order."""
    value, dims = i.operands[0], list(i.dimensions)
    if value.shape.element_count != i.shape.element_count:
        return None
    if dims == sorted(dims):
        return rw.bare.add("reshape", i.shape, [value])
    if value.shape.rank != i.shape.rank:
        return None
    return rw.bare.add("transpose", i.shape, [value], dimensions=tuple(dims.index(d) for d in range(len(dims))))


def broadcast_after_users(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """tanh(broadcast(A)) => broadcast(tanh(A)); other operands must have the same broadcast, or be broadcast scalars."""
    if not i.shape.dims:
        return None
    source, changed = i.operands[0].shape, False
    for user in list(i.users):
        if not _may_follow(user, i) or not rw.fuel.take("algsimp"):
            continue
        narrow: list[HloInstruction] = []
        for operand in user.operands:
            value = operand.operands[0]
            if not value.shape.dims:
                shape = source.with_element_type(value.shape.element_type)
                value = rw.at(operand).add("broadcast", shape, [value], dimensions=())
            narrow.append(value)
        computed = rw.at(user).clone(user, narrow, source.with_element_type(user.shape.element_type))
        rw.replace_uses(user, rw.add("broadcast", user.shape, [computed], dimensions=i.dimensions))
        changed = True
    return i if changed else None


def _may_follow(user: HloInstruction, broadcast: HloInstruction) -> bool:
    if user.opcode not in _ELEMENTWISE or not is_element_operation(user) or not (user.users or user.is_root):
        return False
    if user.control_predecessors or not is_plain(user.shape):
        return False
    source = broadcast.operands[0].shape
    for operand in user.operands:
        if operand.opcode != "broadcast" or not is_plain(operand.shape):
            return False
        if operand.operands[0].shape.dims and (operand.operands[0].shape != source or operand.dimensions != broadcast.dimensions):
            return False
    return True


def users_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(broadcast(scalar)) => broadcast(scalar), for one user that only moves or takes elements."""
    scalar = i.operands[0]
    if scalar.shape.dims:
        return None
    for user in i.users:
        moves = user.opcode in _MOVES or (user.opcode == "sort" and user.shape.is_array)
        takes = user.opcode in ("slice", "dynamic-slice") and user.operands[0] is i
        if (not moves and not takes) or not (user.users or user.is_root) or user.control_predecessors:
            continue
        if not rw.fuel.take("algsimp"):
            return None
        made = rw.at(user).add("broadcast", without_dynamic_dims(user.shape), [scalar], dimensions=())
        rw.replace_uses(user, made)
        return i
    return None


def broadcast_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(broadcast(A)) => broadcast(A)."""
    inner = i.operands[0]
    if inner.opcode != "broadcast":
        return None
    dims = tuple(i.dimensions[d] for d in inner.dimensions)
    return rw.add("broadcast", i.shape, inner.operands, dimensions=dims)


def broadcast_of_iota(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(iota) => iota."""
    inner = i.operands[0]
    return rw.add("iota", i.shape, iota_dimension=i.dimensions[inner.iota_dimension]) if inner.opcode == "iota" else None


def broadcast_of_added_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(reshape(A)) => broadcast(A) if the reshape at most adds dimensions of size 1."""
    inner = i.operands[0]
    if inner.opcode != "reshape":
        return None
    source = inner.operands[0]
    kept: list[int] = []
    for d, size in enumerate(inner.shape.dims):
        if source.shape.dims[len(kept) : len(kept) + 1] == (size,):
            kept.append(d)
        elif size != 1:
            return None
    if len(kept) != source.shape.rank:
        return None
    return rw.add("broadcast", i.shape, [source], dimensions=tuple(i.dimensions[d] for d in kept))


def iota_of_one(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """iota along a dimension of size 1 => 0."""
    return rw.splat(0, i.shape) if i.shape.dims[i.iota_dimension] == 1 else None


def constant_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """constant({4, 4, 4}) => broadcast(constant(4))."""
    if not i.shape.is_array or i.shape.element_count < 2:
        return None
    literal = i.constant_array
    first = literal.reshape(-1)[0]
    # Compares bits, since zeros have signs, and NaN differs from itself.
    if not bool((_bits(literal) == _bits(np.asarray(first))).all()):
        return None
    return rw.spread(rw.constant(first, i.shape.element_type), i.shape)


def _bits(array: Array) -> Array:
    return array if array.dtype.kind in "biu" or array.dtype.itemsize > 8 else array.view(f"u{array.dtype.itemsize}")


def constant_that_counts(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """constant({0, 1, 2, 3}) => iota, constant({0, 2, 4}) => iota * 2, for integers."""
    if i.shape.rank != 1 or not i.shape.dtype.is_integer or i.shape.dtype.bits < 8 or i.shape.element_count < 2:
        return None
    literal = i.constant_array
    stride = int(literal[1])
    if int(literal[0]) != 0 or stride < 1 or stride * (len(literal) - 1) != int(literal[-1]):
        return None
    if not np.array_equal(literal, np.arange(len(literal)) * stride):
        return None
    iota = rw.add("iota", i.shape, iota_dimension=0)
    return iota if stride == 1 else rw.mul(iota, rw.splat(stride, i.shape))


def reverse_of_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reverse(A) along dimensions of size 1 alone => A."""
    return i.operands[0] if all(i.shape.dims[d] == 1 for d in i.dimensions) else None


def reshape_as_bitcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(A) => bitcast(A) if no byte moves."""
    return rw.add("bitcast", i.shape, i.operands) if reshape_is_bitcast(i.operands[0].shape, i.shape) else None


def transpose_as_bitcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """transpose(A) => bitcast(A) if no byte moves."""
    moves = not transpose_is_bitcast(i.operands[0].shape, i.shape, i.dimensions)
    return None if moves else rw.add("bitcast", i.shape, i.operands)


def copy_as_bitcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """copy(A) to another layout => bitcast(A) if no byte moves."""
    source = i.operands[0].shape
    if not source.is_array or source.minor_to_major == i.shape.minor_to_major:
        return None
    stays = transpose_is_bitcast(source, i.shape, tuple(range(source.rank)))
    return rw.add("bitcast", i.shape, i.operands) if stays else None


def bitcast_around_one_operand(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast(tanh(bitcast(A))) => bitcast(tanh(A)); also for other elementwise instructions of one operand and one type."""
    op = i.operands[0]
    if op.opcode not in _ELEMENTWISE or len(op.operands) != 1 or len(op.users) != 1 or op.operands[0].opcode != "bitcast":
        return None
    inner = op.operands[0]
    source = inner.operands[0]
    is_one_type = {i.shape.element_type, op.shape.element_type, inner.shape.element_type} == {source.shape.element_type}
    if not is_one_type or op.shape.minor_to_major != inner.shape.minor_to_major:
        return None
    return rw.add("bitcast", i.shape, [rw.clone(op, [source], source.shape)])


def bitcast_twice_to_own_shape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast(bitcast(A)) => A if the shape equals A's. XLA first makes one bitcast of A, which takes a name."""
    inner = i.operands[0]
    if inner.opcode != "bitcast" or inner.operands[0].shape != i.shape:
        return None
    module = rw.computation.module
    assert module is not None, "the computation is in a module"
    module.unique_instruction_name("bitcast")
    return inner.operands[0]


def bitcast_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast(broadcast(scalar)) => broadcast(scalar)."""
    inner = i.operands[0]
    scalar = scalar_of(inner)
    same_type = inner.shape.element_type == i.shape.element_type
    return rw.spread(scalar, i.shape) if same_type and inner.opcode == "broadcast" and scalar is not None else None


def bitcast_of_ordered_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast(broadcast(A)) => broadcast(A), if the bitcast only transposes and the dimensions of A keep their order."""
    inner = i.operands[0]
    if inner.opcode != "broadcast" or inner.shape.rank != i.shape.rank or not inner.dimensions:
        return None
    before, after = inner.shape.minor_to_major, i.shape.minor_to_major
    place = dict(zip(before, after, strict=True))
    if any(inner.shape.dims[dim] != i.shape.dims[place[dim]] for dim in before):
        return None
    dimensions = tuple(place[dim] for dim in inner.dimensions)
    if list(inner.dimensions) != sorted(inner.dimensions) or list(dimensions) != sorted(dimensions):
        return None
    return rw.add("broadcast", i.shape, inner.operands, dimensions=dimensions)


_ELEMENTWISE = ELEMENTWISE - opcode_set("copy map")
# These permute the elements of their operand.
_MOVES: frozenset[Opcode] = frozenset(("reshape", "reverse", "transpose"))
_BROADCAST = (
    broadcast_as_reshape,
    broadcast_of_added_ones,
    broadcast_after_users,
    users_of_one_value,
    broadcast_of_iota,
    broadcast_twice,
)
RULES: Rules = {
    "bitcast": (
        bitcast_around_one_operand,
        bitcast_twice_to_own_shape,
        reshape_twice,
        to_own_shape,
        bitcast_of_broadcast,
        bitcast_of_ordered_broadcast,
    ),
    "broadcast": _BROADCAST,
    "constant": (constant_of_one_value, constant_that_counts),
    "copy": (reshape_twice, to_own_shape),
    "iota": (iota_of_one,),
    "reverse": (reverse_of_ones,),
    "transpose": (transpose_of_nothing, transpose_twice),
}
# Before layout assignment.
FREE_RULES: Rules = {
    "reshape": (to_own_shape, reshape_twice, reshape_of_broadcast, reshape_of_iota),
    "transpose": (transpose_of_ones, transpose_of_broadcast, transpose_of_iota),
}
LAYOUT_RULES: Rules = {
    "copy": (copy_as_bitcast,),
    "reshape": (to_own_shape, reshape_twice, reshape_of_broadcast, reshape_as_bitcast),
    "transpose": (transpose_as_bitcast,),
}
