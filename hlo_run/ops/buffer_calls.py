"""Verify buffer types, `b(f32[4])`: the calls that make and end buffers, and where buffers are allowed.

`Pin` makes a buffer from an array, `CreateBuffer` makes an uninitialised one, `Unpin` returns the array. In between, a buffer
may go through custom calls that write into it, dynamic-update-slice, tuples and loops, and must not be written twice.
"""

from __future__ import annotations

from hlo_run.errors import ParseError
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import OperandAliasing
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.module import instruction_error
from hlo_run.ops.rule import brief

CROSSINGS = ("Pin", "Unpin")
_Index = tuple[int, ...]


def array_of(shape: Shape) -> Shape:
    """Return the array that a buffer holds; another shape is returned unchanged."""
    return shape.tuple_shapes[0] if is_buffer(shape) else shape


def is_buffer(shape: Shape) -> bool:
    """Return True for `b(f32[4])`, False for a tuple that contains one."""
    return shape.element_type == "buffer"


def verify_buffer_calls(module: HloModule) -> None:
    """Raise ParseError at the first buffer that is not allowed there, or is written twice (XLA's `VerifyBuffers`)."""
    for computation in module.computations:
        if not any(_places(i.shape) or i.custom_call_target in CROSSINGS for i in computation.instructions):
            continue
        wraps = is_async_wrapper(computation)
        for instruction in computation.instructions:
            if not wraps:
                _verify(instruction, computation)
            elif instruction is computation.root and instruction.opcode == "custom-call":
                _verify_call(instruction)


def _verify(instruction: HloInstruction, computation: HloComputation) -> None:
    match instruction.opcode:
        case "tuple" | "get-tuple-element" | "async-start" | "async-update" | "async-done":
            return
        case "call" if _is_annotated(instruction):
            return
        case "custom-call":
            _verify_call(instruction)
        case "while":
            _verify_writers(instruction)
        case "parameter":
            if computation.module is not None and computation is computation.module.entry:
                _refuse_buffers(instruction, instruction.shape)
            _verify_writers(instruction)
        case "dynamic-update-slice" if is_buffer(instruction.operands[0].shape):
            for operand in instruction.operands[1:]:
                _refuse_buffers(instruction, operand.shape)
            _verify_writers(instruction)
        case _:
            for shape in (instruction.shape, *(operand.shape for operand in instruction.operands)):
                _refuse_buffers(instruction, shape)


def _is_annotated(call: HloInstruction) -> bool:
    """Return True for a call that will become an async one on another stream."""
    return frontend_attribute(call, "_xla_stream_annotation") is not None


def _verify_call(call: HloInstruction) -> None:
    operands, result = [operand.shape for operand in call.operands], call.shape
    match call.custom_call_target:
        case "Pin":
            _verify_crossing(call, operands, result, "an array", "a buffer of it")
        case "Unpin":
            _verify_crossing(call, operands, result, "a buffer", "the array in it")
        case "CreateBuffer":
            if operands or not is_buffer(result):
                raise instruction_error(call, f"CreateBuffer has no operands and makes a buffer, but is {brief(result)}")
        case _:
            _verify_pairs(call)
    if _places(result):
        _verify_writers(call)


def _verify_crossing(call: HloInstruction, operands: list[Shape], result: Shape, takes: str, makes: str) -> None:
    target, to_buffer = call.custom_call_target, takes == "an array"
    shapes = ", ".join(map(brief, operands))
    if (
        len(operands) != 1
        or is_buffer(operands[0]) == to_buffer
        or is_buffer(result) != to_buffer
        or not array_of(operands[0]).compatible(array_of(result))
    ):
        raise instruction_error(call, f"{target} takes {takes} and makes {makes}, but takes {shapes} and makes {brief(result)}")
    if len(_aliasing(call)) != 1:
        raise instruction_error(call, f"{target} needs output_to_operand_aliasing={{{{}}: (0, {{}})}}")


def _verify_pairs(call: HloInstruction) -> None:
    """Check that each buffer operand of a call is aliased with exactly one result, and each buffer result with one operand."""
    taken = [(number, place) for number, o in enumerate(call.operands) for place in _places(o.shape)]
    pairs = _aliasing(call)
    for number, place in taken:
        if [pair[1:] for pair in pairs].count((number, place)) != 1:
            raise instruction_error(call, f"the buffer in operand {number} needs one result in output_to_operand_aliasing")
    for place in _places(call.shape):
        if [pair[0] for pair in pairs].count(place) != 1:
            raise instruction_error(call, "a buffer in the result needs one operand in output_to_operand_aliasing")


def _aliasing(call: HloInstruction) -> tuple[tuple[_Index, int, _Index], ...]:
    aliasing = call.output_to_operand_aliasing
    assert isinstance(aliasing, OperandAliasing), "the attribute has this type"
    return aliasing.pairs


def _places(shape: Shape) -> list[_Index]:
    """Return the indices of the buffers in a shape."""
    return [] if shape.is_array else [index for index, leaf in shape.leaves() if is_buffer(leaf)]


def _refuse_buffers(instruction: HloInstruction, shape: Shape) -> None:
    if _places(shape):
        raise instruction_error(instruction, f"a buffer is not allowed here: {brief(shape)}")


def _verify_writers(instruction: HloInstruction) -> None:
    for place in _places(instruction.shape):
        if _writers(instruction, place) > 1:
            raise ParseError(f"the buffer '{instruction.name}' is written, or unpinned, more than once", instruction.where)


def _writers(instruction: HloInstruction, place: _Index) -> int:
    """Return the number of users that may write into a buffer: all except tuples, and elements of other indices."""
    writers = 0
    waiting = [(instruction, place, user) for user in instruction.users]
    while waiting:
        value, at, user = waiting.pop()
        if user.opcode == "get-tuple-element":
            if at and user.tuple_index == at[0]:
                waiting += ((user, at[1:], following) for following in user.users)
        elif user.opcode != "tuple":
            writers += 1
        elif user.is_root:
            writers += any(caller.opcode == "while" for caller in user.parent.callers) if user.parent is not None else 0
        else:
            inside = (user.operands.index(value), *at)
            waiting += ((user, inside, following) for following in user.users)
    return writers
