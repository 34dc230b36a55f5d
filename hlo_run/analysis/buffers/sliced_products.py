"""Recognises fusions of a matrix product with the slices that it reads and writes, and tells where these are.

    fusion(x, i, w), kind=kCustom, calls={ s = dynamic-slice(x, i, ..)  b = bitcast(s)  ROOT c = custom-call(b, w) }

`dynamic-slice-fusion-rewriter-v2` makes them. The product runs in the arrays of the fusion, as XLA's thunk of the kind
`kDynamicSliceFusion` does it. Needs layouts.
"""

from __future__ import annotations

from msgspec import Struct

from hlo_run.analysis.buffers.copied_operands import SlicePlace, loops_around, source_place, update_place
from hlo_run.analysis.buffers.slice_copies import behind_bitcasts
from hlo_run.analysis.fusion_owner import is_slice_copy
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import ShapeIndex

PRODUCT_TARGETS = ("__cublas$gemm", "__cublas$lt$matmul")


class PlacedResult(Struct, frozen=True):
    """The result of a fusion at `index`: the product's result `number`, at `place` in an operand, or all of the result."""

    index: ShapeIndex
    number: int
    place: SlicePlace | None


class SlicedProduct(Struct, frozen=True):
    """The `call` in a fusion, the place of each of its operands in one of the fusion's, and what its results become."""

    call: HloInstruction
    operands: tuple[SlicePlace, ...]
    results: tuple[PlacedResult, ...]


def sliced_product(fusion: HloInstruction) -> SlicedProduct | None:
    """Return the product of a fusion that `dynamic-slice-fusion-rewriter-v2` made; None for other fusions.

    None too for one outside of the loop that determines a place, and for one with slices at unknown places.
    """
    if not is_slice_copy(fusion):
        return None
    body = fusion.fused_computation
    calls = [i for i in body.instructions if i.opcode == "custom-call"]
    if len(calls) != 1 or calls[0].custom_call_target not in PRODUCT_TARGETS:
        return None
    call = calls[0]
    operands = [source_place(behind_bitcasts(operand)) for operand in call.operands]
    elements = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    results: list[PlacedResult] = []
    for number, element in enumerate(elements):
        found = _results(call, element, (number,) if body.root.opcode == "tuple" else ())
        if found is None:
            return None
        results += found
    placed = [place for place in operands if place is not None]
    moved = [*placed, *(result.place for result in results if result.place is not None)]
    depth = loops_around(fusion.parent)
    if len(placed) != len(operands) or any(place.step_bytes and place.loop >= depth for place in moved):
        return None
    return SlicedProduct(call, tuple(placed), tuple(results))


def _results(call: HloInstruction, element: HloInstruction, index: ShapeIndex) -> list[PlacedResult] | None:
    """Return what an element of the fusion's result is; None for another value than a result of the product."""
    value = behind_bitcasts(element)
    if value is call:
        count = len(call.shape.tuple_shapes) if call.shape.is_tuple else 0
        return [PlacedResult((*index, n), n, None) for n in range(count)] if count else [PlacedResult(index, 0, None)]
    place = None
    if value.opcode == "dynamic-update-slice":
        place = update_place(value)
        if place is None:
            return None
        value = behind_bitcasts(value.operands[1])
    if value.opcode == "get-tuple-element" and value.operands[0] is call:
        return [PlacedResult(index, value.tuple_index, place)]
    return [PlacedResult(index, 0, place)] if value is call and not call.shape.is_tuple else None
