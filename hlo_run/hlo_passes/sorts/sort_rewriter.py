"""Rewrite sorts to calls of CUB where its radix sort is faster.

    s = s32[30000] sort(x), to_apply=less
        =>   c = (s32[30000], u8[1]) custom-call(x), custom_call_target="xla.gpu.ext.cub_sort_unassigned_scratch_size"
             s = get-tuple-element(c), index=0

Two operands are keys and values. Floats in numpy's order (NaNs last, -0 equal to +0) are sorted by unsigned keys computed from
them, with the floats as values. An integer operand is packed into the bits below the float's; in a descending sort its bits
are inverted. XLA's `SortRewriter`, where a later pass sets the size of the scratch memory.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.sorts.radix_sort import RadixOrder, radix_order
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.hlo_passes.subgraphs.library_calls import to_json
from hlo_run.pass_support.hlo_pass import PassContext

_TARGET = "xla.gpu.ext.cub_sort_unassigned_scratch_size"


class SortRewriter(Struct, frozen=True):
    """The pass; see the module's docstring. With `always` it takes sorts that a kernel would do faster, too."""

    name: ClassVar[str] = "sort-rewriter"

    always: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""

        def rewrite(b: HloBuilder, sort: HloInstruction, *operands: HloValue) -> HloValue:
            order = radix_order(sort, ctx.target, self.always)
            assert order is not None, "the caller checked that the sort has a radix order"
            if not order.is_numpy:
                return _by_bits(b, order, operands)
            if len(operands) == 1:
                return _call(b, order, _ordered_bits(b, operands[0]), operands[0])[1]
            return _packed_pairs(b, order, operands)

        expand(module, ("sort",), rewrite, lambda sort: radix_order(sort, ctx.target, self.always) is not None, described=True)


def _call(b: HloBuilder, order: RadixOrder, *operands: HloValue) -> HloValue:
    shape = Shape.make_tuple((*(operand.shape for operand in operands), Shape.array("u8", (1,))))
    return b.custom_call(_TARGET, operands, shape).annotate(backend_config=to_json({"descending": order.descending}))


def _by_bits(b: HloBuilder, order: RadixOrder, operands: tuple[HloValue, ...]) -> HloValue:
    if len(operands) == 1:
        return _call(b, order, *operands)[0]
    call = _call(b, order, operands[order.key], operands[1 - order.key])
    return b.tuple([call[order.key], call[1 - order.key]])


def _unsigned(shape: Shape) -> str:
    return f"u{shape.dtype.bits}"


def _ordered_bits(b: HloBuilder, keys: HloValue) -> HloValue:
    """Return unsigned numbers that compare as the floats do in numpy's order."""
    kind, dims = _unsigned(keys.shape), keys.shape.dims
    zero = b.broadcast(b.constant(0.0, keys.shape.element_type), dims)
    nan = b.broadcast(b.constant(float("nan"), keys.shape.element_type), dims)
    number = b.select(b.compare(keys, keys, "NE"), nan, b.select(b.compare(keys, zero, "EQ"), zero, keys))
    bits = b.bitcast_convert(number, kind)
    sign = b.broadcast(b.constant(1 << (keys.shape.dtype.bits - 1), kind), dims)
    return b.select(b.compare(number, zero, "LT"), ~bits, sign ^ bits)


def _packed_pairs(b: HloBuilder, order: RadixOrder, operands: tuple[HloValue, ...]) -> HloValue:
    """Sort values with (key bits above value bits) by the keys; inverted value bits sort in the opposite order."""
    keys, values = operands[order.key], operands[1 - order.key]
    key_kind, value_kind = _unsigned(keys.shape), _unsigned(values.shape)
    packed_kind = "u32" if keys.shape.dtype.bits + values.shape.dtype.bits <= 32 else "u64"
    value_bits = b.bitcast_convert(values, value_kind)
    value_bits = ~value_bits if order.descending else value_bits
    distance = b.broadcast(b.constant(values.shape.dtype.bits, packed_kind), keys.shape.dims)
    high = b.shift_left(b.convert(b.bitcast_convert(keys, key_kind), packed_kind), distance)
    packed = _call(b, order, _ordered_bits(b, keys), high | b.convert(value_bits, packed_kind))[1]
    sorted_keys = b.bitcast_convert(b.convert(b.shift_right_logical(packed, distance), key_kind), keys.shape.element_type)
    sorted_bits = b.convert(packed, value_kind)
    sorted_bits = ~sorted_bits if order.descending else sorted_bits
    pair = [sorted_keys, b.bitcast_convert(sorted_bits, values.shape.element_type)]
    return b.tuple(pair if order.key == 0 else pair[::-1])
