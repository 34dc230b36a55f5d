"""Send packed elements of less than a byte as bytes, as NCCL has no such types.

    g = u4[6,10]{0,1:E(4)} all-gather(u4[6,5]{0,1:E(4)} x), dimensions={1}
        =>   b = s8[3,5]{0,1} bitcast-convert(u4[3,5,2]{2,0,1:E(4)} bitcast(x))
             h = s8[3,10]{0,1} all-gather(b), dimensions={1}
             g = u4[6,10]{0,1:E(4)} bitcast(u4[3,10,2]{2,0,1:E(4)} bitcast-convert(h))

For all-gather, all-to-all, collective-broadcast and collective-permute of one array whose minor dimension fills whole bytes.
XLA's `SubByteCollectiveNormalization`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.ops.groups import group_size
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

_BYTE = "s8"
_BYTE_BITS = 8


class SubByteCollectiveNormalization(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "sub-byte-collective-normalization"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for collective in module.in_post_order("all-gather", "all-to-all", "collective-broadcast", "collective-permute"):
            ratio = _elements_per_byte(collective)
            if ratio:
                _send_bytes(module, collective, ratio)


def _elements_per_byte(collective: HloInstruction) -> int:
    """Return the number of elements in a byte; 0 if the collective stays."""
    if len(collective.operands) != 1 or not collective.shape.is_array:
        return 0
    shape = collective.operands[0].shape
    bits = shape.dtype.bits
    is_packed = shape.layout is not None and f"E({bits})" in shape.layout.extra
    if bits >= _BYTE_BITS or not is_packed or not shape.rank:
        return 0
    ratio = _BYTE_BITS // bits
    if shape.dims[shape.minor_to_major[0]] % ratio:
        return 0
    if collective.opcode == "all-to-all" and (split := collective.ints("dimensions")):
        return 0 if collective.shape.dims[split[0]] % (group_size(collective) * ratio) else ratio
    return ratio


def _send_bytes(module: HloModule, collective: HloInstruction, ratio: int) -> None:
    editor, (value,) = Editor(collective, keeps_frontend_attributes=False), collective.operands
    split = editor.bitcast(value, _split(value.shape, ratio))
    packed = editor.add("bitcast-convert", _bytes(value.shape, ratio), [split])
    sent = editor.computation.add(copy_instruction(collective, [packed], _bytes(collective.shape, ratio)))
    unpacked = editor.add("bitcast-convert", _split(collective.shape, ratio), [sent])
    module.replace(collective, editor.bitcast(unpacked, collective.shape))
    editor.computation.remove(collective)


def _dims(shape: Shape, ratio: int) -> tuple[int, ...]:
    minor = shape.minor_to_major[0]
    return tuple(size // ratio if dim == minor else size for dim, size in enumerate(shape.dims))


def _bytes(shape: Shape, ratio: int) -> Shape:
    """Return the shape of the bytes, with the same order of dimensions."""
    return replace(Shape.array(_BYTE, _dims(shape, ratio)), layout=Layout(shape.minor_to_major))


def _split(shape: Shape, ratio: int) -> Shape:
    """Return the shape with the elements of a byte in a new minor dimension."""
    extra = shape.layout.extra if shape.layout is not None else ""
    order = (shape.rank, *shape.minor_to_major)
    return replace(shape, dims=(*_dims(shape, ratio), ratio), layout=Layout(order, extra), dynamic_dims=())
