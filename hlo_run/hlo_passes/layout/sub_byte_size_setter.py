"""Set the element size in the layouts of types below 8 bits, whose elements are packed.

    p = s4[6]{0} parameter(0)   =>   p = s4[6]{0:E(4)} parameter(0)

XLA's `SubByteNormalization`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.attributes.table import EntryLayout
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class SubByteSizeSetter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sub-byte-size-setter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations and the entry's layout in place."""
        del ctx
        known: dict[Shape, Shape] = {}
        version = module.version
        for instruction in module.instructions:
            shape = instruction.shape
            packed = known.get(shape)
            if packed is None:
                packed = known[shape] = _packed(shape)
            if packed is not shape:
                instruction.shape = packed
        layout = module.entry_layout
        if module.version != version and layout is not None:
            parameters = tuple(_packed(shape) for shape in layout.parameters)
            module.attrs["entry_computation_layout"] = EntryLayout(parameters, _packed(layout.result))


def _packed(shape: Shape) -> Shape:
    """Return the shape with element sizes, the same object if nothing changes."""
    if shape.is_tuple:
        elements = tuple(_packed(element) for element in shape.tuple_shapes)
        is_same = all(one is two for one, two in zip(elements, shape.tuple_shapes, strict=True))
        return shape if is_same else replace(shape, tuple_shapes=elements)
    if not shape.is_array or shape.dtype.bits >= 8 or shape.element_type == "pred":
        return shape
    extra = f"E({shape.dtype.bits})"
    if shape.layout is not None and extra in shape.layout.extra:
        return shape
    before = shape.layout.extra if shape.layout else ""
    return replace(shape, layout=Layout(shape.minor_to_major, before + extra))
