"""The module that a reference platform gets: without choices for the platform under test, as in XLA's tools."""

from __future__ import annotations

import math

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo_passes.simplifiers.despecializer import Despecializer
from hlo_run.records import replace


def despecialized(module: HloModule) -> HloModule:
    """Return a copy without choices for a platform, named as XLA names its reference module.

    Source: `PrepareReferenceModule`, which runs `Despecializer`.
    """
    plain = module.clone()
    plain.name = f"{module.name}-reference"
    Despecializer().apply(None, plain)
    return plain


def xla_cpu_text(module: HloModule) -> str:
    """Return the text of a despecialised module for XLA:CPU: default layouts, no bitcasts and no aliases of parameters.

    XLA's conversion to StableHLO, the way into its CPU compiler, takes neither bitcasts nor aliases of elements of tuples.
    """
    plain = module.clone()
    for attribute in ("input_output_alias", "buffer_donor", "entry_computation_layout"):
        plain.attrs.pop(attribute, None)
    plain.has_default_entry_layout = True
    for bitcast in [i for i in plain.instructions if i.opcode == "bitcast"]:
        if bitcast.shape.dtype.bits == bitcast.operands[0].shape.dtype.bits:
            plain.replace(bitcast, _rearranged(bitcast))
            remove_unused([bitcast])
    for instruction in plain.instructions:
        instruction.shape = _with_default_layouts(instruction.shape)
    return module_to_string(plain, FULL)


def _rearranged(bitcast: HloInstruction) -> HloInstruction:
    """Return new instructions that move the elements of a bitcast between two layouts."""
    add = Editor(bitcast)
    operand = bitcast.operands[0]
    before = tuple(reversed(operand.shape.minor_to_major))
    after = tuple(reversed(bitcast.shape.minor_to_major))
    assert math.prod(operand.shape.dims) == math.prod(bitcast.shape.dims), "a bitcast keeps the number of elements"
    flat = add.transpose(operand, before)
    physical = add.reshape(flat, [bitcast.shape.dims[dim] for dim in after])
    logical = add.transpose(physical, [after.index(dim) for dim in range(len(after))])
    if logical.shape.element_type == bitcast.shape.element_type:
        return logical
    return add.add("bitcast-convert", bitcast.shape, [logical])


def _with_default_layouts(shape: Shape) -> Shape:
    """Return the shape with descending layouts, without tiles, packed element sizes and memory spaces."""
    if shape.is_tuple:
        return Shape.make_tuple(tuple(map(_with_default_layouts, shape.tuple_shapes)))
    return replace(shape, layout=Layout(tuple(reversed(range(shape.rank))))) if shape.is_array else shape
