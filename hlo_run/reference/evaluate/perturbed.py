"""Evaluates in float64 with a random rounding error after every op, which shows how far the module's types let a result be off.

    s = bf16[8] add(x, y)       ⇒   s = f64[8], the sum times 1 ± 2^-9 with a random sign per element

This is Monte Carlo arithmetic (Parker, 1997). The distance between such a result and the plain float64 result is the
rounding that any evaluation in the module's own types may have: it grows with the number of ops on the path and with
cancellation. A sum of n terms gets errors of sqrt(n) roundings on each term and half as many on its result, since its order
and the type that it is kept in are open. The sums of products and convolutions are kept in f32 at least, so only the result
is rounded to a narrower type. An approximation may err to the same side for all its arguments, so that a loop adds its
errors up: with an odd seed, all results of an opcode are off in one direction. If the module is to be divided among
partitions, each partition rounds its part of such a sum.

Equal numbers are a decision that random errors never take: a float64 value equals no rounded one. So `EQ` and `NE` of a number
that the module has rounded see it equal to one that is a few of its roundings away, in one of two evaluations.

A reduction of several arrays takes its elements in a random order, as HLO allows: an `argmax` of NaNs may be at any of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import MOVES_ELEMENTS
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.literal import float_info
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Array, Calls, Evaluator, Value, as_array, narrow, widen
from hlo_run.walks import walk

# Ops whose results are elements of their operands, or exact.
_EXACT = MOVES_ELEMENTS | opcode_set("""add-dependency after-all broadcast clamp compare concatenate copy dynamic-slice
    dynamic-update-slice gather get-tuple-element maximum minimum negate opt-barrier pad reverse select slice sort tuple
    is-finite floor ceil round-nearest-afz round-nearest-even real imag complex partition-id replica-id iota constant while
    conditional call fusion bitcast-convert rng rng-bit-generator stochastic-convert infeed outfeed""")
# Exact, but for complex numbers, of which they need a root.
_EXACT_IF_REAL: frozenset[Opcode] = frozenset(("abs", "sign"))
# Ops that kernels approximate with errors of several roundings; of f32, if the type is narrower.
_APPROXIMATED = _EXACT_IF_REAL | frozenset(
    """acos acosh asin asinh atan2 atan atanh cbrt cosh cosine divide erf exp2 exponential exponential-minus-one log log-plus-one
    log2 logistic power rsqrt sine sinh sqrt tan tanh""".split()
)
# Ops that passes replace by several in the same type, each with its rounding.
_EXPANDED: frozenset[Opcode] = frozenset(("batch-norm-training", "batch-norm-inference", "batch-norm-grad"))
_ROUNDINGS_OF_APPROXIMATION = 4.0
# A result of one has no rounding: exp(0), cos(0), x to the power of 0.
_EXACTLY_ONE: frozenset[Opcode] = frozenset(("exponential", "exp2", "cosine", "power"))
_PRODUCT_CALLS = ("__cublas$", "__cudnn$conv")
_SUMS = opcode_set("""dot ragged-dot convolution reduce reduce-window scan scatter select-and-scatter fft all-reduce
    reduce-scatter custom-call cholesky triangular-solve""")
_WIDE = (np.dtype(np.float64), np.dtype(np.complex128))
# They keep their sums in f32 or a wider type: XLA:GPU's libraries and kernels, XLA:CPU and the reference do.
_SUMS_OF_PRODUCTS: frozenset[Opcode] = frozenset(("dot", "ragged-dot", "convolution"))
_F32_ROUNDING = 2.0**-24
# A number is taken for one of its type if it is nearer to it than this part of a rounding: storing it rounds nothing.
_KEPT = 2.0**-4
# So many times the errors of their own, two roundings of one exact value are apart.
_NEARLY_EQUAL = 4.0
# Even the last op is computed with such errors, in f32, before its result is rounded.
_LAST_ROUNDING = 2.0**-22
# GPUs may multiply f32 matrices in TF32, which has 11 digits.
_TF32_ROUNDING = 2.0**-11
# The relative error of an operand in a dot whose algorithm is given: what is left after the parts that it is split into.
_ALGORITHM_ROUNDINGS = {
    "dot_bf16_bf16_f32": 2.0**-9,
    "dot_bf16_bf16_f32_x3": 2.0**-17,
    "dot_bf16_bf16_f32_x6": 2.0**-24,
    "dot_bf16_bf16_f32_x9": 2.0**-24,
    "dot_tf32_tf32_f32_x3": 2.0**-21,
    "dot_f32_f32_f32": 2.0**-24,
}


def rounding(dtype: DType) -> float:
    """Return the largest relative error of one rounding to a float or complex type; 0 for other types."""
    if dtype.is_complex:
        return 2.0**-24 if dtype.bits == 64 else 2.0**-53
    return 2.0 ** -(dtype.float_format.mantissa_bits + 1) if dtype.is_float else 0.0


def smallest_step(dtype: DType) -> float:
    """Return the distance of the type's smallest numbers; of f32 and f64 the smallest normal, since kernels may flush to it."""
    if dtype.is_complex:
        dtype = DTYPES["f32" if dtype.bits == 64 else "f64"]
    if dtype.bits >= 32:
        return float(float_info(dtype).tiny)
    return dtype.float_format.step


