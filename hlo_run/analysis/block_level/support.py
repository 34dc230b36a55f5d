"""Tells which instructions a block-level fusion can contain: types, opcodes and forms that XLA's Triton emitter has.

XLA's `IsTritonSupportedInstruction` of the released version, for CUDA. Tiling has rules of its own beside these.
"""

from __future__ import annotations

from hlo_run.analysis.decision import YES, Decision, no
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.views.dots import Dot
from hlo_run.target import TargetSpec

LEAST_SM = 80
_TYPES: frozenset[str] = frozenset("pred s4 s8 s16 s32 s64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3fn f8e5m2".split())
_NARROW_INTEGERS: frozenset[str] = frozenset(("s4", "u4"))
_NARROW_FLOATS: frozenset[str] = frozenset(("f8e4m3fn", "f8e5m2"))
_WIDE_FLOATS: frozenset[str] = frozenset(("f16", "bf16", "f32", "f64"))
_DOT_FLOATS = _WIDE_FLOATS | _NARROW_FLOATS
_SCALED: frozenset[str] = frozenset(("f8e4m3fn", "f4e2m1fn", "f8e5m2", "bf16"))
_SCALES: frozenset[str] = frozenset(("f8e4m3fn", "f8e5m2", "f8e8m0fnu", "s8"))
# A tile must lie in one operand of a concatenation. Tiles are powers of two, of which this is the largest that may be chosen. The
# release wants it of the last operand as well.
_CONCATENATED = 64

_PREDICATES: frozenset[Opcode] = opcode_set("add and compare copy maximum minimum multiply not or select xor clamp")
_ALL_TYPES: frozenset[Opcode] = opcode_set("abs add clamp compare copy maximum minimum multiply negate select subtract")
_INTEGERS: frozenset[Opcode] = opcode_set("and divide not or remainder xor")
_FLOATS: frozenset[Opcode] = opcode_set(
    "acos acosh asin asinh atan2 atanh cbrt ceil cosine cosh divide erf exponential exponential-minus-one floor log log-plus-one "
    "power reduce-precision remainder round-nearest-even rsqrt sine sinh sqrt tan tanh"
)
_ALGORITHMS: frozenset[str] = frozenset(
    "dot_f16_f16_f16 dot_f32_f32_f32 dot_f16_f16_f32 dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3 dot_bf16_bf16_f32_x6 "
    "dot_bf16_bf16_f32_x9 dot_tf32_tf32_f32 dot_tf32_tf32_f32_x3 dot_f64_f64_f64".split()
)
_OF_ONE_TYPE: frozenset[Opcode] = opcode_set("broadcast reshape slice transpose")


def supports(target: TargetSpec) -> bool:
    """True if XLA makes block-level fusions for the GPU: from compute capability 8.0 on."""
    return target.sm >= LEAST_SM


def is_supported_computation(computation: HloComputation, target: TargetSpec) -> Decision:
    """Decide whether a block-level fusion can have this body."""
    for instruction in computation.instructions:
        if not (instruction.is_root and instruction.opcode == "tuple") and not (found := is_supported(instruction, target)):
            return found
    return YES


def is_supported(instruction: HloInstruction, target: TargetSpec) -> Decision:
    """Decide whether a block-level fusion for `target` can contain the instruction."""
    opcode = instruction.opcode
    if opcode == "convert":
        return _conversion(instruction.shape.element_type, instruction.operands[0].shape.element_type, target)
    if opcode == "scaled-dot":
        return _scaled_dot(instruction)
    for value in (instruction, *instruction.operands):
        if not value.shape.is_array or value.shape.element_type not in _TYPES:
            return no(f"{value.shape} has no type of tiles")
    if opcode == "parameter":
        return YES
    if instruction.shape.element_type == "s4":
        return no(f"{opcode} makes 4-bit integers")
    special = _SPECIAL.get(opcode)
    if special is not None:
        return special(instruction)
    if opcode == "dot":
        return _dot(instruction, target)
    if opcode == "reduce":
        return _reduce(instruction, target)
    if opcode in _OF_ONE_TYPE:
        return YES
    if is_elementwise(instruction):
        return _elementwise(opcode, instruction.operands[-1].shape.element_type)
    return no(f"{opcode} has no tiles")


def _elementwise(opcode: Opcode, element_type: str) -> Decision:
    """Decide for an elementwise opcode by the type of its last operand: the first one of a select is a pred."""
    kind = DTYPES[element_type].kind
    if element_type == "pred":
        known = _PREDICATES
    elif element_type in _NARROW_INTEGERS or kind == "complex":
        known = frozenset[Opcode]()
    elif element_type in _NARROW_FLOATS:
        known = opcode_set("abs copy reduce-precision select")
    elif kind == "float":
        known = _ALL_TYPES | _FLOATS
    else:
        known = _ALL_TYPES | _INTEGERS
    return YES if opcode in known else no(f"{opcode} of {element_type} has no tiles")


