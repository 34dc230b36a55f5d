"""Shape rules of elementwise opcodes, most of them from the table: `OpcodeDefinition.takes` and `gives` (`ops.md` 2, 3 and 4)."""

from __future__ import annotations

from hlo_run.errors import ParseError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.definition import OpcodeDefinition
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.rule import (
    Rule,
    array_operand,
    array_operands,
    bit_width,
    brief,
    changed_type,
    dynamic_dims,
    make_array,
    refuse,
    same_dims,
    same_type,
    same_types,
    wider_type,
    with_dynamic,
    with_element_size,
)

_COMPONENT = {"c64": "f32", "c128": "f64"}
_COMPLEX = {"f32": "c64", "f64": "c128"}


def _wrong_kind(opcode: Opcode, shape: Shape) -> ParseError:
    return refuse(f"{opcode} does not support elements of type {shape.element_type} (operand of shape {brief(shape)})")


def _result(shape: Shape, gives: str) -> Shape:
    if gives == "pred":
        return changed_type(shape, "pred")
    return changed_type(shape, _COMPONENT[shape.element_type]) if shape.dtype.is_complex else shape


def _joined(shapes: list[Shape]) -> Shape:
    """Return the common shape of operands: the wider float type, dynamic where any of them is; refuse other differences."""
    first = shapes[0]
    for shape in shapes[1:]:
        if shape is first:
            continue
        same_dims([first, shape])
        same_types([first, shape])
        if shape.element_type != first.element_type:
            first = changed_type(first, wider_type(first.element_type, shape.element_type))
        first = _dynamic_where_either(first, shape)
    return first


def _dynamic_where_either(first: Shape, second: Shape) -> Shape:
    if not second.dynamic_dims:
        return first
    pairs = zip(dynamic_dims(first), second.dynamic_dims, strict=True)
    return with_dynamic(first, [one or other for one, other in pairs])


def _unary(opcode: OpcodeDefinition) -> Rule:
    """Return the rule of an opcode with one operand, whose element kind must be one that the opcode takes."""
    name, takes, gives = opcode.name, opcode.takes, opcode.gives

    def infer(instruction: HloInstruction) -> Shape:
        shape = array_operand(instruction)
        if shape.dtype.kind not in takes:
            raise _wrong_kind(name, shape)
        return shape if gives == "same" else _result(shape, gives)

    return infer


def _binary(opcode: OpcodeDefinition) -> Rule:
    """Return the rule of an opcode with two operands of equal shapes, with an element kind that the opcode takes."""
    name, takes = opcode.name, opcode.takes

    def infer(instruction: HloInstruction) -> Shape:
        shape = _joined([array_operand(instruction, 0), array_operand(instruction, 1)])
        if shape.dtype.kind not in takes:
            raise _wrong_kind(name, shape)
        return shape if not shape.layout or not shape.layout.extra else changed_type(shape, shape.element_type)

    return infer


def _complex(instruction: HloInstruction) -> Shape:
    parts = array_operands(instruction)
    shape = _joined(parts)
    if parts[0].element_type != parts[1].element_type or shape.element_type not in _COMPLEX:
        raise refuse(f"complex takes two parts of f32 or f64, but has {brief(parts[0])} and {brief(parts[1])}")
    return changed_type(shape, _COMPLEX[shape.element_type])


def _compare(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    if instruction.comparison_order == "PARTIAL" and shapes[0].dtype.kind not in ("float", "complex"):
        raise refuse("Expected comparison order TOTAL for integral/pred operand, but got PARTIAL.")
    return changed_type(_joined(shapes), "pred")


def _select(instruction: HloInstruction) -> Shape:
    predicate, on_true, on_false = array_operands(instruction)
    if on_true is not on_false and not (on_true.dims == on_false.dims and same_type(on_true, on_false)):
        raise refuse(f"the two cases differ in shape: {brief(on_true)} and {brief(on_false)}")
    if predicate.element_type != "pred":
        raise refuse(f"the selector must be pred, but has shape {brief(predicate)}")
    if predicate.dims and predicate.dims != on_true.dims:
        raise refuse(f"the selector's shape {brief(predicate)} is neither a scalar nor that of the cases, {brief(on_true)}")
    joined = _joined([on_true, on_false])
    shape = _dynamic_where_either(predicate, joined) if predicate.dims else joined
    return with_element_size(shape.with_element_type(joined.element_type), on_true)


def _clamp(instruction: HloInstruction) -> Shape:
    low, middle, high = array_operands(instruction)
    same_types([middle, low, high])
    for bound in (low, high):
        if bound.dims and bound.dims != middle.dims:
            raise refuse(f"the bound's shape {brief(bound)} is neither a scalar nor that of the operand, {brief(middle)}")
    return middle


def _convert(instruction: HloInstruction) -> Shape:
    shape = array_operand(instruction)
    if not instruction.shape.is_array:
        raise refuse(f"the result must be an array, but has shape {brief(instruction.shape)}")
    return shape.with_element_type(instruction.shape.element_type)


def _stochastic_convert(instruction: HloInstruction) -> Shape:
    value, random = array_operands(instruction)
    if value.with_element_type(random.element_type) != random:
        raise refuse(f"the operands differ in shape: {value} and {random}")
    one_width = bit_width(random.element_type) == bit_width(value.element_type)
    if not value.dtype.is_float or not random.dtype.is_unsigned or not one_width:
        raise refuse(f"takes floats and unsigned integers of one width, but has {brief(value)} and {brief(random)}")
    return _convert(instruction)


def _copy(instruction: HloInstruction) -> Shape:
    return array_operand(instruction) if instruction.operands[0].shape.is_array else instruction.operands[0].shape


def _bitcast_convert(instruction: HloInstruction) -> Shape:
    source, target = array_operand(instruction), instruction.shape
    if not target.is_array:
        raise refuse(f"the result must be an array, but has shape {brief(target)}")
    if source.dtype.is_complex != target.dtype.is_complex:
        raise refuse(f"cannot convert between real and complex: {brief(source)} to {brief(target)}")
    wide, narrow = bit_width(source.element_type), bit_width(target.element_type)
    if wide == narrow:
        return source.with_element_type(target.element_type)
    if max(wide, narrow) % min(wide, narrow):
        raise refuse(f"element widths {wide} and {narrow} do not divide each other")
    flags = dynamic_dims(source)
    if wide > narrow:
        return make_array(target.element_type, (*source.dims, wide // narrow), (*flags, False))
    if not source.rank or source.dims[-1] * wide != narrow:
        raise refuse(f"the last dimension of {brief(source)} must hold exactly one element of {target.element_type}")
    return make_array(target.element_type, source.dims[:-1], flags[:-1])


def _reduce_precision(instruction: HloInstruction) -> Shape:
    shape = array_operand(instruction)
    if not shape.dtype.is_float:
        raise _wrong_kind("reduce-precision", shape)
    if instruction.exponent_bits < 1 or instruction.mantissa_bits < 0:
        raise refuse("expects exponent_bits of at least 1 and mantissa_bits of at least 0")
    return shape


# The keys are the elementwise opcodes except `map`.
INFER: dict[Opcode, Rule] = {
    **{name: (_unary if opcode.arity == 1 else _binary)(opcode) for name, opcode in OPCODES.items() if opcode.takes},
    "complex": _complex,
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
    "stochastic-convert": _stochastic_convert,
    "bitcast-convert": _bitcast_convert,
    "reduce-precision": _reduce_precision,
    "copy": _copy,
}
