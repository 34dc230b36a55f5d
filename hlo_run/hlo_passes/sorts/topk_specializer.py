"""Rewrite `TopK` calls with small k to a TopK kernel, which is faster than a sort.

    (f32[4,5], s32[4,5]) custom-call(x), custom_call_target="TopK", called_computations={gt}
        =>   tuple of the first two results of custom-call(x), custom_call_target="__gpu$TopK"

A call whose comparator leaves the order of NaN and of zeros open (`order = "PARTIAL"`) stays: the kernel orders all numbers.

For f32 and bf16 rows of at least 1024 elements and k up to 16. A call that need not keep the order of equal elements may have
k up to a library's limit, and gets scratch memory. Needs a comparator that selects the largest or the smallest elements. XLA's
`TopkSpecializer`, which ignores and drops the comparator; here that of the smallest stays. Our runtime calls a library for both.
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.topk_order import picks_largest
from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.hlo_passes.subgraphs.library_calls import is_topk_call
from hlo_run.pass_support.hlo_pass import PassContext

_FEWEST, _LARGEST_K, _LARGEST_SHARE = 1024, 16, 0.85
_SCRATCH_BYTES = 32 << 20
_PARTIAL = re.compile(r'\border"?\s*[:=]\s*"PARTIAL"')
_UNSTABLE = re.compile(r'\bis_stable"?\s*[:=]\s*false\b')


class TopkSpecializer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "topk-specializer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("custom-call",), _special, _is_few)


def _is_few(call: HloInstruction) -> bool:
    if not is_topk_call(call) or picks_largest(call) is None or _PARTIAL.search(call.backend_config):
        return False
    shape, k = call.operands[0].shape, call.shape.tuple_shapes[0].dims[-1]
    if shape.element_type not in ("f32", "bf16") or not 1 <= shape.rank <= 2 or k >= _LARGEST_SHARE * shape.dims[-1]:
        return False
    if _may_mix(call):
        return k <= _library_limit(shape)
    return k <= _LARGEST_K and shape.dims[-1] >= _FEWEST


def _may_mix(call: HloInstruction) -> bool:
    """Return True for a call that need not keep the order of equal elements."""
    return _UNSTABLE.search(call.backend_config) is not None


def _library_limit(shape: Shape) -> int:
    """Return the largest k for which a library is faster than a sort, from XLA's measurements."""
    rows, elements = (shape.dims[0] if shape.rank == 2 else 0), shape.dims[-1]
    if shape.element_type == "f32":
        return 256 if rows >= 64 and elements >= 1 << 14 else 128
    if 64 <= rows <= 128 and 1 << 13 <= elements <= 1 << 15:
        return 64
    return 256 if rows >= 16 and elements >= 1 << 16 else 128


def _special(b: HloBuilder, old: HloInstruction, x: HloValue) -> HloValue:
    scratch = (Shape.array("u8", (_SCRATCH_BYTES,)),) if _may_mix(old) else ()
    shape = Shape.make_tuple((*old.shape.tuple_shapes, *scratch))
    kept = () if picks_largest(old) else old.called_computations
    call = b.custom_call("__gpu$TopK", [x], shape, api_version="API_VERSION_TYPED_FFI", called_computations=kept)
    if "backend_config" in old.attrs:
        call.annotate(backend_config=old.backend_config)
    return b.tuple([call[0], call[1]])