def _conversion(output: str, source: str, target: TargetSpec) -> Decision:
    what = f"convert of {source} to {output}"
    both = {output, source}
    if len(both) == 2 and "f8e4m3fn" in both and target.sm < 89:
        return no(f"{what} needs compute capability 8.9")
    narrow = both & _NARROW_FLOATS
    if len(both) == 2 and narrow and not both <= _NARROW_FLOATS and not both & {"f16", "bf16", "f32"}:
        return no(f"{what} has no tiles")
    if source in _NARROW_INTEGERS and output not in ("s8", "u8", *_WIDE_FLOATS):
        return no(f"{what} has no tiles")
    if output in _NARROW_INTEGERS or (source, output) == ("pred", "u8"):
        return no(f"{what} has no tiles")
    return YES if both <= _TYPES else no(f"{what} has no type of tiles")


def _constant(constant: HloInstruction) -> Decision:
    return YES if constant.shape.element_count == 1 else no("a constant of several elements has no tiles")


def _iota(iota: HloInstruction) -> Decision:
    return no("iota of 8-bit floats has no tiles") if iota.shape.element_type in _NARROW_FLOATS else YES


def _bitcast(bitcast: HloInstruction) -> Decision:
    before, after = bitcast.operands[0].shape, bitcast.shape
    if before.element_count != after.element_count:
        return no("the bitcast changes the number of elements")
    if before.element_type != after.element_type and "pred" in (before.element_type, after.element_type):
        return no("the bitcast makes other elements of predicates")
    return YES


def _concatenate(concatenate: HloInstruction) -> Decision:
    (dimension,) = concatenate.dimensions
    if any(operand.shape.dims[dimension] % _CONCATENATED for operand in concatenate.operands):
        return no(f"an operand of the concatenation has no multiple of {_CONCATENATED} elements")
    return YES


_SPECIAL = {"concatenate": _concatenate, "constant": _constant, "iota": _iota, "bitcast": _bitcast}


def _reduce(reduce: HloInstruction, target: TargetSpec) -> Decision:
    if reduce.shape.element_type in _NARROW_FLOATS:
        return no("reduce of 8-bit floats has no tiles")
    for instruction in reduce.to_apply.instructions:
        if not (found := is_supported(instruction, target)):
            return found
    if len(reduce.operands) != 2:
        return no("the reduce has several inputs")
    return YES if reduce.dimensions else no("the reduce has no dimension")


def _scaled_dot(dot: HloInstruction) -> Decision:
    for value, scale in ((dot.operands[0], dot.operands[2]), (dot.operands[1], dot.operands[3])):
        element_type = value.shape.element_type
        if element_type not in _SCALED:
            return no(f"scaled-dot of {element_type} has no tiles")
        if element_type != "bf16" and scale.shape.element_type not in _SCALES:
            return no(f"scales of {scale.shape.element_type} have no tiles")
    return YES


def _dot(dot: HloInstruction, target: TargetSpec) -> Decision:
    lhs, rhs, result = (value.shape.element_type for value in (*dot.operands, dot))
    if lhs != rhs and frozenset((lhs, rhs)) != _NARROW_FLOATS:
        return no(f"the product has operands of {lhs} and {rhs}")
    if len(Dot.of(dot).lhs.contracting) != 1:
        return no("the product sums over several dimensions or none")
    algorithm = dot.algorithm
    if algorithm == "unset":
        return _product_types(lhs, result, target) and _product_types(rhs, result, target)
    if algorithm not in _ALGORITHMS:
        return no(f"{algorithm} has no tiles")
    return _algorithm_types(algorithm, (lhs, rhs), result, target)


def _product_types(operand: str, result: str, target: TargetSpec) -> Decision:
    what = f"a product of {operand} in {result}"
    if operand == "f64" and result != "f64":
        return no(f"{what} has no tiles")
    if "f8e4m3fn" in (operand, result) and target.sm < 90:
        return no(f"{what} needs compute capability 9.0")
    if operand in _DOT_FLOATS or (operand in ("s8", "u8") and result in ("s32", "u32")):
        return YES
    return no(f"{what} has no tiles")


def _algorithm_types(algorithm: str, operands: tuple[str, str], result: str, target: TargetSpec) -> Decision:
    """Decide by the conversions that the algorithm needs."""
    words = algorithm.split("_")
    factor, total = words[1], accumulator_type(algorithm, result)
    wanted = "f32" if factor == "tf32" or words[-1].startswith("x") else factor
    pairs = [(total, result), (result, total)] if result != total else []
    pairs += [(wanted, operand) for operand in operands if operand != wanted]
    for output, source in pairs:
        if not (found := _conversion(output, source, target)):
            return found
    if algorithm == "dot_f64_f64_f64" and DTYPES[operands[0]].bits < 32 and target.sm < 100:
        return no(f"{algorithm} of {operands[0]} needs compute capability 10.0")
    return YES


def accumulator_type(algorithm: str, result: str) -> str:
    """Return the element type in which a product is summed: the algorithm's, else f32 for floats of at most 32 bits."""
    if algorithm != "unset":
        words = [word for word in algorithm.split("_") if not word.startswith("x")]
        return next(word for word in reversed(words) if word in DTYPES)
    dtype = DTYPES[result]
    return "f32" if dtype.is_float and dtype.bits <= 32 else result
