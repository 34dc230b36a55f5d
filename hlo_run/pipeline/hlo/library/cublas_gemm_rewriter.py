"""Let cuBLASLt compute the products that it has types for and that are large enough.

    d = f32[64,32] dot(a, b)   =>   c = (f32[64,32], s8[33554432]) custom-call(a, b), custom_call_target="__cublas$lt$matmul"
                                    d = get-tuple-element(c), index=0

A factor, a matrix or vector that is added, relu and gelu that follow go into the call (`gemm_epilogues.py`). Wants dots as
`dot_decomposer` leaves them. XLA's `GemmRewriter` without scales of 8-bit floats; a matrix that is added is never
overwritten. Where there is no cuBLAS, numpy's BLAS does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pipeline.gemm_epilogues import fuse_epilogues
from hlo_run.pipeline.library_calls import gemm_call, result_of
from hlo_run.pipeline.passes import PassContext


@dataclass(frozen=True)
class CublasGemmRewriter:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cublas-gemm-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        replaced: list[HloInstruction] = []
        calls: list[tuple[HloInstruction, HloInstruction]] = []
        for dot in module.instructions_of("dot"):
            call = gemm_call(dot, ctx.target)
            if call is not None:
                assert dot.parent is not None, "it stands in a computation"
                result = dot.parent.add(result_of(dot.parent.add(call)))
                module.replace(dot, result)
                replaced.append(dot)
                calls.append((call, result))
        for call, result in calls:
            replaced += fuse_epilogues(module, call, result)
        remove_unused(replaced)
