"""Inline fusions that are in the computation of another fusion, so that a kernel has one level of fusion.

    f { .. ROOT m = multiply(i, x)   with   i = fusion(x), calls=sine }   =>   f { s = sine(x)  ROOT m = multiply(s, x) }

XLA has no such pass: it makes nested fusions for Triton only, and its emitters abort on others. Removes computations that are
no longer called.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import copy_instruction, remove_uncalled, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class NestedFusionInliner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "nested-fusion-inliner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place, the innermost fusions first."""
        del ctx
        bodies = dict.fromkeys(fusion.fused_computation for fusion in module.instructions_of("fusion"))
        nested = [body for body in bodies if any(inner.opcode == "fusion" for inner in body.instructions)]
        done: dict[HloComputation, None] = {}
        for body in nested:
            _flatten(module, body, done)
        if nested:
            remove_uncalled(module)


def _flatten(module: HloModule, computation: HloComputation, done: dict[HloComputation, None]) -> None:
    """Inline the fusions of a computation, whose own bodies are flattened first."""
    if computation in done:
        return
    done[computation] = None
    for fusion in [i for i in computation.post_order() if i.opcode == "fusion"]:
        _flatten(module, fusion.fused_computation, done)
        _inline(module, computation, fusion)


def _inline(module: HloModule, computation: HloComputation, fusion: HloInstruction) -> None:
    body = fusion.fused_computation
    made: dict[HloInstruction, HloInstruction] = dict(zip(body.parameters, fusion.operands, strict=True))
    for old in body.post_order():
        if old not in made:
            made[old] = computation.add(copy_instruction(old, [made[operand] for operand in old.operands]), before=fusion)
    root = made[body.root]
    for user in list(fusion.users):
        if root.opcode == "tuple" and user.opcode == "get-tuple-element":
            index = user.tuple_index
            module.replace(user, root.operands[index])
            computation.remove(user)
    module.replace(fusion, root)
    computation.remove(fusion)
    # Tuples that are no longer read, and unused results.
    inlined = [new for old, new in made.items() if old.opcode != "parameter" and not new.is_root]
    remove_unused([new for new in inlined if new.parent is computation and not new.users])
