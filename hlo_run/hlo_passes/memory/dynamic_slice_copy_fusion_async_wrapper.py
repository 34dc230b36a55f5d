"""Copy slices at known places asynchronously: they need no kernel, and other work may run beside them.

    f = f32[9,6] fusion(x, i, u), kind=kLoop, calls={ ROOT d = dynamic-update-slice(..) }
        =>   s = ((f32[9,6], s32[], f32[6]), f32[9,6], u32[]) async-start(x, i, u), calls=async_computation
             f = f32[9,6] async-done(s)

`dynamic-slice-annotator` wrote where the slices are. XLA's `DynamicSliceCopyFusionAsyncWrapper`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.slice_copies import copied_value
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.async_pairs import replace_by_pair, wrapped_start
from hlo_run.pass_support.hlo_pass import PassContext

_CONTEXT = Shape.array("u32", ())


class DynamicSliceCopyFusionAsyncWrapper(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dynamic-slice-copy-fusion-async-wrapper"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for fusion in module.in_post_order("fusion"):
            computation = fusion.parent
            if computation is None or computation.is_fusion or is_async_wrapper(computation) or copied_value(fusion) is None:
                continue
            start = wrapped_start(module, fusion, contexts=(_CONTEXT,))
            replace_by_pair(module, fusion, start, "async-done", keeps_places=False)
