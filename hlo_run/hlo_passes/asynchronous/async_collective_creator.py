"""Split every collective into a start and a done, so that other work can run between them.

    r = f32[8] all-reduce(p)       =>   s = f32[8] all-reduce-start(p);  d = f32[8] all-reduce-done(s)
    r = f32[2] reduce-scatter(p)   =>   s = ((f32[8]), f32[2]) async-start(p), calls=async_computation;  d = f32[2] async-done(s)

all-gather, all-reduce and collective-permute have starts of their own; the others are wrapped. Collectives inside asynchronous
computations stay. XLA's `AsyncCollectiveCreator`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE, DONE_OF
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.async_pairs import replace_by_pair, wrapped_start
from hlo_run.pass_support.hlo_pass import PassContext

_SYNCHRONOUS = COLLECTIVE - ASYNC_START
# Attributes of the pair, or without meaning for a start.
_NOT_COPIED = frozenset(("metadata", "backend_config", "frontend_attributes", "sharding"))


class AsyncCollectiveCreator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "async-collective-creator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for collective in module.instructions_of(*_SYNCHRONOUS):
            computation = collective.parent
            if computation is None or computation.is_fusion or is_async_wrapper(computation):
                continue
            start_opcode = f"{collective.opcode}-start"
            if start_opcode in ASYNC_START:
                replace_by_pair(module, collective, _start(collective, start_opcode), DONE_OF[start_opcode])
            else:
                replace_by_pair(module, collective, wrapped_start(module, collective), "async-done")


def _start(collective: HloInstruction, opcode: Opcode) -> HloInstruction:
    attributes = {name: value for name, value in collective.attrs.items() if name not in _NOT_COPIED}
    called = dict(collective.called)
    return InstructionMaker(where=collective.where).add_with(opcode, _shape(collective), collective.operands, attributes, called)


def _shape(collective: HloInstruction) -> Shape:
    """Return the shape of the start: (operands, result), but the result alone for an all-reduce."""
    if collective.opcode == "all-reduce":
        return collective.shape
    shapes = tuple(operand.shape for operand in collective.operands)
    if collective.opcode == "collective-permute" and len(shapes) > 1 and "slice_sizes" in collective.attrs:
        # In place: inputs, outputs, and the places in both.
        return Shape.make_tuple((Shape.make_tuple(shapes), collective.shape, *shapes[2:]))
    return Shape.make_tuple((shapes[0] if len(shapes) == 1 else Shape.make_tuple(shapes), collective.shape))
