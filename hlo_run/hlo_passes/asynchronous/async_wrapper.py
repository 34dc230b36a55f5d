"""Run matrix products of cuBLASLt asynchronously, each on a separate stream.

    c = (f32[8,8], s8[64]) custom-call(p, q), custom_call_target="__cublas$lt$matmul"
    =>  s = ((..), (f32[8,8], s8[64]), u32[]) async-start(p, q), calls=async_computation;  d = (f32[8,8], s8[64]) async-done(s)

Only with `--xla_gpu_async_dot`. XLA's `AsyncWrapper`, as XLA:GPU configures it. The option `targets` names other custom calls.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.async_pairs import replace_by_pair, wrapped_start
from hlo_run.pass_support.hlo_pass import PassContext

_PRODUCTS = "__cublas$lt$matmul+__cublas$lt$matmul$f8"
_CONTEXT = Shape.array("u32", ())


class AsyncWrapper(Struct, frozen=True):
    """The pass; see the module's docstring. `targets` are the targets of custom calls, separated by `+`; `*` is any."""

    name: ClassVar[str] = "async-wrapper"
    targets: str = _PRODUCTS

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        targets = self.targets.split("+")
        for call in module.in_post_order("custom-call"):
            computation = call.parent
            if computation is None or computation.is_fusion or is_async_wrapper(computation):
                continue
            if call.custom_call_target in targets or targets == ["*"]:
                replace_by_pair(module, call, wrapped_start(module, call, contexts=(_CONTEXT,)), "async-done")
