"""Let every conditional return a tuple, and pass tuples to its branches.

    c = f32[4] conditional(p, x, y), ..   =>   c = (f32[4]) conditional(p, tuple(x), tuple(y)), ..
                                               get-tuple-element(c), index=0

Conditionals that share a branch with another caller stay; `flatten-call-graph` runs before. XLA's `ConditionalCanonicalizer`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, clone_with_fusions, copy_instruction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class ConditionalCanonicalizer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "conditional-canonicalizer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for conditional in module.in_post_order("conditional"):
            if not all(shape.is_tuple for shape in (conditional.shape, *(value.shape for value in conditional.operands[1:]))):
                _make_own(module, conditional)
                _canonicalize(module, conditional)


def _make_own(module: HloModule, conditional: HloInstruction) -> None:
    """Give the conditional its own copies of branches that others call, too."""
    shared = [branch for branch in dict.fromkeys(conditional.called_computations) if len(branch.callers) > 1]
    if shared:
        copies = {branch: clone_with_fusions(module, branch) for branch in shared}
        conditional.called = {name: tuple(copies.get(b, b) for b in group) for name, group in conditional.called.items()}


def _canonicalize(module: HloModule, conditional: HloInstruction) -> None:
    editor = Editor(conditional, derives=False)
    for branch in dict.fromkeys(conditional.called_computations):
        if not branch.parameters[0].shape.is_tuple:
            _take_tuple(module, branch)
        if not branch.root.shape.is_tuple:
            branch.root = Editor(branch.root, derives=False).tuple([branch.root])
    wrapped = [value if value.shape.is_tuple else editor.tuple([value]) for value in conditional.operands[1:]]
    if conditional.shape.is_tuple:
        conditional.operands = (conditional.operands[0], *wrapped)
        return
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


def _take_tuple(module: HloModule, branch: HloComputation) -> None:
    """Wrap the type of the parameter into a tuple. What is new has no metadata, as in XLA."""
    (parameter,) = branch.parameters
    editor = Editor(parameter, derives=False)
    outer = editor.add("parameter", Shape.make_tuple((parameter.shape,)), name=parameter.name, parameter_number=0)
    module.replace_uses(parameter, editor.element(outer, 0))
    branch.remove(parameter)
