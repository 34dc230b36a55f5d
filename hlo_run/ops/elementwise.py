"""Shape rules of element-wise opcodes: which element types each takes, and what comes out (`ops.md` 2, 3 and 4)."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape
from hlo_run.ops.rule import Rule, array_operand, array_operands, brief, is_open, refuse, resized, same_dims, same_types

_COMPONENT = {"c64": "f32", "c128": "f64"}
_COMPLEX = {"f32": "c64", "f64": "c128"}

# The result's element type from the operand's.
_SAME = "same"
_PRED = "pred"
_REAL = "real"


def _check_kind(opcode: str, shape: Shape, kinds: str) -> None:
    if shape.dtype.kind not in kinds.split():
        raise refuse(f"{opcode} does not take elements of type {shape.element_type} (operand of shape {brief(shape)})")


def _result(shape: Shape, result: str) -> Shape:
    if result == _PRED:
        return shape.with_element_type("pred")
    if result == _REAL:
        return shape.with_element_type(_COMPONENT.get(shape.element_type, shape.element_type))
    return shape


def _elementwise(opcode: str, kinds: str, result: str = _SAME) -> tuple[str, Rule]:
    """Return the rule of operands that all have one shape, with elements of one of `kinds`."""

    def infer(instruction: HloInstruction) -> Shape:
        shapes = array_operands(instruction)
        same_dims(shapes)
        same_types(shapes)
        _check_kind(opcode, shapes[0], kinds)
        return _result(shapes[0], result)

    return opcode, infer


def _each(opcodes: str, kinds: str, result: str = _SAME) -> dict[str, Rule]:
    return dict(_elementwise(opcode, kinds, result) for opcode in opcodes.split())


def _complex(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    same_dims(shapes)
    same_types(shapes)
    if shapes[0].element_type not in _COMPLEX:
        raise refuse(f"complex takes f32 or f64 parts, but the operand has shape {brief(shapes[0])}")
    return shapes[0].with_element_type(_COMPLEX[shapes[0].element_type])


def _compare(instruction: HloInstruction) -> Shape:
    shapes = array_operands(instruction)
    same_dims(shapes)
    same_types(shapes)
    kind, order = shapes[0].dtype.kind, instruction.attrs.get("type")
    if kind == "complex" and instruction.attrs["direction"] not in ("EQ", "NE"):
        raise refuse(f"complex numbers compare by EQ and NE only, not by {instruction.attrs['direction']}")
    if order is not None and kind not in _COMPARE_KINDS[order]:
        raise refuse(f"comparison type {order} does not fit elements of type {shapes[0].element_type}")
    return shapes[0].with_element_type("pred")


_COMPARE_KINDS = {
    "FLOAT": ("float", "complex"),
    "TOTALORDER": ("float",),
    "SIGNED": ("signed",),
    "UNSIGNED": ("unsigned", "pred"),
}


def _select(instruction: HloInstruction) -> Shape:
    predicate, on_true, on_false = (o.shape for o in instruction.operands)
    if not on_true.compatible(on_false):
        raise refuse(f"the two cases differ in shape: {brief(on_true)} and {brief(on_false)}")
    if predicate.element_type != "pred":
        raise refuse(f"the selector must be pred, but has shape {brief(predicate)}")
    if predicate.rank and predicate.dims != on_true.dims:
        raise refuse(f"the selector's shape {brief(predicate)} is neither a scalar nor that of the cases, {brief(on_true)}")
    return on_true


def _clamp(instruction: HloInstruction) -> Shape:
    low, middle, high = array_operands(instruction)
    same_types([middle, low, high])
    for bound in (low, high):
        if bound.rank and bound.dims != middle.dims:
            raise refuse(f"the bound's shape {brief(bound)} is neither a scalar nor that of the operand, {brief(middle)}")
    if middle.dtype.kind == "complex":
        raise refuse("clamp does not take complex numbers")
    return middle


def _convert(instruction: HloInstruction) -> Shape:
    shape = array_operand(instruction)
    if not instruction.shape.is_array:
        raise refuse(f"the result must be an array, but has shape {brief(instruction.shape)}")
    return shape.with_element_type(instruction.shape.element_type)


def _stochastic_convert(instruction: HloInstruction) -> Shape:
    value, random = array_operands(instruction)
    same_dims([value, random])
    if not value.dtype.is_float or not random.dtype.is_unsigned or random.dtype.bits != value.dtype.bits:
        raise refuse(f"takes floats and unsigned integers of one width, but has {brief(value)} and {brief(random)}")
    return _convert(instruction)


def _copy(instruction: HloInstruction) -> Shape:
    shape = instruction.operands[0].shape
    # A copy may convert.
    return shape if is_open(instruction.shape) or not shape.is_array or not instruction.shape.is_array else _convert(instruction)


def _bitcast_convert(instruction: HloInstruction) -> Shape:
    source, target = array_operand(instruction), instruction.shape
    if not target.is_array:
        raise refuse(f"the result must be an array, but has shape {brief(target)}")
    if source.dtype.is_complex != target.dtype.is_complex:
        raise refuse(f"cannot convert between real and complex: {brief(source)} to {brief(target)}")
    wide, narrow = source.dtype.bits, target.dtype.bits
    if wide == narrow:
        return source.with_element_type(target.element_type)
    if wide > narrow:
        if wide % narrow:
            raise refuse(f"element widths {wide} and {narrow} do not divide each other")
        return resized(source, (*source.dims, wide // narrow), target.element_type)
    if not source.rank or source.dims[-1] * wide != narrow:
        raise refuse(f"the last dimension of {brief(source)} must hold exactly one element of {target.element_type}")
    return resized(source, source.dims[:-1], target.element_type)


def _reduce_precision(instruction: HloInstruction) -> Shape:
    shape = array_operand(instruction)
    _check_kind("reduce-precision", shape, "float")
    if instruction.attrs["exponent_bits"] < 1 or instruction.attrs["mantissa_bits"] < 0:
        raise refuse("expects exponent_bits of at least 1 and mantissa_bits of at least 0")
    return shape


_NUMBER = "signed unsigned float complex"

INFER: dict[str, Rule] = {
    **_each("abs", "signed float complex", _REAL),
    **_each("negate", _NUMBER),
    **_each("sign", "signed float complex"),
    **_each("not", "pred signed unsigned"),
    **_each("floor ceil round-nearest-afz round-nearest-even cbrt erf", "float"),
    **_each("is-finite", "float", _PRED),
    **_each("real imag", "float complex", _REAL),
    **_each("popcnt count-leading-zeros", "signed unsigned"),
    **_each("exponential exponential-minus-one log log-plus-one sine cosine tan sqrt rsqrt tanh logistic", "float complex"),
    **_each("acos acosh asin asinh atanh sinh cosh", "float complex"),
    **_each("add multiply maximum minimum", f"pred {_NUMBER}"),
    **_each("subtract divide remainder power atan2", _NUMBER),
    **_each("mulhi shift-left shift-right-arithmetic shift-right-logical", "signed unsigned"),
    **_each("and or xor", "pred signed unsigned"),
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
