"""Replace buffers by the arrays that they hold, since buffer assignment decides where values are in memory.

    p = b(f32[4]) custom-call(x), custom_call_target="Pin"
    q = b(f32[4]) dynamic-update-slice(p, u, i)
    r = f32[4] custom-call(q), custom_call_target="Unpin"          =>   q = f32[4] dynamic-update-slice(x, u, i)

Also in the shapes of loops and tuples. `CreateBuffer` becomes `AllocateBuffer`: uninitialised memory.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_unused
from hlo_run.hlo.graph import HloModule
from hlo_run.ops.buffer_calls import CROSSINGS, array_of
from hlo_run.pass_support.hlo_pass import PassContext


class BufferRemover(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "buffer-remover"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for instruction in module.instructions:
            shape = instruction.shape
            if not shape.is_array:
                plain = shape.map_leaves(array_of)
                if plain != shape:
                    instruction.shape = plain
        calls = module.instructions_of("custom-call")
        crossings = [call for call in calls if call.custom_call_target in CROSSINGS]
        for instruction in module.instructions:
            # Control dependencies on a Pin or Unpin go: it now is a value, which nothing changes.
            if any(predecessor in crossings for predecessor in instruction.control_predecessors):
                instruction.control_predecessors = [p for p in instruction.control_predecessors if p not in crossings]
        for call in crossings:
            call.control_predecessors = []
            module.replace(call, call.operands[0])
        remove_unused(crossings)
        for call in calls:
            if call.custom_call_target == "CreateBuffer":
                call.attrs["custom_call_target"] = "AllocateBuffer"
