"""Handler of dots."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import Window
from hlo_run.hlo.values.shape import Shape
from hlo_run.sharding.analysis.dot_dims import product_dims
from hlo_run.sharding.partitioning.handlers.product import Product
from hlo_run.sharding.partitioning.handlers.product_groups import partition
from hlo_run.sharding.partitioning.handlers.visit import Visit
from hlo_run.sharding.partitioning.state import Part


def dot(v: Visit) -> Part:
    """Handle a dot."""
    if v.leaf.kind == "maximal":
        return v.by_default()
    dims = product_dims(v.hlo)

    def multiply(lhs: Part, rhs: Part, window: Window | None = None) -> HloInstruction:
        del window
        sizes = [0] * dims.output_rank
        for group in (*dims.batch, *dims.lhs_free):
            sizes[group.output] = lhs.hlo.shape.dims[group.lhs]
        for group in dims.rhs_free:
            sizes[group.output] = rhs.hlo.shape.dims[group.rhs]
        return lhs.builder.clone(v.hlo, Shape.array(v.hlo.shape.element_type, tuple(sizes)), [lhs.hlo, rhs.hlo], v.hlo.opcode)

    lhs, rhs = v.parts
    if lhs.hlo is rhs.hlo:
        rhs = rhs.with_value(v.b.copy(rhs.hlo), rhs.sharding)
    return v.made(partition(Product(lhs, rhs, v.hlo.shape, v.leaf, dims, v.partitions, multiply, v.hlo)))
