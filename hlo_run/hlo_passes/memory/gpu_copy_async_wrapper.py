"""Copy large arrays of the device asynchronously, so that the scheduler can put other work beside the copy.

    c = f32[1024] copy(x)   =>   s = (f32[1024], f32[1024], u32[]) copy-start(x);  c = f32[1024] copy-done(s)

A copy that changes the layout is a transpose and stays, as does one to or from the memory of the host.
XLA's `GpuCopyAsyncWrapper`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.async_pairs import replace_by_pair
from hlo_run.pass_support.hlo_pass import PassContext

_HOST = 5
_CONTEXT = Shape.array("u32", ())


class GpuCopyAsyncWrapper(Struct, frozen=True):
    """The pass; see the module's docstring. Takes copies of `min_bytes` and more, none if it is negative."""

    name: ClassVar[str] = "gpu-copy-async-wrapper"
    min_bytes: int = -1

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for copy in module.in_post_order("copy"):
            computation = copy.parent
            if computation is None or computation.is_fusion or is_async_wrapper(computation) or not self._takes(copy):
                continue
            operand = copy.operands[0]
            shape = Shape.make_tuple((copy.shape, operand.shape, _CONTEXT))
            start = InstructionMaker(where=copy.where).add("copy-start", shape, [operand], name="copy-start")
            replace_by_pair(module, copy, start, "copy-done", keeps_places=False)

    def _takes(self, copy: HloInstruction) -> bool:
        shape, source = copy.shape, copy.operands[0].shape
        if shape.is_tuple or _is_on_host(shape) or _is_on_host(source):
            return False
        return shape.minor_to_major == source.minor_to_major and 0 <= self.min_bytes <= shape.size_bytes


def _is_on_host(shape: Shape) -> bool:
    return shape.layout is not None and shape.layout.memory_space == _HOST
