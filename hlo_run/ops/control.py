"""Shape rules of tuples, calls, fusions, control flow, custom calls, barriers and device ids (`ops.md` 10 and 11)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.printer import instruction_to_string
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.buffer_calls import CROSSINGS, array_of
from hlo_run.ops.rule import Rule, array_operand, brief, check_parameters, is_open, operand, refuse


def _tuple(instruction: HloInstruction) -> Shape:
    return Shape.make_tuple(tuple(o.shape for o in instruction.operands))


def _get_tuple_element(instruction: HloInstruction) -> Shape:
    source = operand(instruction, 0)
    index = instruction.tuple_index
    if not 0 <= index < len(source.tuple_shapes):
        raise refuse(f"index {index} does not name an element of the operand's shape {brief(source)}")
    return source.tuple_shapes[index]


def _operand_shapes(instruction: HloInstruction) -> list[Shape]:
    return [o.shape for o in instruction.operands]


def _call(instruction: HloInstruction) -> Shape:
    computation = instruction.to_apply
    check_parameters(computation, _operand_shapes(instruction), "computation")
    return computation.root.shape


def _fusion(instruction: HloInstruction) -> Shape:
    computation = instruction.called["calls"][0]
    check_parameters(computation, _operand_shapes(instruction), "fusion computation")
    if len(computation.callers) > 1:
        names = " and ".join(f"'{caller.name}'" for caller in computation.callers[:2])
        raise refuse(f"fusion computation '{computation.name}' has one fusion, but is called by {names}")
    for fused in computation.instructions:
        if not fused.users and fused is not computation.root and fused.opcode != "parameter":
            raise refuse(f"'{fused.name}' of fusion computation '{computation.name}' is neither used nor the root")
    _check_aliasing(instruction)
    return computation.root.shape


def _custom_call(instruction: HloInstruction) -> Shape:
    _check_aliasing(instruction)
    return instruction.shape


def _check_aliasing(instruction: HloInstruction) -> None:
    """Refuse aliases of outputs and operands that do not exist or differ in shape."""
    aliasing = instruction.output_to_operand_aliasing
    for output, number, place in aliasing.pairs:
        if not 0 <= number < len(instruction.operands):
            raise refuse(f"output_to_operand_aliasing names operand {number} of {len(instruction.operands)}")
        found, expected = _part(operand(instruction, number), place), _part(instruction.shape, output)
        if found is None:
            raise refuse(f"output_to_operand_aliasing names {braces(place)} of {brief(operand(instruction, number))}")
        if expected is None:
            raise refuse(f"output_to_operand_aliasing names {braces(output)} of {brief(instruction.shape)}")
        if instruction.custom_call_target in CROSSINGS:
            found, expected = array_of(found), array_of(expected)
        if not found.compatible(expected):
            raise refuse(f"operand {number} at {braces(place)} shares a buffer: expected {brief(expected)}, found {brief(found)}")


def _part(shape: Shape, index: tuple[int, ...]) -> Shape | None:
    for number in index:
        if number >= len(shape.tuple_shapes):
            return None
        shape = shape.tuple_shapes[number]
    return shape


def _while(instruction: HloInstruction) -> Shape:
    state = operand(instruction, 0)
    condition, body = instruction.while_condition, instruction.while_body
    for computation, what in ((body, "body"), (condition, "condition")):
        check_parameters(computation, [state], what)
        _check_dynamic_state(instruction, computation, state)
    if not condition.root.shape.compatible(Shape.array("pred", ())):
        raise refuse(f"condition '{condition.name}': expected pred[], found {brief(condition.root.shape)}")
    if not body.root.shape.compatible(state):
        raise refuse(f"body '{body.name}': expected {brief(state)}, found {brief(body.root.shape)}")
    for shape in (body.root.shape, instruction.shape):
        if not is_open(shape) and shape.compatible(state) and not state.same_dynamic_dims(shape):
            raise refuse(
                f"Expected instruction to have shape equal to {brief(state)}, actual shape is {brief(shape)}", _KEEP_DYNAMIC
            )
    return state


_KEEP_DYNAMIC = "give the operand, the parameters, the body's root and the result the same dynamic dimensions, such as s32[<=4]"


def _check_dynamic_state(loop: HloInstruction, computation: HloComputation, state: Shape) -> None:
    """Refuse a parameter whose dynamic dimensions differ from the state's, with the message of XLA's verifier."""
    parameter = computation.parameters[0]
    if not state.same_dynamic_dims(parameter.shape):
        given, taken, user = (instruction_to_string(i) for i in (loop.operands[0], parameter, loop))
        raise refuse(f"Operand {given} shape does not match parameter's {taken} in {user}", _KEEP_DYNAMIC)


def _conditional(instruction: HloInstruction) -> Shape:
    selector, called = operand(instruction, 0), instruction.called
    branches = called.get("branch_computations") or tuple(
        called[name][0] for name in ("true_computation", "false_computation") if name in called
    )
    if selector.rank or selector.element_type not in ("pred", "s32"):
        raise refuse(f"the selector must be pred[] or s32[], but has shape {brief(selector)}")
    if not branches or (selector.element_type == "pred" and len(branches) != 2):
        raise refuse(f"a {selector.element_type} selector does not match {len(branches)} branches")
    if len(instruction.operands) != len(branches) + 1:
        raise refuse(f"expects {len(branches) + 1} operands, but has {len(instruction.operands)} operands")
    for number, branch in enumerate(branches):
        check_parameters(branch, [operand(instruction, number + 1)], f"branch {number}")
        if not branch.root.shape.compatible(branches[0].root.shape):
            raise refuse(f"branches differ in shape: {brief(branches[0].root.shape)} and {brief(branch.root.shape)}")
    return branches[0].root.shape


def _first_operand(instruction: HloInstruction) -> Shape:
    return operand(instruction, 0)


def _u32(instruction: HloInstruction) -> Shape:
    return Shape.array("u32", ())


def _opt_barrier(instruction: HloInstruction) -> Shape:
    # XLA only infers array shapes for it.
    return array_operand(instruction) if is_open(instruction.shape) else operand(instruction, 0)


INFER: dict[Opcode, Rule] = {
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "call": _call,
    "fusion": _fusion,
    "custom-call": _custom_call,
    "while": _while,
    "conditional": _conditional,
    "opt-barrier": _opt_barrier,
    "domain": _first_operand,
    "partition-id": _u32,
    "replica-id": _u32,
}
