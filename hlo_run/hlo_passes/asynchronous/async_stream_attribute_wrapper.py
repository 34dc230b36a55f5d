"""Run instructions with a stream other than the default one asynchronously, on the execution thread `parallel`.

    c = custom-call(p), backend_config={"operation_queue_id":"2"}
    =>  s = async-start(p), async_execution_thread="parallel", calls=async_computation;  d = async-done(s)

XLA's `StreamAttributeAsyncWrapper`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.subgraphs.async_pairs import allow_late, queue_of, replace_by_pair, wrapped_start
from hlo_run.pass_support.hlo_pass import PassContext

_DEFAULT = "0"
_THREAD = "parallel"


class AsyncStreamAttributeWrapper(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "async-stream-attribute-wrapper"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for instruction in list(module.instructions):
            computation = instruction.parent
            if computation is None or computation.is_fusion or queue_of(instruction) == _DEFAULT:
                continue
            start = wrapped_start(module, instruction, _THREAD)
            allow_late(replace_by_pair(module, instruction, start, "async-done"))
