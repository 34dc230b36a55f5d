"""Remove dead elements of the states of loops, and the instructions that compute them.

    w = (s32[], f32[8]) while(t), body={.. ROOT tuple(i + 1, sine(x)) }   =>   w = (s32[]) while(t'), ..   if only x reads x

XLA's `HloModuleDCE`: bodies pass dead elements through, `simplify-while-loops` removes those, and dead code goes. Bodies that
several loops share stay.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.liveness import Liveness
from hlo_run.hlo.edit import Editor, remove_dead, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.control_flow.loops.while_loop_simplifier import WhileLoopSimplifier
from hlo_run.hlo_passes.subgraphs.tuple_simplification import simplify_tuples
from hlo_run.pass_support.hlo_pass import PassContext


class HloModuleDce(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "hlo-module-dce"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        liveness = Liveness(module)
        for loop in module.instructions_of("while"):
            if loop.shape.is_tuple and loop.while_body.root.opcode == "tuple" and len(loop.while_body.callers) == 1:
                _pass_through(loop, liveness)
        WhileLoopSimplifier().apply(ctx, module)
        simplify_tuples(module)
        remove_dead(module)


def _pass_through(loop: HloInstruction, liveness: Liveness) -> None:
    root, state = loop.while_body.root, loop.while_body.parameters[0]
    elements = list(root.operands)
    dead = [number for number in range(len(elements)) if not liveness.is_live(loop, (number,))]
    if not dead:
        return
    for number in dead:
        elements[number] = Editor(state).element(state, number)
    olds = root.operands
    root.operands = tuple(elements)
    remove_unused(dict.fromkeys(old for old in olds if old not in elements))
