"""Shape rules of tuples, calls, fusions, loops, tokens and parallel copies of a program (`ops.md` 10 and 11)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape
from hlo_run.ops.rule import Rule, brief, check_parameters, operand, refuse, tuple_or_one

_TOKEN = Shape("token")


def _tuple(instruction: HloInstruction) -> Shape:
    return Shape.make_tuple(tuple(o.shape for o in instruction.operands))


def _get_tuple_element(instruction: HloInstruction) -> Shape:
    source = operand(instruction, 0)
    index: int = instruction.attrs["index"]
    if not 0 <= index < len(source.tuple_shapes):
        raise refuse(f"index {index} does not name an element of the operand's shape {brief(source)}")
    return source.tuple_shapes[index]


def _operand_shapes(instruction: HloInstruction) -> list[Shape]:
    return [o.shape for o in instruction.operands]


def _call(instruction: HloInstruction) -> Shape:
    computation = instruction.called["to_apply"][0]
    check_parameters(computation, _operand_shapes(instruction), "computation")
    return computation.root.shape


def _fusion(instruction: HloInstruction) -> Shape:
    computation = instruction.called["calls"][0]
    check_parameters(computation, _operand_shapes(instruction), "fusion computation")
    return computation.root.shape


def _while(instruction: HloInstruction) -> Shape:
    state = operand(instruction, 0)
    condition, body = instruction.called["condition"][0], instruction.called["body"][0]
    check_parameters(condition, [state], "condition")
    check_parameters(body, [state], "body")
    if not condition.root.shape.compatible(Shape.array("pred", ())):
        raise refuse(f"condition '{condition.name}': expected pred[], found {brief(condition.root.shape)}")
    if not body.root.shape.compatible(state):
        raise refuse(f"body '{body.name}': expected {brief(state)}, found {brief(body.root.shape)}")
    return state


def _conditional(instruction: HloInstruction) -> Shape:
    selector, called = operand(instruction, 0), instruction.called
    branches = called.get("branch_computations") or tuple(
        called[name][0] for name in ("true_computation", "false_computation") if name in called
    )
    if selector.rank or selector.element_type not in ("pred", "s32"):
        raise refuse(f"the selector must be pred[] or s32[], but has shape {brief(selector)}")
    if not branches or (selector.element_type == "pred" and len(branches) != 2):
        raise refuse(f"a {selector.element_type} selector does not go with {len(branches)} branches")
    if len(instruction.operands) != len(branches) + 1:
        raise refuse(f"expects {len(branches) + 1} operands, but has {len(instruction.operands)} operands")
    for number, branch in enumerate(branches):
        check_parameters(branch, [operand(instruction, number + 1)], f"branch {number}")
        if not branch.root.shape.compatible(branches[0].root.shape):
            raise refuse(f"branches differ in shape: {brief(branches[0].root.shape)} and {brief(branch.root.shape)}")
    return branches[0].root.shape


def _first_operand(instruction: HloInstruction) -> Shape:
    return operand(instruction, 0)


def _token(instruction: HloInstruction) -> Shape:
    return _TOKEN


def _u32(instruction: HloInstruction) -> Shape:
    return Shape.array("u32", ())


def _all_operands(instruction: HloInstruction) -> Shape:
    return tuple_or_one(_operand_shapes(instruction)) if instruction.operands else instruction.shape


INFER: dict[str, Rule] = {
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "call": _call,
    "fusion": _fusion,
    "while": _while,
    "conditional": _conditional,
    "opt-barrier": _first_operand,
    "domain": _first_operand,
    "add-dependency": _first_operand,
    "after-all": _token,
    "partition-id": _u32,
    "replica-id": _u32,
    "all-reduce": _all_operands,
    "all-reduce-start": _all_operands,
    "all-reduce-done": _first_operand,
    "collective-broadcast": _all_operands,
}
