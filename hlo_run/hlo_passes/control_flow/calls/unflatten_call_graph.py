"""Let calls of equal computations call one of them.

    call(x), to_apply=f;  call(y), to_apply=g   =>   call(x), to_apply=f;  call(y), to_apply=f   (if f and g do the same)

Names of instructions do not count, metadata and the order of operands do. XLA's `UnflattenCallGraph`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.value_keys import ValueKeys, freeze
from hlo_run.hlo.edit import remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class UnflattenCallGraph(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "unflatten-call-graph"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        calls = module.instructions_of("call")
        called = {call.to_apply for call in calls}
        keys = ValueKeys(sees_layouts=True)
        first: dict[Hashable, HloComputation] = {}
        chosen = {c: first.setdefault(_key(c, keys), c) for c in module.computations if c in called}
        changed = [call for call in calls if chosen[call.to_apply] is not call.to_apply]
        for call in changed:
            call.called = {"to_apply": (chosen[call.to_apply],)}
        if changed:
            remove_uncalled(module)


def _key(computation: HloComputation, keys: ValueKeys) -> Hashable:
    """Return a key of what a computation and those it calls do, with their metadata."""
    numbers: dict[HloInstruction, int] = {}
    details: list[Hashable] = []
    for value in computation.post_order():
        numbers[value] = len(numbers)
        inner = tuple(_key(called, keys) for called in value.called_computations)
        details.append((tuple(numbers[operand] for operand in value.operands), freeze(value.metadata), inner))
    return keys.of_computation(computation), tuple(details), computation.execution_thread
