"""Algebraic rules of data movement, iotas and constants. Those of `LAYOUT_RULES` need assigned layouts."""

from __future__ import annotations

import numpy as np

from hlo_run.analysis.bitcast_kind import common_groups, reshape_is_bitcast, transpose_is_bitcast
from hlo_run.analysis.elementwise import is_element_operation
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo.values.literal import Array
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rule, Rules, scalar_of


def to_own_shape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(A), copy(A), bitcast(A) to the shape that A has => A."""
    value = i.operands[0].shape
    is_result = i.is_root and rw.computation.is_entry
    if is_result and i.opcode == "copy" and i.attrs.get("sharding") != i.operands[0].attrs.get("sharding"):
        return None
    same = value == i.shape if rw.sees_layouts or is_result else value.compatible(i.shape)
    return i.operands[0] if same else None


def reshape_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(reshape(A)) => reshape(A); also for bitcasts and copies."""
    inner = i.operands[0]
    return rw.like(i, inner.operands) if inner.opcode == i.opcode else None


def move_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reshape(broadcast(scalar)) => broadcast(scalar); also for other opcodes that move elements."""
    value = i.operands[0]
    is_splat = value.opcode == "broadcast" and not value.operands[0].shape.dims
    return rw.spread(value.operands[0], i.shape) if is_splat else None


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
    return rw.add("iota", i.shape, iota_dimension=dim) if dim is not None else None


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
    return rw.add("broadcast", i.shape, inner.operands, dimensions=dims) if list(dims) == sorted(dims) else None


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
    return rw.reshape(source, i.shape.dims) if real == sorted(real) and source.shape.dims != i.shape.dims else None


def broadcast_to_own_shape(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(A) that adds no dimension => A; that adds only dimensions of size 1 => reshape(A)."""
    value, dims = i.operands[0], list(i.dimensions)
    if value.shape.element_count != i.shape.element_count or dims != sorted(dims):
        return None
    return value if value.shape.dims == i.shape.dims else rw.reshape(value, i.shape.dims)


def broadcast_twice(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(broadcast(A)) => broadcast(A)."""
    inner = i.operands[0]
    if inner.opcode != "broadcast":
        return None
    dims = tuple(i.dimensions[d] for d in inner.dimensions)
    return rw.add("broadcast", i.shape, inner.operands, dimensions=dims)


def broadcast_of_iota(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(iota) => iota, unless a user will be computed before the broadcast (`compute_before_broadcast`)."""
    inner = i.operands[0]
    if inner.opcode != "iota" or any(_computes_before(user) for user in i.users):
        return None
    return rw.add("iota", i.shape, iota_dimension=i.dimensions[inner.iota_dimension])


def broadcast_of_added_ones(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """broadcast(reshape(A)) => broadcast(A) if the reshape only adds dimensions of size 1."""
    inner = i.operands[0]
    if inner.opcode != "reshape":
        return None
    source = inner.operands[0]
    kept = [d for d, size in enumerate(inner.shape.dims) if size != 1]
    if tuple(inner.shape.dims[d] for d in kept) != source.shape.dims or inner.shape.rank == source.shape.rank:
        return None
    dims = tuple(i.dimensions[d] for d in kept)
    return rw.add("broadcast", i.shape, [source], dimensions=dims)


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


def compute_before_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """tanh(broadcast(A)) => broadcast(tanh(A)); all operands must have the same broadcast, or be broadcast scalars."""
    wide = [operand for operand in i.operands if operand.opcode == "broadcast"]
    if not wide or len(wide) != len(i.operands) or not is_element_operation(i):
        return None
    full = next((w for w in wide if w.operands[0].shape.dims), wide[0])
    source, dims = full.operands[0].shape, full.dimensions
    narrow: list[HloInstruction] = []
    for operand in wide:
        value = operand.operands[0]
        if operand.dimensions == dims and value.shape.dims == source.dims:
            narrow.append(value)
        elif not value.shape.dims:
            narrow.append(rw.spread(value, source))
        else:
            return None
    computed = rw.like(i, narrow, source.with_element_type(i.shape.element_type))
    return rw.add("broadcast", i.shape, [computed], dimensions=dims)


def _computes_before(user: HloInstruction) -> bool:
    """Return True if all operands have the same broadcast or are broadcast scalars, at least one not a scalar."""
    if user.opcode not in _SINK or any(operand.opcode != "broadcast" for operand in user.operands):
        return False
    full = [o for o in user.operands if o.operands[0].shape.dims]
    return len({(o.dimensions, o.operands[0].shape.dims) for o in full}) == 1


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


def bitcast_of_broadcast(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """bitcast(broadcast(scalar)) => broadcast(scalar)."""
    inner = i.operands[0]
    scalar = scalar_of(inner)
    same_type = inner.shape.element_type == i.shape.element_type
    return rw.spread(scalar, i.shape) if same_type and inner.opcode == "broadcast" and scalar is not None else None


_SINK: dict[str, tuple[Rule, ...]] = dict.fromkeys(sorted(ELEMENTWISE - {"copy", "map"}), (compute_before_broadcast,))
RULES: Rules = {
    "bitcast": (to_own_shape, reshape_twice, bitcast_of_broadcast),
    "constant": (constant_of_one_value, constant_that_counts),
    "copy": (to_own_shape, reshape_twice, move_of_one_value),
    "iota": (iota_of_one,),
    "reverse": (reverse_of_ones, move_of_one_value),
    "transpose": (transpose_of_nothing, transpose_twice, move_of_one_value),
}
# Before layout assignment.
FREE_RULES: Rules = {
    **_SINK,
    "broadcast": (broadcast_to_own_shape, broadcast_of_added_ones, broadcast_of_iota, broadcast_twice),
    "reshape": (to_own_shape, reshape_twice, move_of_one_value, reshape_of_broadcast, reshape_of_iota),
    "transpose": (transpose_of_broadcast, transpose_of_iota, transpose_of_ones),
}
LAYOUT_RULES: Rules = {
    "copy": (copy_as_bitcast,),
    "reshape": (reshape_of_broadcast, reshape_as_bitcast),
    "transpose": (transpose_as_bitcast,),
}