def term_count(instruction: HloInstruction) -> int:
    """Return about how many numbers an op adds for one element of its result; 1 for ops that add none."""
    if instruction.opcode not in _SUMS:
        return 1
    operands = [operand.shape.element_count for operand in instruction.operands if operand.shape.is_array]
    results = max((leaf.element_count for _, leaf in instruction.shape.leaves() if leaf.is_array), default=1)
    match instruction.opcode:
        case "dot" | "ragged-dot":
            left = instruction.operands[0].shape.dims
            return math.prod(left[dim] for dim in instruction.lhs_contracting_dims)
        case "reduce-window":
            return math.prod(dim.size for dim in instruction.window.dims)
        case "convolution":
            return max(1, operands[1])
        case "scatter" | "select-and-scatter" | "all-reduce" | "reduce-scatter":
            return 1 + max(operands, default=1) // max(1, results)
        case "scan":
            return max((max(o.shape.dims, default=1) for o in instruction.operands if o.shape.is_array), default=1)
        case "custom-call" if instruction.custom_call_target.startswith(_PRODUCT_CALLS) and len(operands) > 1:
            # A product of [m,k] and [k,n] has m·k·k·n / m·n = k² terms, a convolution as many with its window.
            window = math.prod(dim.size for dim in instruction.window.dims)
            return max(1, round(math.sqrt(operands[0] * operands[1] / max(1, results) * window)))
        case "fft" | "custom-call" | "cholesky" | "triangular-solve":
            return max((max(o.shape.dims, default=1) for o in instruction.operands if o.shape.is_array), default=1)
        case _:
            return max(1, operands[0] // max(1, results)) if operands else 1


def operand_rounding(instruction: HloInstruction, in_tf32: bool) -> float:
    """Return the least relative error of an operand of a dot or convolution that has more digits; 0 for other ops.

    Each operand is rounded once. The sum of the products adds their errors with random signs.
    """
    if instruction.opcode not in ("dot", "convolution") or instruction.shape.element_type in ("f64", "c128"):
        return 0.0
    if instruction.opcode == "dot" and instruction.algorithm in _ALGORITHM_ROUNDINGS:
        return _ALGORITHM_ROUNDINGS[instruction.algorithm]
    if instruction.opcode == "dot" and instruction.algorithm.startswith("dot_tf32"):
        return _TF32_ROUNDING
    precisions = instruction.operand_precision
    is_exact = precisions and all(precision == "highest" for precision in precisions)
    return _TF32_ROUNDING if in_tf32 and not is_exact else 0.0


class Perturbation:
    """Random roundings for the instructions of a widened module; `originals` are the instructions before widening."""

    def __init__(
        self,
        seed: int,
        originals: Mapping[HloInstruction, HloInstruction],
        last: Collection[HloInstruction] = (),
        in_parts: bool = False,
        in_tf32: bool = False,
    ) -> None:
        self._engine = RandomEngine(seed)
        self._originals = originals
        self._last = last
        # The direction of the errors of each approximated opcode.
        self._biases: dict[str, float] | None = {} if seed % 2 else None
        # Partitions may hold parts of a sum, each rounded to the type of the result.
        self._in_parts = in_parts
        self._in_tf32 = in_tf32
        self._counts: dict[HloComputation, dict[HloInstruction, float]] = {}

    @staticmethod
    def of(seed: int, original: HloModule, wide: HloModule, in_tf32: bool = False) -> Perturbation:
        """Return the roundings for `wide`, which `widen_module` made of `original`."""
        originals: dict[HloInstruction, HloInstruction] = {}
        for before, after in zip(original.computations, wide.computations, strict=True):
            # A widened computation may have exact converts after the others.
            originals.update(zip(after.instructions, before.instructions, strict=False))
        in_parts = original.num_partitions > 1 and original.divided is None
        in_parts = in_parts and not original.is_scheduled
        return Perturbation(seed, originals, _last_ops(wide), in_parts, in_tf32)

    def choose(
        self, instruction: HloInstruction, evaluate: Evaluator | None, program: ProgramEvaluator | None
    ) -> tuple[Evaluator | None, ProgramEvaluator | None]:
        """Return the evaluators of an instruction with roundings around them; unchanged for an exact op."""
        original = self._originals.get(instruction)
        if original is not None and instruction.opcode == "compare" and evaluate is not None:
            return self._deciding(original, evaluate), program
        if original is None or is_exact(instruction) or not _rounds(original.shape):
            return evaluate, program
        shape = original.shape
        before = _roundings_of_terms(instruction)
        after = _roundings_of_result(instruction, shape, before)
        term = _F32_ROUNDING if instruction.opcode in _SUMS_OF_PRODUCTS else math.inf
        if self._in_parts and instruction.opcode in _SUMS_OF_PRODUCTS:
            # One rounding of a term is as much as one of a sum of n terms, which is about sqrt(n) times as large.
            before, term = (1.0, math.inf) if rounding(shape.dtype) > _F32_ROUNDING else (before, term)
        floor = operand_rounding(original, self._in_tf32)
        # Both sides of a comparison round the result to its type once; a sum that the type keeps has roundings before that.
        last = _LAST_ROUNDING if instruction in self._last and after < 2.0 else math.inf
        bias = self._bias(instruction.opcode)
        own = [self._shape_of(operand) for operand in instruction.operands]

        def operands_of(operands: Sequence[Value]) -> list[Value]:
            if not before:
                return list(operands)
            return [self._round(value, was, before, floor, term) for value, was in zip(operands, own, strict=True)]

        def evaluated(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
            assert evaluate is not None, "only an op with an evaluator is evaluated"
            given = operands_of(operands)
            if instruction.opcode == "reduce" and len(given) > 2:
                given = self._in_another_order(instruction, given)
            value = evaluate(instruction, given, calls)
            rounded = self._round(value, shape, after, most=last, is_result=True, bias=bias)
            if instruction.opcode in _EXACTLY_ONE and shape.dtype.is_float:
                return np.where(as_array(value) == 1.0, value, rounded)
            return rounded

        def run(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
            assert program is not None, "only an op with a program is run"
            return program(instruction, operands_of(operands), device)

        return evaluated if evaluate is not None else None, run if program is not None else None

    def _in_another_order(self, reduction: HloInstruction, operands: Sequence[Value]) -> list[Value]:
        """Return the operands of a reduction of several arrays with their elements in a random order, the same for all."""
        count = len(operands) // 2
        arrays = [as_array(operand) for operand in operands[:count]]
        for dim in reduction.dimensions:
            order = self._engine.permutation(arrays[0].shape[dim])
            arrays = [np.take(array, order, axis=dim) for array in arrays]
        return [*arrays, *operands[count:]]

    def _deciding(self, original: HloInstruction, evaluate: Evaluator) -> Evaluator:
        """Return an evaluator of a comparison in which rounded numbers may be equal; `evaluate` if nothing is rounded."""
        dtype = original.operands[0].shape.dtype
        parent = original.parent
        if original.comparison_direction not in ("EQ", "NE") or not rounding(dtype) or parent is None:
            return evaluate
        count = max(self._roundings_in(parent).get(operand, 0.0) for operand in original.operands)
        if not count:
            return evaluate
        most = _NEARLY_EQUAL * count * rounding(dtype)

        def decided(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
            value, x, y = (np.asarray(each) for each in (evaluate(instruction, operands, calls), *operands))
            apart = np.abs(x - y)
            # No rounding makes a number infinite: the distance from infinity is infinite, as is any part of it.
            is_near = (apart > 0) & np.isfinite(apart) & (apart <= most * np.maximum(np.abs(x), np.abs(y)))
            words = self._engine.words((apart.size + 63) // 64)
            chosen = np.unpackbits(words.view(np.uint8), count=apart.size).reshape(apart.shape)
            return np.asarray(np.logical_xor(value, is_near & (chosen != 0)))

        return decided

    def _roundings_in(self, computation: HloComputation) -> dict[HloInstruction, float]:
        """Return for each instruction the most roundings of one op that it is computed from; the parameters have none."""
        if computation not in self._counts:
            counts: dict[HloInstruction, float] = {}
            for instruction in computation.instructions:
                own = [counts.get(operand, 0.0) for operand in instruction.operands]
                if instruction.opcode in ("fusion", "call", "while", "conditional"):
                    called = instruction.called_computations
                    own += [self._roundings_in(inner).get(inner.root, 0.0) for inner in called]
                elif not is_exact(instruction) and _rounds(instruction.shape):
                    before = _roundings_of_terms(instruction)
                    own.append(max(before, _roundings_of_result(instruction, instruction.shape, before)))
                counts[instruction] = max(own, default=0.0)
            self._counts[computation] = counts
        return self._counts[computation]

    def _bias(self, opcode: Opcode) -> float:
        """Return the sign of all errors of an opcode; 0 if each has its own."""
        if self._biases is None or opcode not in _APPROXIMATED:
            return 0.0
        if opcode not in self._biases:
            self._biases[opcode] = 1.0 if int(self._engine.words(1)[0]) & 1 else -1.0
        return self._biases[opcode]

    def _shape_of(self, instruction: HloInstruction) -> Shape | None:
        original = self._originals.get(instruction)
        return None if original is None else original.shape

    def _round(
        self,
        value: Value,
        shape: Shape | None,
        count: float,
        least: float = 0.0,
        most: float = math.inf,
        is_result: bool = False,
        bias: float = 0.0,
    ) -> Value:
        """Return `value`, of `shape` before widening, with errors of `count` roundings of the type.

        A rounding is at most `most`, the error at least `least`, both relative to the value. A result that is a number of
        its type is stored as that, unless it has several roundings: 1 / (1 + exp(-x)) is exactly 1 in bf16 for a large x.
        """
        if shape is None:
            return value
        if isinstance(value, tuple):
            parts = zip(value, shape.tuple_shapes, strict=True)
            return tuple(self._round(part, element, count, least, most, is_result, bias) for part, element in parts)
        if not shape.is_array or not rounding(shape.dtype) or value.dtype not in _WIDE:
            return value
        if value.dtype.kind == "c":
            parts = np.ascontiguousarray(value).reshape(-1).view(np.float64)
            return self._rounded(parts, shape.dtype, count, least, most).view(np.complex128).reshape(value.shape)
        rounded = self._rounded(value, shape.dtype, count, least, most, bias)
        if not is_result or count >= 2.0:
            return rounded
        stored = widen(narrow(value, shape.dtype), shape.dtype)
        is_kept = np.abs(stored - value) <= _KEPT * rounding(shape.dtype) * np.abs(value)
        return np.where(is_kept, stored, rounded)

    def _rounded(self, value: Array, dtype: DType, count: float, least: float, most: float, bias: float = 0.0) -> Array:
        own = rounding(dtype)
        # An operand that has few digits is exact in the type that it is multiplied in.
        relative = max(count * min(own, most), least if own < least else 0.0)
        step = smallest_step(dtype) if most == math.inf else 0.0
        size = np.maximum(np.abs(value) * relative, np.where(value == 0, 0.0, step))
        if bias:
            with np.errstate(invalid="ignore"):
                return np.where(np.isfinite(value), value + np.copysign(size, bias * value), value)
        words = self._engine.words((value.size + 63) // 64)
        signs = np.unpackbits(words.view(np.uint8), count=value.size).astype(np.float64) * 2.0 - 1.0
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(value), value + size * signs.reshape(value.shape), value)


def _roundings_of_terms(instruction: HloInstruction) -> float:
    """Return how many roundings each term of a sum has; 0 for ops that add none."""
    return math.sqrt(term_count(instruction)) if instruction.opcode in _SUMS else 0.0


def _roundings_of_result(instruction: HloInstruction, shape: Shape, of_sum: float) -> float:
    """Return how many roundings of its type a result has; a sum has `of_sum`, if its type does not keep it."""
    own = max(rounding(leaf.dtype) for _, leaf in shape.leaves() if leaf.is_array)
    if instruction.opcode in _EXPANDED:
        return _ROUNDINGS_OF_APPROXIMATION
    if instruction.opcode in _APPROXIMATED:
        # Kernels compute narrow types in f32, and round the result once.
        return 1.0 + _ROUNDINGS_OF_APPROXIMATION * _F32_ROUNDING / own if own > _F32_ROUNDING else _ROUNDINGS_OF_APPROXIMATION
    if instruction.opcode in _SUMS_OF_PRODUCTS and own > _F32_ROUNDING:
        return 1.0
    # One after the other, n terms of one sign are off by about sqrt(n) / 4 roundings of their sum.
    return max(1.0, of_sum / 2)


def is_exact(instruction: HloInstruction) -> bool:
    """True for an op whose results are elements of its operands, or exact: also for the largest or smallest of many."""
    if instruction.opcode in ("reduce", "reduce-window", "all-reduce", "reduce-scatter", "scatter"):
        return instruction.called_computations[0].root.opcode in ("maximum", "minimum", "and", "or")
    if instruction.opcode in _EXACT_IF_REAL:
        return not instruction.operands[0].shape.dtype.is_complex
    return instruction.opcode in _EXACT


def _last_ops(module: HloModule) -> set[HloInstruction]:
    """Return the ops that compute the result: nothing rounds between them and the root, and they have no other use."""
    last: set[HloInstruction] = set()

    def before(instruction: HloInstruction) -> Sequence[HloInstruction]:
        if instruction.opcode in ("fusion", "call"):
            return (instruction.called_computations[0].root,)
        if instruction.opcode in MOVES_ELEMENTS or instruction.opcode in ("tuple", "concatenate", "pad"):
            return [operand for operand in instruction.operands if all(user in last for user in operand.users)]
        return ()

    for instruction in walk([module.entry.root], before):
        last.add(instruction)
    return last


def _rounds(shape: Shape) -> bool:
    return any(leaf.is_array and rounding(leaf.dtype) for _, leaf in shape.leaves())
