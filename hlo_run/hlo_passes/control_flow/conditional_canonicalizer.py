"""Let every conditional return a tuple, and pass tuples to its branches.

    c = f32[4] conditional(p, x, y), ..   =>   c = (f32[4]) conditional(p, tuple(x), tuple(y)), ..
                                               get-tuple-element(c), index=0

Conditionals that share a branch with another caller stay; `flatten-call-graph` runs before. XLA's `ConditionalCanonicalizer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, clone_computation, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.hlo_pass import PassContext


class ConditionalCanonicalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conditional-canonicalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for conditional in module.instructions_of("conditional"):
            if not conditional.shape.is_tuple:
                _make_own(module, conditional)
                _canonicalize(module, conditional)


def _make_own(module: HloModule, conditional: HloInstruction) -> None:
    """Give the conditional its own copies of branches that others call, too."""
    shared = [branch for branch in dict.fromkeys(conditional.called_computations) if len(branch.callers) > 1]
    if shared:
        copies = {branch: clone_computation(module, branch) for branch in shared}
        conditional.called = {name: tuple(copies.get(b, b) for b in group) for name, group in conditional.called.items()}


def _canonicalize(module: HloModule, conditional: HloInstruction) -> None:
    editor = Editor(conditional)
    branches = list(dict.fromkeys(conditional.called_computations))
    wrapped: list[HloInstruction] = []
    for branch, argument in zip(conditional.called_computations, conditional.operands[1:], strict=True):
        if argument.shape.is_tuple:
            wrapped.append(argument)
            continue
        wrapped.append(editor.tuple([argument]))
        if branch in branches:
            _take_tuple(branch)
            branches.remove(branch)
    for branch in dict.fromkeys(conditional.called_computations):
        branch.root = Editor(branch.root).tuple([branch.root])
    shape = Shape.make_tuple((conditional.shape,))
    new = copy_instruction(conditional, [conditional.operands[0], *wrapped], shape, f"{conditional.name}.clone")
    editor.computation.add(new)
    new.control_predecessors = list(conditional.control_predecessors)
    module.replace(conditional, editor.element(new, 0))
    for other in editor.computation.instructions:
        if conditional in other.control_predecessors:
            other.control_predecessors = [new if p is conditional else p for p in other.control_predecessors]
    # `remove_unused` would keep it if a branch has an effect.
    editor.computation.remove(conditional)


def _take_tuple(branch: HloComputation) -> None:
    """Wrap the type of the parameter into a tuple."""
    (parameter,) = branch.parameters
    editor = Editor(parameter)
    outer = editor.add("parameter", Shape.make_tuple((parameter.shape,)), name=parameter.name, parameter_number=0)
    element = editor.element(outer, 0)
    assert branch.module is not None
    branch.module.replace(parameter, element)
    branch.remove(parameter)
