"""Handlers of reductions, reductions of windows, and sorts."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace
from hlo_run.sharding.partitioning.collectives import all_reduce_dims
from hlo_run.sharding.partitioning.grouping import group_state
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.masks import fill_excess
from hlo_run.sharding.partitioning.state import Part
from hlo_run.sharding.partitioning.window import Windowed, windowed
from hlo_run.sharding.values.groups import group_on_dims
from hlo_run.sharding.values.make import elements_of, same_for_all, shard_shape
from hlo_run.sharding.values.moves import move_tiles, remove_dims, target_for_tiles
from hlo_run.sharding.values.replicate import replicate_dims


def reduce(v: Visit) -> Part:
    """Reduce each tile, then over the devices whose tiles lie along the reduced dimensions."""
    if all(leaf.kind == "maximal" for leaf in elements_of(v.sharding)):
        return v.by_default()
    b, hlo = v.b, v.hlo
    count = len(v.parts) // 2
    dims = hlo.dimensions
    inputs: list[Part] = []
    inits: list[HloInstruction] = []
    for number in range(count):
        inits.append(v.parts[count + number].replicate().hlo)
        part = v.parts[number]
        if number:
            part = part.reshard(inputs[0].sharding)
        if part.leaf.tiles is not None:
            part = fill_excess(part, inits[number], dims)
        inputs.append(part)
    sharding = inputs[0].leaf
    kept = tuple(size for dim, size in enumerate(inputs[0].hlo.shape.dims) if dim not in dims)
    shape = _reduced_shape(hlo.shape, kept)
    made = b.add("reduce", shape, [*(part.hlo for part in inputs), *inits], {"to_apply": [hlo.to_apply]}, dimensions=tuple(dims))
    if sharding.tiles is not None and any(sharding.dims[dim] > 1 for dim in dims):
        if made.shape.is_tuple:
            made = _reduce_gathered(v, made, inputs, inits)
        else:
            made = all_reduce_dims(v.state, made, sharding, dims, hlo.to_apply)
    after = replicate_dims(sharding, dims)
    after = remove_dims(after, dims) if after.tiles is not None else after
    return v.made(made, same_for_all(hlo.shape, after))


def _reduced_shape(shape: Shape, dims: tuple[int, ...]) -> Shape:
    if shape.is_tuple:
        return Shape.make_tuple(tuple(Shape.array(part.element_type, dims) for part in shape.tuple_shapes))
    return Shape.array(shape.element_type, dims)


def _reduce_gathered(v: Visit, local: HloInstruction, inputs: list[Part], inits: list[HloInstruction]) -> HloInstruction:
    """Gather the devices' results of a reduction of several arrays, and reduce them again."""
    b, dims, sharding = v.b, v.hlo.dimensions, inputs[0].leaf
    groups = [dim for dim in range(inputs[0].base.rank) if dim not in dims]
    if sharding.subgroups:
        groups.append(inputs[0].base.rank)
    grouped = group_on_dims(sharding, groups)
    state = group_state(inputs[0].state, grouped.devices)
    gathered: list[HloInstruction] = []
    for number, part in enumerate(inputs):
        own = tuple(1 if dim in dims else size for dim, size in enumerate(part.hlo.shape.dims))
        whole = tuple(sharding.dims[dim] if dim in dims else size for dim, size in enumerate(part.hlo.shape.dims))
        one = b.add("reshape", replace(part.hlo.shape, dims=own), [b.get_tuple_element(local, number)])
        gathered.append(Part(one, replace(part.hlo.shape, dims=whole), grouped.sharding, state).replicate().hlo)
    return b.add("reduce", local.shape, [*gathered, *inits], {"to_apply": [v.hlo.to_apply]}, dimensions=tuple(dims))


def reduce_window(v: Visit) -> Part:
    """Reduce the windows of each tile, with the halos that they reach into."""
    leaves = elements_of(v.sharding)
    # XLA fails on results that are divided in different ways.
    if v.is_whole or not all(leaf.is_same(leaves[0]) for leaf in leaves) or 0 in v.parts[0].base.dims:
        return v.by_default()
    count = len(v.parts) // 2
    parts = v.parts[:count]
    if any(not part.leaf.is_same(parts[0].leaf) for part in parts):  # they would get halos of different sizes, and XLA fails
        parts = [part.reshard(v.leaf) for part in parts]
    found: list[Windowed] = []
    inits: list[HloInstruction] = []
    for number in range(count):
        init = v.parts[count + number].replicate().hlo
        one = windowed(parts[number], v.hlo.window, v.element_sharding(number), init)
        if one is None:
            return v.by_default()
        found.append(one)
        inits.append(init)
    wanted = shard_shape(v.hlo.shape, v.sharding)
    window = found[0].window
    dims: list[int] = []
    for size, dim in zip(found[0].value.shape.dims, window.dims, strict=True):
        padded = 1 + (size - 1) * dim.base_dilation + dim.pad_low + dim.pad_high
        dims.append((padded - (1 + (dim.size - 1) * dim.window_dilation)) // dim.stride + 1)

    first_leaf = next(leaf for _, leaf in wanted.leaves())
    if (found[0].starts is None or wanted.is_tuple) and tuple(dims) != first_leaf.dims:
        return v.by_default()  # paddings below 0 of a dilated value

    def sized(shape: Shape) -> Shape:
        return replace(shape, dims=tuple(dims))

    made = v.b.clone(v.hlo, wanted.map_leaves(sized), [*(one.value for one in found), *inits], "reduce-window")
    made.attrs["window"] = window
    if found[0].starts is not None and not v.hlo.shape.is_tuple:
        made = v.b.dynamic_slice(made, found[0].starts, wanted.dims)
    return v.made(made)


def sort(v: Visit) -> Part:
    """Sort tiles of which none is divided along the sorted dimension: those tiles move to another dimension, or are gathered."""
    leaves = elements_of(v.sharding)
    is_same = all(leaf.is_same(leaves[0]) for leaf in leaves)
    (dim,) = v.hlo.dimensions
    first = leaves[0]
    if any(leaf.kind == "maximal" for leaf in leaves) or not is_same or first.tiles is None:
        return v.by_default()
    shape = v.hlo.operands[0].shape
    if first.dims[dim] == 1:
        return v.made(v.clone([part.reshard(first).hlo for part in v.parts]))
    if shape.rank < 2:
        return v.by_default()
    target = target_for_tiles(shape.dims, first, dim, range(shape.rank))
    between = move_tiles(first, dim, target) if target is not None else replicate_dims(first, [dim])
    wanted = same_for_all(v.hlo.shape, between)
    return v.made(v.clone([part.reshard(between).hlo for part in v.parts], wanted), wanted)
