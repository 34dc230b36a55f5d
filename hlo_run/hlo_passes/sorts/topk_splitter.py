"""Split the `TopK` of a long row: find the first k of each part, then the first k of these.

    TopK(x), x of f32[2097152], k=40   =>   part = TopK(reshape(x) to f32[2,1048576])
                                            sort(values of part, positions of part + start of each part), is_stable=true
                                            slices of the first 40

For rows of more than 2^20 elements, a multiple of 1024, if k is at most the square root of that. XLA's `TopKSplitter`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.comparators import with_positions
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.hlo_passes.subgraphs.library_calls import is_topk_call
from hlo_run.pass_support.hlo_pass import PassContext

_LONGEST = 1 << 20
_MULTIPLE = 1024
_MOST_PARTS = 1024


class TopkSplitter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "topk-splitter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("custom-call",), _in_parts, _is_long)


def _is_long(call: HloInstruction) -> bool:
    if not is_topk_call(call) or not call.called_computations:
        return False
    dims = call.operands[0].shape.dims
    if not 1 <= len(dims) <= 2 or (len(dims) == 2 and dims[0] != 1):
        return False
    elements, k = dims[-1], call.shape.tuple_shapes[0].dims[-1]
    return elements > _LONGEST and elements % _MULTIPLE == 0 and k * k <= elements


def _in_parts(b: HloBuilder, old: HloInstruction, x: HloValue) -> HloValue:
    elements, k = x.shape.dims[-1], old.shape.tuple_shapes[0].dims[-1]
    parts = min(1 << ((elements // _LONGEST).bit_length() - 1), _MOST_PARTS)
    length = elements // parts
    comparator = old.called_computations[0]
    kinds = (x.shape.element_type, "s32")
    shape = Shape.make_tuple(tuple(Shape.array(kind, (parts, k)) for kind in kinds))
    found = b.custom_call("TopK", [b.reshape(x, (parts, length))], shape, called_computations=[comparator])
    if "backend_config" in old.attrs:
        found.annotate(backend_config=old.backend_config)
    begins = b.iota(Shape.array("s32", (parts,))) * b.broadcast(b.constant(length, "s32"), (parts,))
    places = found[1] + b.broadcast(begins, (parts, k), (0,))
    # Equal elements are ordered by part, and within a part by position.
    flat = [b.reshape(value, (parts * k,)) for value in (found[0], places)]
    ordered = b.sort(flat, 0, with_positions(comparator), is_stable=True)
    dims = [part.dims for part in old.shape.tuple_shapes]
    return b.tuple([b.reshape(b.slice(ordered[number], [(0, k)]), dims[number]) for number in range(2)])
