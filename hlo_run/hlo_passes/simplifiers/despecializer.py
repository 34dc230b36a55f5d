"""Undo choices for one platform: the schedule, control dependencies, fusions and packed element sizes.

    HloModule m, is_scheduled=true              HloModule m
    p = s4[6]{0:E(4)} parameter(0)        =>    p = s4[6]{0} parameter(0)
    f = f32[8] fusion(x), calls=c               t = f32[8] tanh(x)

XLA's `Despecializer`. With `deconstructs_reduce_window`, a reduce-window that sums a whole dimension and returns the sum at each
of its places becomes a reduce and a broadcast.
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.attributes.table import EntryLayout
from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import WindowDim
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo_passes.subgraphs.despecializing import defuse, remove_control_dependencies, remove_schedule
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class Despecializer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "despecializer"

    deconstructs_reduce_window: bool = False

    def apply(self, ctx: PassContext | None, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        remove_schedule(module)
        remove_control_dependencies(module)
        defuse(module)
        _unpack(module)
        if self.deconstructs_reduce_window:
            for window in module.instructions_of("reduce-window"):
                _deconstruct(module, window)


def _unpack(module: HloModule) -> None:
    version = module.version
    for instruction in module.instructions:
        plain = _unpacked(instruction.shape)
        if plain is not instruction.shape:
            instruction.shape = plain
    layout = module.entry_layout
    if module.version != version and layout is not None:
        module.attrs["entry_computation_layout"] = EntryLayout(tuple(map(_unpacked, layout.parameters)), _unpacked(layout.result))


def _unpacked(shape: Shape) -> Shape:
    """Return the shape without element sizes in its layouts, the same object if it has none."""
    if shape.is_tuple:
        parts = tuple(map(_unpacked, shape.tuple_shapes))
        is_same = all(one is two for one, two in zip(parts, shape.tuple_shapes, strict=True))
        return shape if is_same else replace(shape, tuple_shapes=parts)
    if not shape.is_array or shape.layout is None or "E(" not in shape.layout.extra:
        return shape
    return replace(shape, layout=Layout(shape.minor_to_major, re.sub(r"E\(\d+\)", "", shape.layout.extra)))


def _deconstruct(module: HloModule, i: HloInstruction) -> None:
    """reduce-window(A), window={size=2*n-1 pad=n-1_n-1} along one dimension of size n => broadcast(reduce(A))."""
    window = i.window
    if not window.dims or len(i.operands) != 2 or i.operands[0].shape != i.shape:
        return
    wide = [d for d, dim in enumerate(window.dims) if dim.size != 1]
    if len(wide) != 1:
        return
    size = i.shape.dims[wide[0]]
    expected = WindowDim(2 * size - 1, pad_low=size - 1, pad_high=size - 1)
    if any(dim != (expected if d == wide[0] else WindowDim()) for d, dim in enumerate(window.dims)):
        return
    editor = Editor(i)
    (total,) = editor.reduce_again(i, i.operands[:1], wide)
    kept = tuple(d for d in range(i.shape.rank) if d != wide[0])
    module.replace(i, editor.add("broadcast", i.shape, [total], dimensions=kept))
    remove_unused([i])
