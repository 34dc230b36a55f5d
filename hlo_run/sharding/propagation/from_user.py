"""The sharding that a user suggests for one of its operands."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding, SingleSharding, TupleSharding
from hlo_run.sharding.analysis.dot_dims import operand_sharding, product_dims
from hlo_run.sharding.analysis.indexed_dims import (
    Indexed,
    indices_from_slices,
    operand_from_result,
    slices_from_indices,
    updates_from_result,
)
from hlo_run.sharding.propagation.state import is_divided, leaf_sharding, moves_at, set_sharding
from hlo_run.sharding.values.make import REPLICATED, elements_of, for_shape, leaf_count, part_of, with_tiles
from hlo_run.sharding.values.merge import common, is_more_specific, merged
from hlo_run.sharding.values.moves import all_data_replicated, remove_dims, reverse, through_reshape
from hlo_run.sharding.values.replicate import replicate_dims, transpose

_MOST_EAGER = 2**63 - 1


def sharding_from_user(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    """Return the sharding that `user`, which has one, suggests for its operand at this level of eagerness, or None."""
    if not moves_at(user, level) or not is_divided(user):
        return None
    rule = _RULES.get(user.opcode)
    if rule is not None:
        return rule(instruction, user, level)
    return user.sharding if same_dims(instruction.shape, user.shape) else None


def same_dims(one_shape: Shape, two: Shape) -> bool:
    """True if two shapes are equal up to element types and layouts."""
    if one_shape.is_tuple or two.is_tuple:
        if not (one_shape.is_tuple and two.is_tuple) or len(one_shape.tuple_shapes) != len(two.tuple_shapes):
            return False
        return all(same_dims(a, b) for a, b in zip(one_shape.tuple_shapes, two.tuple_shapes, strict=True))
    return one_shape.is_array == two.is_array and one_shape.dims == two.dims


def look_ahead(instruction: HloInstruction) -> SingleSharding | None:
    """Return the sharding that the end of a chain of only users suggests, through users without a sharding, or None."""
    chain = [instruction]
    while len(chain[-1].users) == 1:
        chain.append(chain[-1].users[0])
        if chain[-1].sharding is not None:
            break
    if len(chain) < 2 or chain[-1].sharding is None:
        return None
    found: Sharding | None = None
    lent: list[HloInstruction] = []
    for place in range(len(chain) - 1, 0, -1):
        found = sharding_from_user(chain[place - 1], chain[place], _MOST_EAGER)
        if found is None or place == 1:
            break
        set_sharding(chain[place - 1], found)
        lent.append(chain[place - 1])
    for middle in lent:
        del middle.attrs["sharding"]
    return elements_of(found)[0] if found is not None else None


def broadcast_operand(broadcast: HloInstruction) -> SingleSharding:
    """Return the sharding that a broadcast suggests for its operand."""
    sharding = leaf_sharding(broadcast)
    if sharding.tiles is None:
        return sharding
    new = [dim for dim in range(broadcast.shape.rank) if dim not in broadcast.dimensions]
    kept = replicate_dims(sharding, new)
    return remove_dims(kept, new) if kept.tiles is not None else kept


def _broadcast(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del instruction, level
    return broadcast_operand(user)


def _concatenate(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del instruction
    return None if level == 0 else user.sharding


def _product(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    dims = product_dims(user)
    if dims.spatial:
        return None
    index = user.operands.index(instruction)
    if index > 1:
        return None
    return operand_sharding(user.sharding, user.operands[1 - index].sharding, index, dims, may_combine=level > 0)


def _dynamic_slice(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    sharding = leaf_sharding(user)
    if level == 0:
        return None
    if sharding.is_replicated or (user.opcode == "dynamic-update-slice" and instruction is user.operands[0]):
        return sharding
    operand = user.operands[0 if user.opcode == "dynamic-slice" else 1]
    if instruction is not operand:
        return None
    return replicate_dims(sharding, [d for d, n in enumerate(user.shape.dims) if n != operand.shape.dims[d]])


def _reduce_window(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    inputs = user.operands[: len(user.operands) // 2]
    if instruction not in inputs or user.sharding is None:
        return None
    return part_of(user.sharding, user.shape, inputs.index(instruction)) if user.shape.is_tuple else user.sharding


def _reshape(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    return through_reshape(user.shape.dims, instruction.shape.dims, leaf_sharding(user))


def _pad(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    return user.sharding if instruction is user.operands[0] else None


def _slice(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del instruction, level
    return user.sharding


def _transpose(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del instruction, level
    back = [user.dimensions.index(dim) for dim in range(len(user.dimensions))]
    return transpose(leaf_sharding(user), back)


def _tuple(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    assert user.sharding is not None
    places = [n for n, operand in enumerate(user.operands) if operand is instruction]
    best = part_of(user.sharding, user.shape, places[0])
    for place in places[1:]:
        other = part_of(user.sharding, user.shape, place)
        if is_more_specific(other, best):
            best = other
    return best


def _element(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    assert user.sharding is not None
    parts = elements_of(user.sharding)
    begin = sum(leaf_count(shape) for shape in instruction.shape.tuple_shapes[: user.tuple_index])
    if instruction.sharding is not None:
        leaves = list(elements_of(instruction.sharding))
        if not isinstance(instruction.sharding, TupleSharding):
            leaves *= leaf_count(instruction.shape)
    else:
        leaves = [all_data_replicated(parts[0], leaf.rank) for _, leaf in instruction.shape.leaves()]
        leaves = leaves or [REPLICATED]
    leaves[begin : begin + len(parts)] = parts
    return for_shape(instruction.shape, leaves)


def _reduce(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    if not instruction.shape.dims or user.sharding is None:
        return None
    count = len(user.operands) // 2
    index = user.operands.index(instruction)
    if index >= count:
        return None
    whole = part_of(user.sharding, user.shape, index) if user.shape.is_tuple else user.sharding
    sharding = elements_of(whole)[0]
    if sharding.tiles is not None:
        kept = iter(sharding.dims)
        rank = instruction.shape.rank
        dims = [1 if dim in user.dimensions else next(kept) for dim in range(rank)]
        sharding = with_tiles(sharding, sharding.tiles.reshape((*dims, *kept)))
    for other in user.operands[:count]:
        if other is not instruction and other.sharding is not None:
            found = _merge_plain(leaf_sharding(other), sharding)
            sharding = found or sharding
    return sharding


def _merge_plain(new: SingleSharding, old: SingleSharding) -> SingleSharding | None:
    return None if new.is_manual or old.is_manual else merged(new, old, old.tile_count + 1)


def _sort(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    assert user.sharding is not None
    if not isinstance(user.sharding, TupleSharding):
        return user.sharding
    index = user.operands.index(instruction)
    return part_of(user.sharding, user.shape, index) if index < len(user.shape.tuple_shapes) else None


def _reverse(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del instruction, level
    return reverse(leaf_sharding(user), user.dimensions)


def _gather(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    if instruction is user.operands[1]:
        return indices_from_slices(leaf_sharding(user), Indexed.of(user))
    return operand_from_result(leaf_sharding(user), Indexed.of(user))


def _scatter(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    assert user.sharding is not None
    count = len(user.operands) // 2
    index = user.operands.index(instruction)
    what = Indexed.of(user)
    if index < count:
        return part_of(user.sharding, user.shape, index) if user.shape.is_tuple else user.sharding
    if index == count:
        updates = [update for update in user.operands[count + 1 :] if is_divided(update)]
        return common([indices_from_slices(leaf_sharding(update), what) for update in updates]) if updates else None
    indices = user.operands[count]
    from_indices = slices_from_indices(leaf_sharding(indices), what) if is_divided(indices) else REPLICATED
    part = part_of(user.sharding, user.shape, index - count - 1) if user.shape.is_tuple else user.sharding
    from_output = updates_from_result(elements_of(part)[0], what)
    if from_output is not None:
        found = _merge_plain(from_indices, from_output)
        if not (found or from_output).is_whole:
            return found or from_output
    return None if from_indices.is_whole else from_indices


def _custom_call(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    del level
    return user.sharding if same_dims(instruction.shape, user.shape) else None


def _outfeed(instruction: HloInstruction, user: HloInstruction, level: int) -> Sharding | None:
    """The sharding of an outfeed lists the leaves of the value, then the token."""
    del level
    if instruction is not user.operands[0] or user.sharding is None:
        return None
    return part_of(user.sharding, Shape.make_tuple(tuple(operand.shape for operand in user.operands)), 0)


_RULES: dict[Opcode, Callable[[HloInstruction, HloInstruction, int], Sharding | None]] = {
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "convolution": _product,
    "dot": _product,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_slice,
    "reduce-window": _reduce_window,
    "reshape": _reshape,
    "pad": _pad,
    "slice": _slice,
    "transpose": _transpose,
    "tuple": _tuple,
    "get-tuple-element": _element,
    "outfeed": _outfeed,
    "reduce": _reduce,
    "scan": _sort,
    "sort": _sort,
    "reverse": _reverse,
    "gather": _gather,
    "scatter": _scatter,
    "custom-call": _custom_call,
}
