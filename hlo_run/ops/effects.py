"""Shape rules of random numbers, tokens, transfers to and from host or devices, and async chains (`ops.md` 9 and 10)."""

from __future__ import annotations

from hlo_run.hlo.async_ops import async_start, execution_thread
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.rule import TOKEN, Rule, array_operands, brief, operand, refuse

_CONTEXT = Shape.array("u32", ())
_STATE = Shape.array("u64", (2,))


def _rng(instruction: HloInstruction) -> Shape:
    if len(instruction.operands) != 2:
        raise refuse(f"expects 2 operands, but has {len(instruction.operands)} operands")
    first, second = array_operands(instruction)
    if first.rank or second.rank:
        raise refuse(f"the parameters must be scalars, but have shapes {brief(first)} and {brief(second)}")
    result = instruction.shape
    if first.element_type != second.element_type or result.element_type != first.element_type:
        raise refuse(f"the parameters {brief(first)} and {brief(second)} and the result {brief(result)} differ in element type")
    distribution = instruction.distribution
    if distribution == "rng_invalid":
        raise refuse("rng_invalid is not a distribution")
    allowed = ("float",) if distribution == "rng_normal" else ("float", "signed", "unsigned", "pred")
    if first.dtype.kind not in allowed:
        raise refuse(f"{distribution} does not support elements of type {first.element_type}")
    return result


def _rng_bit_generator(instruction: HloInstruction) -> Shape:
    state, shape = operand(instruction, 0), instruction.shape
    if shape.is_array:
        return shape
    if not shape.is_tuple or len(shape.tuple_shapes) != 2:
        raise refuse(f"expects a tuple of state and bits, but has shape {brief(shape)}")
    if not shape.tuple_shapes[0].compatible(state):
        raise refuse(f"the state has operand shape {brief(state)}, but result shape {brief(shape.tuple_shapes[0])}")
    return shape


def _rng_state(instruction: HloInstruction) -> Shape:
    return _STATE


def _check_token(instruction: HloInstruction, number: int) -> None:
    shape = operand(instruction, number)
    if shape.element_type != "token":
        raise refuse(f"operand {number}: expected token[], found {brief(shape)}")


def _after_all(instruction: HloInstruction) -> Shape:
    # XLA does not check the operands either.
    return TOKEN


def _add_dependency(instruction: HloInstruction) -> Shape:
    _check_token(instruction, 1)
    return operand(instruction, 0)


def _infeed(instruction: HloInstruction) -> Shape:
    _check_token(instruction, 0)
    return Shape.make_tuple((instruction.shape.tuple_shapes[0], TOKEN)) if instruction.shape.tuple_shapes else TOKEN


def _outfeed(instruction: HloInstruction) -> Shape:
    _check_token(instruction, 1)
    data, written = operand(instruction, 0), instruction.outfeed_shape
    if isinstance(written, Shape) and not written.compatible(data):
        raise refuse(f"outfeed_shape: expected {brief(data)}, found {brief(written)}")
    return TOKEN


def _send(instruction: HloInstruction) -> Shape:
    _check_token(instruction, 1)
    return Shape.make_tuple((operand(instruction, 0), _CONTEXT, TOKEN))


def _send_done(instruction: HloInstruction) -> Shape:
    return TOKEN


def _recv(instruction: HloInstruction) -> Shape:
    # XLA does not check for a token here.
    return Shape.make_tuple((instruction.shape.tuple_shapes[0], _CONTEXT, TOKEN)) if instruction.shape.tuple_shapes else TOKEN


def _recv_done(instruction: HloInstruction) -> Shape:
    started = operand(instruction, 0)
    if not started.tuple_shapes:
        raise refuse(f"the operand must be a tuple, but has shape {brief(started)}")
    return Shape.make_tuple((started.tuple_shapes[0], TOKEN))


def _copy_start(instruction: HloInstruction) -> Shape:
    source = operand(instruction, 0)
    return Shape.make_tuple((source, source, _CONTEXT))


def _copy_done(instruction: HloInstruction) -> Shape:
    started = operand(instruction, 0).tuple_shapes
    if len(started) < 2 or not started[0].compatible(started[1]):
        raise refuse(f"the operand must be a tuple of copy and original, but has shape {brief(operand(instruction, 0))}")
    return started[0]


def _async_start(instruction: HloInstruction) -> Shape:
    shape, computation = instruction.shape, _wrapped(instruction)
    _check_async_shape(instruction.opcode, shape, computation)
    given = tuple(o.shape for o in instruction.operands)
    inputs = shape.tuple_shapes[0].tuple_shapes
    if len(given) != len(inputs):
        raise refuse(f"has {len(given)} operands, but element 0 of its shape has {len(inputs)}")
    for number, (found, expected) in enumerate(zip(given, inputs, strict=True)):
        if not found.compatible(expected):
            raise refuse(f"operand {number}: element 0 of the shape expects {brief(expected)}, found {brief(found)}")
    return shape


def _wrapped(instruction: HloInstruction) -> HloComputation:
    """Return the computation of the chain; refuse broken chains, and computations of another execution thread."""
    start = async_start(instruction)
    if start is None:
        raise refuse("an async chain must be async-start, optionally async-update, then async-done")
    computation = start.called["calls"][0]
    if computation.execution_thread != execution_thread(start):
        thread = execution_thread(start)
        raise refuse(f"'{computation.name}': expected execution thread {thread}, found {computation.execution_thread}")
    return computation


def _check_async_shape(opcode: Opcode, shape: Shape, computation: HloComputation) -> None:
    if not shape.is_tuple or len(shape.tuple_shapes) < 2:
        raise refuse(f"{opcode} expects a tuple of at least 2 elements, found {brief(shape)}")
    inputs = Shape.make_tuple(tuple(parameter.shape for parameter in computation.parameters))
    for number, (expected, what) in enumerate(((inputs, "parameters"), (computation.root.shape, "result"))):
        found = shape.tuple_shapes[number]
        if not found.compatible(expected):
            raise refuse(f"element {number} must be the {what} of '{computation.name}', {brief(expected)}, found {brief(found)}")


def _async_update(instruction: HloInstruction) -> Shape:
    started = operand(instruction, 0)
    _check_async_shape(instruction.opcode, started, _wrapped(instruction))
    # XLA does not compare what the backend keeps after operands and results.
    kept = instruction.shape.tuple_shapes[2:] or started.tuple_shapes[2:]
    return Shape.make_tuple((*started.tuple_shapes[:2], *kept))


def _async_done(instruction: HloInstruction) -> Shape:
    shape = operand(instruction, 0)
    _check_async_shape(instruction.opcode, shape, _wrapped(instruction))
    return shape.tuple_shapes[1]


INFER: dict[Opcode, Rule] = {
    "rng": _rng,
    "rng-bit-generator": _rng_bit_generator,
    "rng-get-and-update-state": _rng_state,
    "after-all": _after_all,
    "add-dependency": _add_dependency,
    "infeed": _infeed,
    "outfeed": _outfeed,
    "send": _send,
    "send-done": _send_done,
    "recv": _recv,
    "recv-done": _recv_done,
    "copy-start": _copy_start,
    "copy-done": _copy_done,
    "async-start": _async_start,
    "async-update": _async_update,
    "async-done": _async_done,
}
