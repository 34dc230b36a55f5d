"""Replace a `call` by the instructions of the called computation.

    ROOT r = f32[8] call(p), to_apply=f   =>   ROOT tanh = f32[8] tanh(p)

Calls in reducers and comparators go too; a call with `inlineable="false"` stays. Removes instructions and computations that
are no longer used.
XLA's `CallInliner`: in `op_name`, the name of the call is a prefix of the inlined instructions' names.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.edit import remove_dead
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.printer import computation_order
from hlo_run.hlo_passes.subgraphs.inlining import control_successors, inline_call
from hlo_run.pass_support.hlo_pass import PassContext


class CallInliner(Struct, frozen=True):
    """The pass; see the module's docstring. With `single_call_site` a computation that several calls share stays.

    `only` limits it to computations whose names contain this text. With `early`, before partitioning, calls with
    `inlineable="xla_late"` stay too: bodies of manual computations, which the partitioner looks for.
    """

    name: ClassVar[str] = "call-inliner"

    single_call_site: bool = False
    only: str = ""
    early: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, innermost calls first."""
        del ctx
        if not module.instructions_of("call"):
            return
        version = module.version
        for computation in computation_order(module):
            if is_async_wrapper(computation):
                continue  # a wrapper holds one instruction
            calls = [
                i for i in computation.post_order() if i.opcode == "call" and self._inlines(i) and self.only in i.to_apply.name
            ]
            if self.single_call_site:
                calls = [call for call in calls if len(call.to_apply.callers) == 1]
            successors = control_successors(computation) if calls else {}
            for call in calls:
                inline_call(module, call, successors)
                # Users of an operand move up at once, as in XLA: their order decides what later passes do first.
                call.operands = ()
            computation.remove_all(set(calls))
        if module.version != version:
            remove_dead(module)

    def _inlines(self, call: HloInstruction) -> bool:
        body = call.to_apply
        same_thread = call.parent is not None and body.execution_thread == call.parent.execution_thread
        kept = ("false", "xla_late") if self.early else ("false",)
        return same_thread and frontend_attribute(call, "inlineable") not in kept
