"""Replace calls of CUB's sorts by their final calls, with the size of their scratch memory.

    c = (s32[40000], u8[1]) custom-call(x), custom_call_target="xla.gpu.ext.cub_sort_unassigned_scratch_size", ..
        =>   (s32[40000], u8[174847]) custom-call(x), custom_call_target="xla.gpu.ext.cub_sort_keys",
             api_version=API_VERSION_TYPED_FFI, backend_config={descending = false, batch_size = 1 : i64}

Keys with values are sorted by `xla.gpu.ext.cub_sort_pairs`. XLA's `EstimateCubSortScratchSize`.
"""

from __future__ import annotations

import re
from math import prod
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.sorts.radix_scratch import radix_scratch_bytes
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.target import TargetSpec

_UNSIZED = "xla.gpu.ext.cub_sort_unassigned_scratch_size"


class EstimateCubSortScratchSize(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "estimate-cub-sort-scratch-size"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        for call in module.instructions_of("custom-call"):
            if call.custom_call_target == _UNSIZED:
                _size(module, call, ctx.target)


def _size(module: HloModule, call: HloInstruction, target: TargetSpec) -> None:
    keys, *values = (operand.shape for operand in call.operands)
    rows = prod(keys.dims[:-1])
    widths = [shape.dtype.numpy.itemsize for shape in (keys, *values)]
    scratch = radix_scratch_bytes(prod(keys.dims), rows, widths[0], sum(widths[1:]), target)
    descending = re.search(r'descending"?\s*:\s*true', call.backend_config) is not None
    sized = Editor(call).add(
        "custom-call",
        Shape.make_tuple((*call.shape.tuple_shapes[:-1], Shape.array("u8", (scratch,)))),
        call.operands,
        custom_call_target=f"xla.gpu.ext.cub_sort_{'pairs' if values else 'keys'}",
        api_version="API_VERSION_TYPED_FFI",
        backend_config=f"{{descending = {str(descending).lower()}, batch_size = {rows} : i64}}",
    )
    module.replace(call, sized)
    remove_unused([call])
