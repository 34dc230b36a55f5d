"""Send narrow values between devices: move widening conversions behind a collective, narrowing ones before it.

    c = f32[2] convert(bf16[2] x)
    g = f32[8] all-gather(c)               =>   g = f32[8] convert(bf16[8] all-gather(x))

    g = f32[8] all-gather(f32[2] x)
    q = f8e4m3fn[8] convert(clamp(low, divide(g, broadcast(s)), high))
                                           =>   q = f8e4m3fn[8] all-gather(f8e4m3fn[2] convert(clamp(low, divide(x, ..), high)))

A scale, which divides or multiplies next to the conversion, must be the same on the devices of a group. Bitcasts, copies,
reshapes and slices may stand in between. XLA's `CollectiveQuantizer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.replication import Replication
from hlo_run.hlo.edit import copy_instruction
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.ops.groups import FLATTENED, PARTITIONS, device_counts, group_mode
from hlo_run.pass_support.hlo_pass import PassContext

_COLLECTIVES: tuple[Opcode, ...] = ("all-gather", "all-to-all", "collective-broadcast", "collective-permute")
_VIEWS: tuple[Opcode, ...] = ("bitcast", "copy", "reshape", "slice")
# What an instruction takes over from the one that it derives from.
_NOTES = ("sharding", "metadata", "frontend_attributes")


class _Conversion(Struct, frozen=True):
    """A conversion, the views between it and the collective from operand to user, and the operations of a scale, if any."""

    convert: HloInstruction
    views: Sequence[HloInstruction]
    binary: HloInstruction | None = None
    scale: HloInstruction | None = None
    clamp: HloInstruction | None = None


class CollectiveQuantizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "collective-quantizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place. Leaves dead instructions behind."""
        del ctx
        for collective in module.in_post_order(*_COLLECTIVES):
            if len(collective.operands) != 1 or not collective.shape.is_array:
                continue
            wide = _widening(collective.operands[0])
            if wide is not None and _has_common_scale(module, collective, wide):
                _send_before_widening(module, collective, wide)
                continue
            (user, *others) = collective.users or [None]
            narrow = _narrowing(user) if user is not None and not others else None
            if narrow is not None and _has_common_scale(module, collective, narrow):
                _send_after_narrowing(module, collective, narrow)


