"""Simplify instructions by algebraic rules: `A + 0 => A`, `reshape(reshape(A)) => reshape(A)`, ..

The rules are in `algebraic/`, one file per family; each rule is a function with its before and after as docstring. A walk over
a computation, operands first, tries the rules of each opcode in order and applies the first that matches. It begins with the
instructions that nothing uses, and reads the operands of an instruction when it first meets it, so what a rule made is visited
only if it becomes an operand of an instruction that the walk has not met. XLA's `GpuAlgebraicSimplifier`. The pass runs before
layout assignment, and after it, when a result must have the layout of the instruction that it replaces, and reshapes that move no
byte become bitcasts.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from hlo_run.analysis.computation_order import computation_post_order
from hlo_run.hlo.edit import Leftovers, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.unchanged import is_unchanged_since, mark_settled
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.simplifiers.algebraic import (
    arithmetic,
    collectives,
    conversions,
    convolutions,
    functions,
    logic,
    products,
    rearranged,
    reductions,
    scatters,
    shaping,
    signs,
    sliced,
    slicing,
    tuples,
    windows,
)
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rule, Rules, is_plain
from hlo_run.ops.rule import compatible_up_to_precision
from hlo_run.pass_support.hlo_pass import PassContext

# The maximum number of walks, in case two rules undo each other: XLA's maximum for repeated passes.
_MOST_WALKS = 25


def _merged(*tables: Rules) -> Rules:
    merged: Rules = {}
    for table in tables:
        for opcode, rules in table.items():
            merged[opcode] = (*merged.get(opcode, ()), *rules)
    return merged


_ALWAYS = (
    arithmetic.RULES,
    conversions.RULES,
    functions.RULES,
    logic.RULES,
    shaping.RULES,
    slicing.RULES,
    sliced.RULES,
    scatters.RULES,
    signs.RULES,
    tuples.RULES,
    collectives.RULES,
)
_FREE = (slicing, sliced, shaping, rearranged, reductions, windows, products, scatters, convolutions, tuples)
FREE_RULES = _merged(*_ALWAYS, *(family.FREE_RULES for family in _FREE))
LAYOUT_RULES = _merged(*_ALWAYS, conversions.LAYOUT_RULES, products.LAYOUT_RULES, shaping.LAYOUT_RULES)
LAST_RULES = _merged(LAYOUT_RULES, functions.LAST_RULES)


class AlgebraicSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring.

    With `repeat`, it walks until nothing changes; otherwise once, since the pipeline is repeated as a whole. With `sees_layouts`,
    layouts are assigned; `is_last` adds the rules that remove reduce-precision.
    """

    name: ClassVar[str] = "algsimp"

    sees_layouts: bool = False
    repeat: bool = False
    is_last: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations except fusion bodies in place."""
        rules = (LAST_RULES if self.is_last else LAYOUT_RULES) if self.sees_layouts else FREE_RULES
        work = self.name, self.sees_layouts, self.is_last
        computations = [c for c in computation_post_order(module) if not c.is_fusion and not is_unchanged_since(module, work, c)]
        for _ in range(_MOST_WALKS if self.repeat else 1):
            changed: list[HloComputation] = []
            for computation in computations:
                sees_layouts = self.sees_layouts or _reads_bytes(computation)
                if _Walk(module, computation, rules, Rewriter(computation.root, sees_layouts, ctx.fuel)).run():
                    changed.append(computation)
                else:
                    mark_settled(module, work, computation)
            computations = changed


def _reads_bytes(computation: HloComputation) -> bool:
    """Return True if layouts matter although they are not assigned yet: the computation has a bitcast."""
    return any(instruction.opcode == "bitcast" for instruction in computation.instructions)


class _Walk(Struct):
    """One walk over a computation; `dead` has the unused instructions, whose operands are removed already."""

    module: HloModule
    computation: HloComputation
    rules: Rules
    rewriter: Rewriter
    changed: bool = False
    dead: Leftovers = field(default_factory=Leftovers)
    ordered: set[HloInstruction] = field(default_factory=set[HloInstruction])
    # New instructions that replaced unused ones.
    kept: set[HloInstruction] = field(default_factory=set[HloInstruction])

    def run(self) -> bool:
        """Walk, and return True if something changed."""
        count = len(self.computation.instructions)
        self.ordered = {p for i in self.computation.instructions for p in i.control_predecessors}
        unused = [i for i in self.computation.instructions if not i.users and not i.is_root and i not in self.ordered]
        met: set[HloInstruction] = set()
        done: set[HloInstruction] = set()
        for start in (*unused, self.computation.root):
            stack = [start]
            while stack:
                top = stack[-1]
                if top in met:
                    stack.pop()
                    if top not in done:
                        done.add(top)
                        self._visit(top)
                    continue
                met.add(top)
                # The last one pushed is visited first: operands in order, then control predecessors.
                before = (*top.operands, *top.control_predecessors) if top.control_predecessors else top.operands
                stack += [i for i in reversed(before) if i not in done]
        if not self.changed:
            return False
        fresh = self.computation.instructions[count:]
        self.dead.remove()
        remove_unused([i for i in fresh if not i.users and i not in self.kept])
        return True

    def _visit(self, instruction: HloInstruction) -> None:
        rules = self.rules.get(instruction.opcode)
        if not rules or instruction in self.dead or instruction.control_predecessors or instruction in self.ordered:
            return
        self._try(instruction, rules)

    def _try(self, old: HloInstruction, rules: tuple[Rule, ...]) -> None:
        fits = _is_any if old.opcode in _ON_ANY_SHAPE else _is_static if old.opcode in _ON_BITS else is_plain
        if not fits(old.shape):
            return
        for operand in old.operands:  # a loop is faster than a generator, and this is asked of every instruction in every walk
            if not fits(operand.shape):
                return
        rewriter, count = self.rewriter, len(self.computation.instructions)
        rewriter.origin = old
        for rule in rules:
            new = rule(rewriter, old)
            if new is old:
                self.changed = True
                return
            if new is not None and (fitting := self._fitting(old, new)) is not None and rewriter.fuel.take("algsimp"):
                self._replace(old, fitting)
                return
        if len(self.computation.instructions) > count:
            remove_unused(self.computation.instructions[count:])

    def _fitting(self, old: HloInstruction, new: HloInstruction) -> HloInstruction | None:
        """Return the replacement of `old`; None if it differs in the float width, the sharding or (if assigned) the layout."""
        sharding = old.sharding
        if sharding is not None and new.sharding not in (None, sharding):
            return None
        if new.shape == old.shape:
            return new
        if new.shape.element_type != old.shape.element_type and compatible_up_to_precision(new.shape, old.shape):
            return None
        assert new.shape.compatible(old.shape), f"{old} became {new}"
        return None if self.rewriter.sees_layouts else new

    def _replace(self, old: HloInstruction, new: HloInstruction) -> None:
        self.changed = True
        if not old.users and not old.is_root:
            self.kept.add(new)
        self.module.replace(old, new)
        self.dead.add(old)


# Opcodes whose rules move whole values.
_ON_ANY_SHAPE: frozenset[Opcode] = frozenset(("custom-call", "get-tuple-element", "opt-barrier"))

_ON_BITS: tuple[Opcode, ...] = ("bitcast", "bitcast-convert", "reshape", "transpose")


def _is_static(shape: Shape) -> bool:
    """True also for elements of a few bits: a bitcast-convert makes bytes of them, a reshape or transpose moves them."""
    return shape.is_array and not shape.dynamic_dims


def _is_any(shape: Shape) -> bool:
    del shape
    return True
