"""Run calls that name their stream asynchronously.

    c = call(p), to_apply=f, frontend_attributes={_xla_stream_annotation="1"}
    =>  s = async-start(p), calls=async_computation, frontend_attributes={..};  d = async-done(s), frontend_attributes={..}

The wrapped call and its instructions lose their annotations of streams and scheduling groups. XLA's
`ExplicitStreamAnnotationAsyncWrapper`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo_passes.subgraphs.async_pairs import allow_late, replace_by_pair, wrapped_start
from hlo_run.pass_support.hlo_pass import PassContext

_STREAM, _GROUP = "_xla_stream_annotation", "_scheduling_group_id"


class ExplicitStreamAnnotationAsyncWrapper(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "explicit-stream-annotation-async-wrapper"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for call in module.instructions_of("call"):
            computation = call.parent
            if not frontend_attribute(call, _STREAM) or computation is None or is_async_wrapper(computation):
                continue
            given = call.frontend_attributes
            assert given is not None, "the stream is one of them"
            for instruction in (call, *call.to_apply.instructions):
                _clear(instruction)
            done = replace_by_pair(module, call, wrapped_start(module, call), "async-done")
            for made in (done, done.operands[0]):
                made.attrs["frontend_attributes"] = given
            allow_late(done)


def _clear(instruction: HloInstruction) -> None:
    old = instruction.frontend_attributes
    if old is not None and (old.get(_STREAM) is not None or old.get(_GROUP) is not None):
        instruction.attrs["frontend_attributes"] = FrontendAttributes(
            tuple(entry for entry in old.entries if entry[0] not in (_STREAM, _GROUP))
        )