def _bytes(value: HloInstruction) -> int:
    return max(1, value.shape.dtype.bits // 8) if value.shape.is_array else 0


def _widens(value: HloInstruction) -> bool:
    return value.opcode == "convert" and _bytes(value) > _bytes(value.operands[0])


def _is_scalar_broadcast(value: HloInstruction) -> bool:
    return value.opcode == "broadcast" and math.prod(value.operands[0].shape.dims) == 1


def _widening(value: HloInstruction) -> _Conversion | None:
    """Return the conversion to a wider type above a collective's operand."""
    path = _path_to_widening(value, set())
    if not path:
        return None
    convert, *rest = reversed(path)
    binary = rest[0] if rest and rest[0].opcode in ("multiply", "divide") else None
    if binary is None:
        return _Conversion(convert, rest) if all(view.opcode in _VIEWS for view in rest) else None
    scale = _scale_of(binary, convert)
    if scale is None or any(view.opcode not in _VIEWS for view in rest[1:]):
        return None
    return _Conversion(convert, rest[1:], binary, scale)


def _path_to_widening(value: HloInstruction, seen: set[HloInstruction]) -> list[HloInstruction]:
    """Return the instructions from a value up to a conversion to a wider type, through what has one operand or scales."""
    if value in seen:
        return []
    seen.add(value)
    if _widens(value):
        return [value]
    operands = dict.fromkeys(value.operands)
    if value.opcode == "divide":
        operands = {value.operands[0]: None}
    elif len(value.operands) != 1 and value.opcode != "multiply":
        return []
    for operand in operands:
        found = _path_to_widening(operand, seen)
        if found:
            return [value, *found]
    return []


def _scale_of(binary: HloInstruction, value: HloInstruction) -> HloInstruction | None:
    """Return the broadcast scalar by which a value is multiplied or divided, or None."""
    one, two = binary.operands
    if one is value and _is_scalar_broadcast(two):
        return two
    return one if binary.opcode == "multiply" and two is value and _is_scalar_broadcast(one) else None


def _narrowing(value: HloInstruction) -> _Conversion | None:
    """Return the conversion to a narrower type below a collective's only user."""
    path: list[HloInstruction] = []
    while len(value.users) <= 1:
        is_bitcast = value.opcode != "bitcast" or value.shape.element_type == value.operands[0].shape.element_type
        if value.opcode in (*_VIEWS, "multiply", "divide", "clamp") and is_bitcast:
            if not value.users:
                break
            path.append(value)
            (value,) = value.users
        elif value.opcode == "convert" and _bytes(value) < _bytes(value.operands[0]):
            path.append(value)
            break
        else:
            return None
    if not path or path[-1].opcode != "convert":
        return None
    convert, clamp = path[-1], path[-1].operands[0]
    conversion = _Conversion(convert, path[:-1])
    if len(path) > 2 and clamp.opcode == "clamp" and clamp.operands[1].opcode in ("multiply", "divide"):
        low, binary, high = clamp.operands
        limits = (low, high)
        scales = [o for o in binary.operands if _is_scalar_broadcast(o)]
        if binary.opcode == "divide":
            scales = [o for o in scales if o is binary.operands[1]]
        if scales and all(_is_scalar_broadcast(limit) and limit.operands[0].opcode == "constant" for limit in limits):
            conversion = _Conversion(convert, path[:-3], binary, scales[0], clamp)
    return conversion if all(view.opcode in _VIEWS for view in conversion.views) else None


def _has_common_scale(module: HloModule, collective: HloInstruction, conversion: _Conversion) -> bool:
    """True without a scale, or with one that is the same on the devices of each group."""
    if conversion.scale is None:
        return True
    if group_mode(collective) not in (PARTITIONS, FLATTENED) or device_counts(collective)[0] > 1:
        return False
    groups = () if collective.opcode == "collective-permute" else collective.replica_groups.groups()
    return Replication(module, across_partitions=True, in_groups=True).is_same(conversion.scale, groups)


def _add(
    like: HloInstruction, collective: HloInstruction, operands: Sequence[HloInstruction], shape_of: HloInstruction
) -> HloInstruction:
    """Add a copy of `like` beside the collective, with its own element type and the dimensions of another instruction."""
    shape = shape_of.shape.with_element_type(like.shape.element_type)
    return _derived(collective, copy_instruction(like, operands, shape))


def _derived(origin: HloInstruction, made: HloInstruction) -> HloInstruction:
    """Add a copy beside the instruction that it derives from, with the notes on that one."""
    assert origin.parent is not None, "it is in a computation"
    keeps_own = made.opcode == "reshape" and "sharding" not in made.attrs
    for name in _NOTES:
        if name in origin.attrs and not (name == "sharding" and keeps_own):
            made.attrs[name] = origin.attrs[name]
        elif name != "sharding":
            made.attrs.pop(name, None)
    return origin.parent.add(made)


def _with_views(value: HloInstruction, views: Sequence[HloInstruction]) -> HloInstruction:
    for view in views:
        value = _derived(value, copy_instruction(view, [value], view.shape.with_element_type(value.shape.element_type)))
    return value


def _send_before_widening(module: HloModule, collective: HloInstruction, conversion: _Conversion) -> None:
    value = _with_views(conversion.convert.operands[0], conversion.views)
    shape = collective.shape.with_element_type(value.shape.element_type)
    sent = _derived(collective, copy_instruction(collective, [value], shape))
    result = _add(conversion.convert, collective, [sent], collective)
    if conversion.binary is not None and conversion.scale is not None:
        scale = _add(conversion.scale, collective, conversion.scale.operands, collective)
        result = _add(conversion.binary, collective, [result, scale], collective)
    module.replace_uses(collective, result)


def _send_after_narrowing(module: HloModule, collective: HloInstruction, conversion: _Conversion) -> None:
    (value,) = collective.operands
    narrow = value
    if conversion.binary is not None and conversion.scale is not None and conversion.clamp is not None:
        scale = _add(conversion.scale, collective, conversion.scale.operands, value)
        scaled = _add(conversion.binary, collective, [value, scale], value)
        low, high = (_add(limit, collective, limit.operands, value) for limit in conversion.clamp.operands[::2])
        narrow = _add(conversion.clamp, collective, [low, scaled, high], value)
    narrow = _add(conversion.convert, collective, [narrow], value)
    shape = collective.shape.with_element_type(narrow.shape.element_type)
    sent = _derived(collective, copy_instruction(collective, [narrow], shape))
    module.replace_uses(conversion.convert, _with_views(sent, conversion.views))
