"""Replace the elements of a part that lie beyond the whole value, because the tiles do not divide it evenly."""

from __future__ import annotations

from collections.abc import Collection

from hlo_run.hlo.graph import HloInstruction
from hlo_run.sharding.partitioning.offsets import partition_offsets
from hlo_run.sharding.partitioning.state import Builder, Part
from hlo_run.sharding.values.make import divides_evenly


def fill_excess(part: Part, fill: HloInstruction, dims: Collection[int] | None = None, from_left: Collection[int] = ()) -> Part:
    """Return the part with `fill` in the excess along `dims` (default: all), which for dimensions `from_left` is in front."""
    sharding, shape, b = part.leaf, part.hlo.shape, part.builder
    if sharding.tiles is None or divides_evenly(part.base, sharding):
        return part
    index = shape.with_element_type("s32")
    offsets = partition_offsets(b, part.base, sharding, part.state.partition_id)
    mask: HloInstruction | None = None
    for dim in range(shape.rank):
        whole, count = part.base.dims[dim], sharding.dims[dim]
        if whole % count == 0 or (dims is not None and dim not in dims):
            continue
        places = b.binary("add", b.add("iota", index, iota_dimension=dim), b.filled(offsets[dim], index))
        limit = index.dims[dim] * count - whole if dim in from_left else whole
        test = b.compare(places, b.filled(b.constant(limit, "s32"), index), "GE" if dim in from_left else "LT")
        mask = test if mask is None else b.binary("and", mask, test)
    if mask is None:
        return part
    fill = as_type_of(b, fill, part.hlo)
    return part.with_value(b.select(mask, part.hlo, b.filled(fill, shape)), sharding)


def as_type_of(b: Builder, fill: HloInstruction, value: HloInstruction) -> HloInstruction:
    """Return the fill in the element type of a value; for a convolution in the type of its result."""
    element_type = value.shape.element_type
    if fill.shape.element_type == element_type:
        return fill
    return b.add("convert", fill.shape.with_element_type(element_type), [fill])


def zero_excess(part: Part, dims: Collection[int] | None = None) -> Part:
    """Return the part with zeros in the excess along `dims` (default: all)."""
    return fill_excess(part, part.builder.constant(0, part.hlo.shape.element_type), dims)
