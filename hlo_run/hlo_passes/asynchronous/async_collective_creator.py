"""Split every collective into a start and a done, so that other work can run between them.

    r = f32[2] reduce-scatter(p)   =>   s = ((f32[8]), f32[2]) async-start(p), calls=async_computation;  d = f32[2] async-done(s)

The start of an all-reduce writes into its operand, and that of a collective-permute in place into its second one. A fusion of
one collective is wrapped as a whole. Collectives inside asynchronous computations stay. XLA's `AsyncCollectiveCreator`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.fusion_owner import is_collective_fusion
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import ASYNC_START, COLLECTIVE
from hlo_run.hlo.values.attribute_values import OperandAliasing
from hlo_run.hlo_passes.subgraphs.async_pairs import replace_by_pair, wrapped_start
from hlo_run.pass_support.hlo_pass import PassContext

_SYNCHRONOUS = COLLECTIVE - ASYNC_START


class AsyncCollectiveCreator(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "async-collective-creator"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for collective in module.instructions_of("fusion", *_SYNCHRONOUS):
            computation = collective.parent
            if computation is None or computation.is_fusion or is_async_wrapper(computation):
                continue
            if collective.opcode == "fusion" and not is_collective_fusion(collective):
                continue
            start = wrapped_start(module, collective)
            aliasing = _aliasing(collective)
            if aliasing:
                start.attrs["output_to_operand_aliasing"] = OperandAliasing(aliasing)
            replace_by_pair(module, collective, start, "async-done")


def _aliasing(collective: HloInstruction) -> tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...]:
    """Return which results of the start, at index 1, share a buffer with an operand."""
    is_permute = collective.opcode == "collective-permute" and "slice_sizes" in collective.attrs
    if collective.opcode != "all-reduce" and not is_permute:
        return ()
    if collective.shape.is_tuple:
        return tuple(((1, number), number, ()) for number in range(len(collective.shape.tuple_shapes)))
    return (((1,), 1 if is_permute else 0, ()),)
