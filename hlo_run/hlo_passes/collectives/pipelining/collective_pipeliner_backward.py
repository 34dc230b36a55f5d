"""Run collectives of a loop an iteration earlier, so that they overlap the work of that iteration.

    while: s = f(s, all-gather(w[i]))
      =>
    g = all-gather(w[0]); while, one iteration less: s = f(s, g), g = all-gather(w[i + 1]); s = f(s, g)

Needs a loop with a known number of iterations, at least two, and a collective that depends on the counter and on elements of the
state that no iteration changes. The collectives that moved are marked as pipelined in their backend_config. XLA's
`CollectivePipeliner` in the direction backward.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import remove_dead
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcodes_in
from hlo_run.hlo_passes.collectives.pipelining.backward import chains, pipeline_backward
from hlo_run.hlo_passes.collectives.pipelining.cloning import Copier
from hlo_run.hlo_passes.collectives.pipelining.counted_loops import counted, counted_loops
from hlo_run.pass_support.hlo_pass import PassContext


class CollectivePipelinerBackward(Struct, frozen=True):
    """The pass; see the module's docstring.

    `opcodes`, joined by `+`, are those that move. With `shares` other instructions may use what a collective depends on.
    """

    name: ClassVar[str] = "collective-pipeliner-backward"

    opcodes: str = "all-gather"
    shares: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        opcodes = opcodes_in(self.opcodes)

        def is_chosen(instruction: HloInstruction) -> bool:
            return instruction.opcode in opcodes

        loops = counted_loops(module, is_chosen) if module.instructions_of(*opcodes) else []
        copier: Copier | None = None
        for found in loops:
            loop = counted(found)
            moved = chains(loop, is_chosen, self.shares) if loop is not None else []
            if loop is not None and moved:
                copier = copier or Copier.of(module)
                pipeline_backward(loop, moved, copier)
        if copier is not None:
            remove_dead(module)
