"""Shape inference: fill shapes that the text omits, and check written shapes against the rules."""

from __future__ import annotations

from hlo_run.errors import HloRunError, ParseError
from hlo_run.hlo.attributes.shape_text import check_size
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.module import written_name
from hlo_run.ops import collectives, control, convolution, dot, effects, elementwise, linalg, reduce, shaping, slicing, windows
from hlo_run.ops.rule import Rule, brief, compatible_up_to_precision, is_open

INFER: dict[Opcode, Rule] = {
    **elementwise.INFER,
    **shaping.INFER,
    **slicing.INFER,
    **reduce.INFER,
    **windows.INFER,
    **dot.INFER,
    **convolution.INFER,
    **linalg.INFER,
    **control.INFER,
    **effects.INFER,
    **collectives.INFER,
}

# Opcodes that pass on buffers, or whose result type is explicit: their written float width must match.
EXACT = opcode_set("""bitcast call conditional constant custom-call dynamic-update-slice get-tuple-element infeed outfeed
    opt-barrier parameter recv recv-done scan send send-done tuple while""")


def infer_module(module: HloModule, mixed_precision: bool = True) -> None:
    """Fill open shapes and check all others; in `computations`, called computations come before their callers.

    Raises ParseError at an instruction whose operands or written shape do not match its opcode. Layouts are not compared. A
    filled shape takes the layout of the operand that determines its dimensions, else the default layout. With
    `mixed_precision`, a written shape may have floats of another width.
    """
    for computation in module.computations:
        for instruction in computation.instructions:
            _settle(instruction, mixed_precision)


def fill_shapes(module: HloModule) -> None:
    """Fill open shapes without checking the others; raises ParseError if a shape cannot be inferred."""
    for instruction in module.instructions:
        if is_open(instruction.shape):
            _settle(instruction, mixed_precision=True)


def _settle(instruction: HloInstruction, mixed_precision: bool) -> None:
    expected = infer_shape(instruction)
    written = instruction.shape
    if expected is written:
        return
    if is_open(written):
        _check_sizes(instruction, expected)
        instruction.shape = expected
    elif not expected.compatible(written) and (
        not mixed_precision or instruction.opcode in EXACT or not compatible_up_to_precision(expected, written)
    ):
        raise _error(
            instruction, f"Expected instruction to have shape equal to {brief(expected)}, actual shape is {brief(written)}"
        )


def _check_sizes(instruction: HloInstruction, shape: Shape) -> None:
    # The parser checks the sizes of written shapes; these shapes are inferred.
    for _, leaf in shape.leaves():
        if leaf.is_array:
            try:
                check_size(leaf.element_type, leaf.dims)
            except HloRunError as error:
                raise type(error)(error.message, instruction.where, error.hint) from None


def infer_shape(instruction: HloInstruction) -> Shape:
    """Return the shape that the instruction must have.

    Raises ParseError if operands or attributes do not match the opcode.
    """
    try:
        rule = INFER.get(instruction.opcode)
        return rule(instruction) if rule else instruction.shape
    except HloRunError as error:
        raise _error(instruction, error.message, error.hint) from None


def _error(instruction: HloInstruction, message: str, hint: str = "") -> ParseError:
    text = f"'{written_name(instruction)}' ({instruction.opcode}): {message}"
    operands = tuple(f"operand '{written_name(o)}' has shape {brief(o.shape)}" for o in instruction.operands[:4])
    return ParseError(text, instruction.where, hint, operands)
