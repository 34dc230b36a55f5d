"""Replace a conditional by the branch that it always takes, or by both branches and a select if they are cheap.

    c = conditional(constant(true), a, b), true_computation=f, ..   =>   the instructions of f, on a
    c = conditional(p, a, b), true_computation=f, ..   =>   select(broadcast(p), f(a), g(b)) if both are elementwise and the like

A branch number out of range means the last branch; a number converted from a pred selects as the pred does. A branch that
computes nothing stays a branch: to skip it is faster. Results that nothing reads go, one of two equal results, too, and so do
elements of an operand that its branch does not read. XLA's `ConditionalSimplifier`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import Editor, InstructionMaker, has_side_effect, remove_unused
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE
from hlo_run.hlo_passes.control_flow.conditionals.conditional_values import branches, may_change, narrow_operands, narrow_results
from hlo_run.hlo_passes.subgraphs.inlining import inline
from hlo_run.pass_support.hlo_pass import PassContext

# The opcodes that a branch may have if it is to be computed unconditionally.
_CHEAP = (ELEMENTWISE - opcode_set("""map""")) | opcode_set("""broadcast concatenate constant dynamic-slice get-tuple-element pad
    parameter reduce reshape slice tuple""")

# A conditional with this attribute belongs to a group that the scheduler keeps together.
_SCHEDULED = "_scheduling_group_id"
# The branches of one with this attribute are not inlined.
_KEPT = ("inlineable", "false")


class SimplifyConditional(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "simplify-conditional"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, in the order in which the computations were defined. What is not called any more stays."""
        del ctx
        if not module.instructions_of("conditional"):
            return
        conditionals = [i for c in module.computations for i in c.post_order() if i.opcode == "conditional"]
        changeable = [conditional for conditional in conditionals if may_change(conditional)]
        for conditional in conditionals:
            if conditional.parent is not None and conditional.parent.module is not None:
                if conditional in changeable:
                    narrow_results(module, conditional)
                _remove(module, conditional)
        left = [c for c in changeable if c.parent is not None and c.parent.module is not None]
        narrow_operands(module, left)


def _remove(module: HloModule, conditional: HloInstruction) -> None:
    """Replace a conditional by a branch, or by both, if that is possible."""
    if _has_hint(conditional, _SCHEDULED):
        return
    if _has_hint(conditional, *_KEPT):
        _call_taken(module, conditional)
        return
    by_pred = _pred_of(conditional)
    if by_pred is not None and all(map(_is_cheap, branches(conditional))):
        _compute_both(module, conditional, by_pred)
        return
    number, computation = _taken(conditional), conditional.parent
    if number is not None and computation is not None:
        inline(module, conditional, branches(conditional)[number], (conditional.operands[1 + number],))
        # Its effects are now those of the inlined instructions.
        computation.remove_all({conditional})


def _has_hint(conditional: HloInstruction, name: str, value: str | None = None) -> bool:
    """Return True for a conditional with this frontend attribute (of this value)."""
    found = frontend_attribute(conditional, name)
    return found is not None and value in (None, found)


def _call_taken(module: HloModule, conditional: HloInstruction) -> None:
    """Replace the conditional by a call of the branch that it always takes, if there is one."""
    number, computation = _taken(conditional), conditional.parent
    if number is None or computation is None:
        return
    operands, called = [conditional.operands[1 + number]], {"to_apply": (branches(conditional)[number],)}
    maker = InstructionMaker(computation, conditional.where)
    frontend_attributes = conditional.frontend_attributes
    kept = {} if frontend_attributes is None else {"frontend_attributes": frontend_attributes}
    call = maker.add_with("call", conditional.shape, operands, kept, called)
    module.replace(conditional, call)
    computation.remove_all({conditional})


def _pred_of(conditional: HloInstruction) -> tuple[HloInstruction, int] | None:
    """Return the pred that selects one of two branches, and the branch number that it takes when true."""
    selector = conditional.operands[0]
    if len(branches(conditional)) != 2 or conditional.control_predecessors or has_side_effect(conditional):
        return None
    if selector.shape.element_type == "pred":
        return selector, 0
    is_converted = selector.opcode == "convert" and selector.operands[0].shape.element_type == "pred"
    return (selector.operands[0], 1) if is_converted else None


def _is_cheap(branch: HloComputation) -> bool:
    """Return True for a branch that computes something, or passes a token on, only with elementwise ops, moves and reduces."""
    opcodes = {i.opcode for i in branch.instructions}
    results = [leaf for _, leaf in branch.root.shape.leaves()]
    computes = not opcodes <= {"tuple", "get-tuple-element", "parameter"} or not all(leaf.is_array for leaf in results)
    is_plain = all(leaf.element_type == "token" or (leaf.is_array and not any(leaf.dynamic_dims)) for leaf in results)
    return computes and is_plain and opcodes <= _CHEAP and not any(i.control_predecessors for i in branch.instructions)


def _compute_both(module: HloModule, conditional: HloInstruction, chooser: tuple[HloInstruction, int]) -> None:
    editor, (pred, first) = Editor(conditional), chooser
    # Temporary calls, which the branches' instructions replace; those of the branch for false come first, as in XLA.
    pairs = zip(branches(conditional), conditional.operands[1:], strict=True)
    calls = [editor.add("call", conditional.shape, [operand], {"to_apply": [branch]}) for branch, operand in pairs]
    one, two = calls if first == 0 else calls[::-1]
    # Only the calls have the metadata of the conditional, and what replaces it.
    module.replace(conditional, _chosen(Editor(conditional, derives=False), pred, one, two))
    remove_unused([conditional])
    for call in (two, one):
        inline(module, call, call.to_apply)
        remove_unused([call])


def _chosen(editor: Editor, pred: HloInstruction, one: HloInstruction, two: HloInstruction) -> HloInstruction:
    """Select one of two values; of tuples, each element. A token of both waits for both."""
    if one.shape.is_tuple:
        shapes = enumerate(one.shape.tuple_shapes)
        pairs = [[editor.add("get-tuple-element", shape, [side], index=n) for side in (one, two)] for n, shape in shapes]
        return editor.tuple([_chosen(editor, pred, *pair) for pair in pairs])
    if one.shape.element_type == "token":
        return editor.add("after-all", one.shape, [one, two])
    return editor.select(editor.broadcast(pred, one.shape.dims) if one.shape.dims else pred, one, two)


def _taken(conditional: HloInstruction) -> int | None:
    """Return the number of the branch that is always taken, None if it is not known."""
    selector, found = conditional.operands[0], branches(conditional)
    if selector.opcode == "constant" and not selector.shape.dims:
        value = selector.constant_array
        if selector.shape.element_type == "pred":
            return 0 if bool(value) else 1
        return int(value) if 0 <= int(value) < len(found) else len(found) - 1
    if len(set(conditional.operands[1:])) == 1:
        keys = ValueKeys(sees_layouts=True)
        return 0 if len({keys.of_computation(branch) for branch in found}) == 1 else None
    return None
