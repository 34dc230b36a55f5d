"""Put the instructions of a called computation in the place of its `call`.

    ROOT r = f32[8] call(p), to_apply=f   =>   ROOT tanh = f32[8] tanh(p)

Not where `inlineable="false"` says so, nor inside of kernels. Leaves no computation behind that nobody calls. XLA's
`CallInliner`: in `op_name` the name of the call goes before the names of what it called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hlo_run.analysis.executed_computations import CONTROL_FLOW, executed_computations
from hlo_run.hlo.attributes import FrontendAttributes, OpMetadata
from hlo_run.hlo.edit import copy_instruction, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pipeline.passes import PassContext


@dataclass(frozen=True)
class CallInliner:
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "call-inliner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, innermost calls first."""
        del ctx
        if not module.instructions_of("call"):
            return
        version = module.version
        # Callers come first in the list, so that its reverse never copies a call that is inlined later.
        for computation in reversed(_callers_first(module)):
            calls = [i for i in computation.post_order() if i.opcode == "call" and _may_inline(i)]
            for call in calls:
                _inline(module, call)
            computation.remove_all(set(calls))
        if module.version != version:
            remove_uncalled(module)


def _callers_first(module: HloModule) -> list[HloComputation]:
    """Return the executed computations, each after all of its callers."""
    executed = executed_computations(module)
    known = set(executed)
    left = {c: sum(caller.parent in known for caller in c.callers if caller.opcode in CONTROL_FLOW) for c in executed}
    order = [module.entry]
    for computation in order:  # grows while we walk
        for instruction in computation.instructions:
            for called in dict.fromkeys(instruction.called_computations) if instruction.opcode in CONTROL_FLOW else ():
                left[called] -= 1
                if left[called] == 0:
                    order.append(called)
    return order


def _may_inline(call: HloInstruction) -> bool:
    attributes = call.attrs.get("frontend_attributes")
    body = call.called["to_apply"][0]
    same_thread = call.parent is not None and body.execution_thread == call.parent.execution_thread
    forbidden = isinstance(attributes, FrontendAttributes) and attributes.get("inlineable") == "false"
    return same_thread and not forbidden


def _inline(module: HloModule, call: HloInstruction) -> None:
    computation, body = call.parent, call.called["to_apply"][0]
    assert computation is not None
    made: dict[HloInstruction, HloInstruction] = {}
    for old in body.post_order():
        if old.opcode == "parameter":
            made[old] = call.operands[old.attrs["parameter_number"]]
            continue
        new = copy_instruction(old, [made[operand] for operand in old.operands])
        before = [made[predecessor] for predecessor in old.control_predecessors]
        new.control_predecessors = list(dict.fromkeys((*call.control_predecessors, *before)))
        _name_after(new, call)
        made[old] = computation.add(new)
    root = made[body.root]
    for other in computation.instructions:
        if call in other.control_predecessors:
            other.control_predecessors = [root if p is call else p for p in other.control_predecessors]
    module.replace(call, root)
    if "frontend_attributes" in call.attrs and "frontend_attributes" not in root.attrs:
        root.attrs["frontend_attributes"] = call.attrs["frontend_attributes"]


def _name_after(new: HloInstruction, call: HloInstruction) -> None:
    """Put the `op_name` of the call before that of what it called; an instruction without metadata gets the call's."""
    outer, inner = call.attrs.get("metadata"), new.attrs.get("metadata")
    if not isinstance(outer, OpMetadata):
        return
    if not isinstance(inner, OpMetadata):
        new.attrs["metadata"] = outer
    elif outer.op_name and inner.op_name:
        new.attrs["metadata"] = replace(inner, op_name=f"{outer.op_name}/{inner.op_name}")
