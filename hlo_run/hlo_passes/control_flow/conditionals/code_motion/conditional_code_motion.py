"""Move instructions across the borders of conditionals.

    branches: ROOT tuple(add(reshape(x), ..)), ROOT tuple(add(reshape(y), ..))   =>   ROOT tuple(x, ..), ROOT tuple(y, ..)
    conditional(..)[0]                                                                add(reshape(conditional(..)[0]), ..)

Equal instructions at the ends of all branches move behind the conditional, users of its result move into the branches, and
operands that not all branches use move into those that do. The direction that keeps more values beside their users wins. Where
nothing moves, converts of results move out. XLA's `ConditionalCodeMotion`, without its tuning. Conditionals whose result has
other users than get-tuple-elements stay, and what has control dependencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field

from hlo_run.hlo.edit import clone_with_fusions, remove_dead
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.boundary import Boundary
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.converts import move_converts_out
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.operands_inwards import move_operands_in
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.outwards import can_move_out, move_out
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.search import Queue, Search
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.users_inwards import move_users_in
from hlo_run.hlo_passes.subgraphs.tuple_simplification import simplify_tuples
from hlo_run.pass_support.hlo_pass import PassContext


class ConditionalCodeMotion(Struct, frozen=True):
    """The pass; see the module's docstring.

    Without `sees_layouts`, instructions that differ in layouts count as equal. `moves_converts` says whether converts move where
    nothing else does.
    """

    name: ClassVar[str] = "conditional-code-motion"

    sees_layouts: bool = True
    moves_converts: bool = True

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        version = module.version
        for conditional in module.in_post_order("conditional"):
            if all(user.opcode == "get-tuple-element" for user in conditional.users) or not conditional.shape.is_tuple:
                self._move(module, conditional)
        if module.version != version:
            remove_dead(module)
            simplify_tuples(module)
            remove_dead(module)

    def _move(self, module: HloModule, conditional: HloInstruction) -> None:
        plan = _plan(conditional, self.sees_layouts)
        is_shared = any(count > 1 for count in _uses(conditional).values())
        if not plan.inwards and not plan.outwards:
            if self.moves_converts and not is_shared:
                move_converts_out(module, conditional, self.sees_layouts)
            return
        copies = _make_own(module, conditional)
        for moved, stops in plan.outwards:
            move_out(module, conditional, _copied(moved, copies), _copied(stops, copies))
        for moved in plan.inwards:
            if moved[0].place == "user":
                move_users_in(module, conditional, moved)
            else:
                move_operands_in(module, conditional, moved)


class _Plan(Struct):
    """The instructions that move out, with the boundaries where that stops, or else the instructions that move in."""

    outwards: list[tuple[list[Boundary], list[Boundary]]] = field(default_factory=list[tuple[list[Boundary], list[Boundary]]])
    inwards: list[list[Boundary]] = field(default_factory=list[list[Boundary]])


def _plan(conditional: HloInstruction, sees_layouts: bool) -> _Plan:
    """Return the moves of the direction that gains more; of two equal ones, those outwards."""
    plan = _Plan()
    gains = {"out": 0, "in": 0}
    visits: dict[HloInstruction, int] = {}
    queue = Queue(Boundary((conditional,), "inside"))
    while (boundary := queue.take()) is not None:
        search = Search(conditional, sees_layouts, visits)
        search.run(boundary)
        if not search.moved:
            for stop in search.stops:
                queue.add(stop)
            continue
        gain = search.benefit()
        is_outwards = search.moved[0].place == "inside"
        if gain < 0 or (is_outwards and not can_move_out(conditional, search.moved, search.stops)):
            search.forget()
            continue
        gains["out" if is_outwards else "in"] += gain
        if is_outwards:
            plan.outwards.append((search.moved, search.stops))
        else:
            plan.inwards.append(search.moved)
    if gains["out"] >= gains["in"] and plan.outwards:
        return _Plan(outwards=plan.outwards)
    return _Plan(inwards=plan.inwards) if gains["in"] > gains["out"] else _Plan()


def _uses(conditional: HloInstruction) -> Counter[HloComputation]:
    """Return how often each branch is called, by this and by other instructions."""
    branches = dict.fromkeys(conditional.called_computations)
    return Counter({branch: sum(caller.called_computations.count(branch) for caller in branch.callers) for branch in branches})


def _make_own(module: HloModule, conditional: HloInstruction) -> dict[int, Mapping[HloInstruction, HloInstruction]]:
    """Give each branch that is called elsewhere, too, a separate copy; return their instructions' copies by number."""
    uses = _uses(conditional)
    copies: dict[int, Mapping[HloInstruction, HloInstruction]] = {}
    groups: dict[str, tuple[HloComputation, ...]] = {}
    number = 0
    for name, group in conditional.called.items():
        own: list[HloComputation] = []
        for branch in group:
            if uses[branch] > 1:
                uses[branch] -= 1
                copy = clone_with_fusions(module, branch)
                copies[number] = dict(zip(branch.instructions, copy.instructions, strict=True))
                branch = copy
            own.append(branch)
            number += 1
        groups[name] = tuple(own)
    conditional.called = groups
    return copies


def _copied(boundaries: list[Boundary], copies: dict[int, Mapping[HloInstruction, HloInstruction]]) -> list[Boundary]:
    return [
        Boundary(tuple(copies.get(n, {}).get(value, value) for n, value in enumerate(boundary.values)), boundary.place)
        for boundary in boundaries
    ]
