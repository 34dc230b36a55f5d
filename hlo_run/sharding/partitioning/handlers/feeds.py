"""Handlers of infeed and outfeed: every device takes and gives its tile.

Tiles of several sizes need a branch per size, and the number of the partition chooses it:

    x = (f32[9], token[]) infeed(t), sharding={{devices=[2]<=[2]}, {replicated}}
        =>  x = (f32[5], token[]) conditional(convert(partition-id), t, t), branch_computations={five, four}

The branch of four elements pads what its infeed takes; that of an outfeed slices what it gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.artifact.division import FedArray
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import Sharding
from hlo_run.records import replace
from hlo_run.sharding.analysis.division import division_of
from hlo_run.sharding.partitioning.handlers.one_device import on_one_device, only_device, zeros
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.offsets import look_up
from hlo_run.sharding.partitioning.state import Builder, Part
from hlo_run.sharding.values.make import (
    divides_evenly,
    elements_of,
    for_shape,
    is_manual,
    leaf_count,
    offsets_of,
    part_of,
    same_for_all,
    shard_shape,
)

_EMPTY = Shape.make_tuple(())


def infeed(v: Visit) -> Part:
    """Handle an infeed. Raises Unsupported if only one device runs it while others run another infeed."""
    whole, token_shape = v.hlo.shape.tuple_shapes
    token = v.parts[0].hlo
    sharding = part_of(v.sharding, v.hlo.shape, 0)
    shape = Shape.make_tuple((shard_shape(whole, sharding), token_shape))
    if not any(leaf.is_array for _, leaf in whole.leaves()) or _have_one_size(whole, sharding):
        made = v.b.clone(v.hlo, shape, [token])
        _note_whole(made, whole, sharding, v.partitions)
        return v.made(made)
    device = only_device(v)
    if device is not None:
        _verify_alone(v)
        return on_one_device(v, device)
    sizes = [_own_shape(whole, sharding, device) for device in range(v.partitions)]
    branches: list[Builder] = []
    for number, own in enumerate(dict.fromkeys(sizes)):
        b = _branch(v, f"infeed_branch_{number}")
        given = b.add("parameter", token_shape, name="infeed_token_param", parameter_number=0)
        made = b.computation.root = b.clone(v.hlo, Shape.make_tuple((own, token_shape)), [given])
        _note_whole(made, whole, sharding, v.partitions)
        if made.shape != shape:
            b.computation.root = b.tuple(
                [_padded(b, b.get_tuple_element(made, 0), shape.tuple_shapes[0]), b.get_tuple_element(made, 1)]
            )
        branches.append(b)
    return v.made(_choose(v, sizes, branches, token, shape))


def outfeed(v: Visit) -> Part:
    """Handle an outfeed. Raises Unsupported if its arrays are on several devices."""
    device = only_device(v)
    if device is not None:
        return on_one_device(v, device)
    token = v.parts[1].hlo
    whole = v.parts[0].base
    sharding = same_for_all(whole, elements_of(v.sharding)[0]) if is_manual(v.sharding) else _sharding_of_data(v, whole)
    operand = v.parts[0].reshard(sharding).hlo
    if _have_one_size(whole, sharding):
        return v.made(_give(v, v.b, operand, token))
    sizes = [_own_shape(whole, sharding, device) for device in range(v.partitions)]
    given = v.b.tuple([operand, token])
    branches: list[Builder] = []
    for number, own in enumerate(dict.fromkeys(sizes)):
        b = _branch(v, f"outfeed_branch_{number}")
        parameter = b.add("parameter", given.shape, name="outfeed_token_param", parameter_number=0)
        data, inner_token = b.get_tuple_element(parameter, 0), b.get_tuple_element(parameter, 1)
        b.computation.root = _give(v, b, _cut(b, data, own, v.hlo), inner_token)
        branches.append(b)
    return v.made(_choose(v, sizes, branches, given, token.shape))


def _branch(v: Visit, name: str) -> Builder:
    made = Builder(HloComputation(name))
    made.origin = v.hlo
    return made


def _have_one_size(whole: Shape, sharding: Sharding) -> bool:
    """True if the parts of all devices have the same shape: no array is on one device, and tiles divide evenly."""
    return all(leaf.kind != "maximal" for leaf in elements_of(sharding)) and divides_evenly(whole, sharding)


def _own_shape(whole: Shape, sharding: Sharding, device: int) -> Shape:
    """Return the part of a value that a device really has; `()` is an array on another device."""
    if whole.is_tuple:
        parts = [_own_shape(part, part_of(sharding, whole, n), device) for n, part in enumerate(whole.tuple_shapes)]
        return Shape.make_tuple(tuple(parts))
    (leaf,) = elements_of(sharding)
    if leaf.kind == "maximal" and leaf.device != device:
        return _EMPTY
    if leaf.kind != "tiled":
        return whole
    begins, sizes = offsets_of(whole, leaf, device), shard_shape(whole, leaf).dims
    dims = (min(size, end - begin) for begin, size, end in zip(begins, sizes, whole.dims, strict=True))
    return replace(whole, dims=tuple(dims))


def _note_whole(made: HloInstruction, whole: Shape, sharding: Sharding, partitions: int) -> None:
    """Let an infeed know the arrays that it takes its tiles of."""
    leaves = [(shape, leaf) for (_, shape), leaf in zip(whole.leaves(), elements_of(sharding), strict=False) if shape.is_array]
    if any(leaf.kind in ("tiled", "maximal") for _, leaf in leaves):
        made.attrs["fed"] = tuple(FedArray(shape.element_type, division_of(shape, leaf, partitions)) for shape, leaf in leaves)


def _verify_alone(v: Visit) -> None:
    """Raise Unsupported if devices would take other arrays of the sequence that is given for all of them."""
    others = [i for i in v.state.module.instructions if i.opcode == "infeed" and i is not v.hlo and i.sharding != v.hlo.sharding]
    if others:
        raise Unsupported(
            f"'infeed' on one device beside %{others[0].name} on other devices",
            v.hlo.where,
            hint="give all infeeds of the module one sharding",
            notes=(f"instruction %{v.hlo.name}",),
        )


def _padded(b: Builder, value: HloInstruction, wanted: Shape) -> HloInstruction:
    """Return a value with zeros behind its arrays, and in place of those on another device."""
    if value.shape == wanted:
        return value
    if value.shape.tuple_shapes:
        return b.tuple([_padded(b, b.get_tuple_element(value, n), part) for n, part in enumerate(wanted.tuple_shapes)])
    if not value.shape.is_array:
        return zeros(b, wanted)
    edges = [(0, size - own, 0) for own, size in zip(value.shape.dims, wanted.dims, strict=True)]
    return b.pad(value, b.constant(0, value.shape.element_type), edges)


def _cut(b: Builder, value: HloInstruction, wanted: Shape, outfeed: HloInstruction) -> HloInstruction:
    """Return a value without the padding of its arrays."""
    if value.shape == wanted:
        return value
    if value.shape.tuple_shapes:
        return b.tuple([_cut(b, b.get_tuple_element(value, n), part, outfeed) for n, part in enumerate(wanted.tuple_shapes)])
    if not wanted.is_array:
        raise Unsupported("'outfeed' of arrays on different devices", outfeed.where, notes=(f"instruction %{outfeed.name}",))
    return b.slice(value, [0] * wanted.rank, wanted.dims)


def _sharding_of_data(v: Visit, whole: Shape) -> Sharding:
    """Return the sharding of an outfeed's data; the outfeed's sharding may have one more element, for the token."""
    leaves, count = elements_of(v.sharding), leaf_count(whole)
    return same_for_all(whole, leaves[0]) if len(leaves) == 1 else for_shape(whole, leaves[:count])


def _give(v: Visit, b: Builder, data: HloInstruction, token: HloInstruction) -> HloInstruction:
    made = b.clone(v.hlo, v.hlo.shape, [data, token])
    given = v.hlo.outfeed_shape
    if isinstance(given, Shape):
        made.attrs["outfeed_shape"] = data.shape.in_layout_of(given)
    return made


def _choose(
    v: Visit, sizes: Sequence[Shape], branches: Sequence[Builder], operand: HloInstruction, shape: Shape
) -> HloInstruction:
    """Add the conditional that runs the branch for the partition's size, the n-th one for the n-th different size."""
    b = v.b
    if len(branches) == v.partitions:
        chosen = b.add("convert", Shape.array("s32", ()), [v.state.partition_id])
    else:
        numbers = {size: number for number, size in enumerate(dict.fromkeys(sizes))}
        chosen = look_up(b, [numbers[size] for size in sizes], "s32", v.state.partition_id)
    called = [v.state.module.add_computation(branch.computation) for branch in branches]
    return b.add("conditional", shape, [chosen, *[operand] * len(branches)], {"branch_computations": called})
