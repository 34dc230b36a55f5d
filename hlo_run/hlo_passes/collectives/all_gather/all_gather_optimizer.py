"""Gather the result of an elementwise operation, not its two operands.

    a = f32[8] all-gather(x), dimensions={0}
    b = f32[8] all-gather(y), dimensions={0}
    s = f32[8] add(a, b)                         =>   s = f32[8] all-gather(add(x, y)), dimensions={0}

For commutative operations. XLA's `AllGatherOptimizer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import COMMUTATIVE
from hlo_run.pass_support.hlo_pass import PassContext


class AllGatherOptimizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "all-gather-optimizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        if not module.instructions_of("all-gather"):
            return
        for computation in [c for c in module.computations if not c.is_fusion]:
            for instruction in computation.post_order():
                if instruction.opcode in COMMUTATIVE and [o.opcode for o in instruction.operands] == ["all-gather"] * 2:
                    _gather_result(module, instruction)


def _gather_result(module: HloModule, instruction: HloInstruction) -> None:
    one, two = instruction.operands
    names = ("constrain_layout", "use_global_device_ids")
    if any(bool(one.attrs.get(name)) != bool(two.attrs.get(name)) for name in names):
        return
    if one.replica_groups.groups() != two.replica_groups.groups() or one.operands[0].shape != two.operands[0].shape:
        return
    if len(one.users) != 1 or len(two.users) != 1 or one is two or one.dimensions != two.dimensions:
        return
    editor = Editor(instruction)
    combined = editor.add(instruction.opcode, one.operands[0].shape, [one.operands[0], two.operands[0]])
    attributes = {name: value for name, value in one.attrs.items() if name not in ("constrain_layout", "metadata")}
    made = editor.add_with("all-gather", one.shape, [combined], attributes)
    module.replace(instruction, made)
    computation = editor.computation
    for gone in (instruction, one, two):
        computation.remove(gone)
