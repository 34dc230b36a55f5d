"""Replace pairs of async start and done by the synchronous operation at the start, since all kernels run on one stream.

    s = ((f32[4]), f32[8]) all-gather-start(p), dimensions={0}     =>   g = f32[8] all-gather(p), dimensions={0}
    d = f32[8] all-gather-done(s)                                       users of d use g

Also for the other collectives, copies, and async computations, which become calls. Runs on a scheduled module and keeps its
order. XLA's `GpuConvertAsyncCollectivesToSync`, which runs copies and computations on separate streams.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import DONE_OF
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext

# By start opcode: the synchronous opcode, and the element of the start's result that has the operation's result.
_STARTS: dict[str, tuple[str, int | None]] = {
    "all-reduce-start": ("all-reduce", None),
    "all-gather-start": ("all-gather", 1),
    "collective-permute-start": ("collective-permute", 1),
    "copy-start": ("copy", 0),
    "async-start": ("call", 1),
}
_ENDS = {DONE_OF[start] for start in _STARTS} | {"async-update"}


class ConvertAsyncToSync(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gpu-convert-async-collectives-to-sync"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for start in module.instructions_of(*_STARTS):
            ends = _ends_of(start)
            assert start.parent is not None, "the instruction is in a computation"
            made = _at_once(start.parent, start)
            for end in ends:
                if end.opcode != "async-update":
                    module.replace(end, made)
            gone = [start, *ends]
            for other in start.parent.instructions:
                if any(predecessor in gone for predecessor in other.control_predecessors):
                    kept = (made if p in gone else p for p in other.control_predecessors)
                    other.control_predecessors = [] if other is made else list(dict.fromkeys(kept))
            start.parent.remove_all(frozenset(gone))


def _ends_of(start: HloInstruction) -> list[HloInstruction]:
    """Return the updates and the done of a start."""
    found = [start]
    for instruction in found:  # grows while we walk
        found += [user for user in instruction.users if user.opcode in _ENDS and user not in found]
    return found[1:]


def _at_once(computation: HloComputation, start: HloInstruction) -> HloInstruction:
    opcode, element = _STARTS[start.opcode]
    shape: Shape = start.shape if element is None else start.shape.tuple_shapes[element]
    dropped = ("async_execution_thread", "cross_program_prefetch_index", "output_to_operand_aliasing")
    attributes = {name: value for name, value in start.attrs.items() if name not in dropped}
    called = {"to_apply": start.called["calls"]} if opcode == "call" else dict(start.called)
    made = HloInstruction(opcode, opcode, shape, start.operands, attributes, called, start.where)
    made.control_predecessors = list(start.control_predecessors)
    return computation.add(made, before=start)
