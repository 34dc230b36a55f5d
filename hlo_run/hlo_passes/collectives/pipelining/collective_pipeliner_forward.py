"""Run collectives of a loop an iteration later, so that they overlap the work of that iteration.

    while: x = f(i); b = dynamic-update-slice(b, all-reduce(x), i)
      =>
    x = f(0); while: b = dynamic-update-slice(b, all-reduce(x), i - 1), x = f(i);
    b = dynamic-update-slice(b, all-reduce(x), n - 1)

Needs a loop with a known number of iterations, at least two, and a collective whose result is only written into an element of
the state, maybe after instructions that format it. Values that these need wait in the state too. The collectives that moved are
marked as pipelined in their backend_config. XLA's `CollectivePipeliner` in the direction forward.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_dead
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcodes_in
from hlo_run.hlo_passes.collectives.pipelining.cloning import Copier
from hlo_run.hlo_passes.collectives.pipelining.counted_loops import counted, counted_loops
from hlo_run.hlo_passes.collectives.pipelining.forward import pipeline_forward
from hlo_run.hlo_passes.collectives.pipelining.forward_moves import Rules, forward_moves
from hlo_run.pass_support.hlo_pass import PassContext


class CollectivePipelinerForward(Struct, frozen=True):
    """The pass; see the module's docstring.

    `opcodes`, joined by `+`, are those that move. With `follows_trees` a result may have several users, also elementwise ones.
    With `resizes` the shapes between a collective and the update may differ. With `reuses_buffers` a value of the result's shape
    waits in the buffer that the result is written to.
    """

    name: ClassVar[str] = "collective-pipeliner-forward"

    opcodes: str = "all-reduce+reduce-scatter"
    follows_trees: bool = True
    resizes: bool = True
    reuses_buffers: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        opcodes = opcodes_in(self.opcodes)

        def is_chosen(instruction: HloInstruction) -> bool:
            return instruction.opcode in opcodes

        rules = Rules(is_chosen, lambda _: True, self.follows_trees, self.resizes)
        loops = counted_loops(module, is_chosen) if module.instructions_of(*opcodes) else []
        copier: Copier | None = None
        for found in loops:
            loop = counted(found)
            moves = forward_moves(loop, rules) if loop is not None else []
            if loop is not None and moves:
                copier = copier or Copier.of(module)
                pipeline_forward(loop, moves, copier, self.reuses_buffers)
        if copier is not None:
            remove_dead(module)
