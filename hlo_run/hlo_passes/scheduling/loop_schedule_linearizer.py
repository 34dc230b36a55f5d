"""Let the body of a loop read an element of the state before it computes the element's next value.

    r = fusion(p{0});  w = fusion(p{0});  ROOT tuple(w, r)   =>   w = fusion(p{0}), control-predecessors={r}

Both values may then have one buffer, and copy insertion need not copy the old one. A read that depends on the next value gets
no dependency, nor do loops with asynchronous collectives or messages. Leaves control dependencies; skips a module that came
with a schedule. XLA's `LoopScheduleLinearizer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.dataflow import Dataflow, analyze_dataflow
from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.topological_order import TopologicalOrder
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE, TRANSFER
from hlo_run.pass_support.hlo_pass import PassContext


class LoopScheduleLinearizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "loop-schedule-linearizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Add the dependencies in the bodies of all executed loops."""
        del ctx
        if module.schedule is not None:
            return
        loops = [i for computation in executed_computations(module) for i in computation.instructions if i.opcode == "while"]
        loops = [loop for loop in loops if not any(_is_asynchronous_collective(i) for i in loop.while_body.instructions)]
        if not loops:
            return
        dataflow = analyze_dataflow(module)
        for loop in loops:
            _read_before_writing(dataflow, loop)


def _is_asynchronous_collective(instruction: HloInstruction) -> bool:
    """Return True for a collective or message that starts and ends apart: the dependencies could keep it from overlapping."""
    if instruction.opcode == "async-start":
        (wrapped,) = instruction.called_computations
        return wrapped.root.opcode in COLLECTIVE
    return instruction.opcode in TRANSFER or instruction.opcode in COLLECTIVE & ASYNC_START


def _read_before_writing(dataflow: Dataflow, loop: HloInstruction) -> None:
    body = loop.while_body
    (parameter,) = body.parameters
    order = TopologicalOrder(body)
    for index, shape in parameter.shape.leaves():
        old, new = dataflow.value(parameter, index), dataflow.value(body.root, index)
        write = new.instruction
        if not index or not shape.is_array or old is new or write.parent is not body:
            continue
        for read in dict.fromkeys(use.instruction for use in old.uses):
            if read is write or read.parent is not body or read in write.control_predecessors:
                continue
            if order.add_edge(read, write):
                write.control_predecessors.append(read)
                write.touch()
