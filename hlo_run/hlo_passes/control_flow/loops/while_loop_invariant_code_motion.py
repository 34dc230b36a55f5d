"""Move instructions out of loop bodies if all their operands are the same in every iteration.

    body: .. s = sine(get-tuple-element(state)) of an unchanged element   =>   s = sine(x), a new element of the loop's state

Instructions that are cheap or large (broadcasts, reshapes, constants, ..) move only with an instruction that uses them. XLA's
`WhileLoopInvariantCodeMotion`. Loops that run at most once are left alone.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.loop_counter import find_counter
from hlo_run.hlo.edit import has_side_effect, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo_passes.control_flow.loops.hoisting import ends_after_one, hoist, is_pinned, shape_bytes, unchanged_elements
from hlo_run.pass_support.hlo_pass import PassContext

_MOVES_WITH_OTHERS: frozenset[Opcode] = frozenset(("bitcast", "broadcast", "iota", "reverse", "slice", "transpose", "tuple"))


class WhileLoopInvariantCodeMotion(Struct, frozen=True):
    """The pass; see the module's docstring.

    With `hoist_constants` or `hoist_reshapes` these move alone, too; without `hoist_other` nothing else moves. An instruction
    stays if its result is more than `hoist_size_inflation_ratio` times as large as its operands.
    """

    name: ClassVar[str] = "while-loop-invariant-code-motion"

    hoist_constants: bool = False
    hoist_reshapes: bool = False
    hoist_other: bool = True
    hoist_size_inflation_ratio: float | None = None

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, inner loops before outer ones."""
        del ctx
        version = module.version
        for loop in reversed(module.instructions_of("while")):
            attributes = loop.frontend_attributes
            if loop.parent is not None and "_xla_disable_loop_instr_hoisting" not in str(attributes or ""):
                self._hoist(module, loop)
        if module.version != version:
            remove_uncalled(module)

    def _hoist(self, module: HloModule, loop: HloInstruction) -> None:
        body = loop.while_body
        if not loop.shape.is_tuple or body.root.opcode != "tuple" or is_pinned(body):
            return
        counter = find_counter(loop)
        if (counter is not None and counter.trip_count in (0, 1)) or ends_after_one(loop):
            return
        known = unchanged_elements(body)
        if not known and not self.hoist_constants:
            return
        moved = self._invariants(body, known)
        if not moved:
            return
        hoist(module, loop, moved)

    def _invariants(self, body: HloComputation, known: set[HloInstruction]) -> list[HloInstruction]:
        """Return the instructions to move, operands first."""
        moved: list[HloInstruction] = []
        ordered = {p for i in body.instructions for p in i.control_predecessors}
        for old in body.post_order():
            if old in known or old.opcode in ("after-all", "parameter") or old.control_predecessors or old in ordered:
                continue
            if has_side_effect(old) or not self._may_move(old):
                continue
            if not all(operand in known or operand.opcode == "constant" for operand in old.operands):
                continue
            if not self._waits(old):
                moved.append(old)
            if old.opcode != "constant" or not self._waits(old):
                known.add(old)
        return moved

    def _may_move(self, old: HloInstruction) -> bool:
        if not self.hoist_other and old.opcode not in ("constant", "reshape"):
            return False
        if self.hoist_size_inflation_ratio is None or old.opcode == "constant":
            return True
        size = sum(shape_bytes(operand.shape) for operand in old.operands)
        return shape_bytes(old.shape) <= size * self.hoist_size_inflation_ratio

    def _waits(self, old: HloInstruction) -> bool:
        """Return True for an instruction that moves only with a user."""
        if old.opcode == "constant":
            return not self.hoist_constants
        if old.opcode == "reshape":
            return not self.hoist_reshapes
        return old.opcode in _MOVES_WITH_OTHERS or (old.opcode == "custom-call" and old.custom_call_target == "Sharding")
