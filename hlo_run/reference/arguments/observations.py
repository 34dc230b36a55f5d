"""Watch an evaluation for values that tell little: NaN, infinities, and functions at the ends of their ranges.

An observation says where such values began and what the operand should have been: positive where a logarithm or a square root
had a negative number, smaller where an exponential overflows or a tanh is 1 everywhere. `recipes.py` says what that means for the
arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hlo_run.arrays import Array
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.reference.values import Value

# The numbers of an array that are looked at: more show nothing else.
_SAMPLE = 4096
# Later evaluations of an instruction in a loop, of which every second power of two is looked at too.
_FIRST_VISITS = 4
POSITIVE, SMALLER, CENTRED = "positive", "smaller", "centred"
# Ops whose result loses the operand outside of an interval of the operand's magnitude: f32 rounds it to the end of the range.
_FLAT_FROM = {"tanh": 8.0, "logistic": 16.0, "erf": 3.9, "exponential": 17.0, "exp2": 24.0}
# Below this, an operand of an exponential is masked.
_MASKED = -1e4
# The magnitudes that their operands should have.
_GOOD = {"tanh": 2.0, "logistic": 4.0, "erf": 1.0, "exponential": 4.0, "exp2": 4.0, "exponential-minus-one": 4.0}
# Operands that must be positive, or not negative.
_WANT_POSITIVE: frozenset[Opcode] = frozenset(("log", "log2", "rsqrt"))
_WANT_NOT_NEGATIVE: frozenset[Opcode] = frozenset(("sqrt",))
_WANT_SMALLER: frozenset[Opcode] = frozenset(("atanh", "acos", "asin", "log-plus-one"))
# For results that overflow by an unknown factor.
_MUCH_SMALLER = 2.0**-7
# The share of flat numbers that is too many.
_TOO_MANY = 0.5


class Observation(Struct, frozen=True):
    """A want about operand `operand` of an instruction: that it is positive, centred at zero, or smaller by `factor`.

    `is_bad`: the result has a NaN or an infinity that no operand had.
    """

    instruction: HloInstruction
    operand: int
    want: str
    factor: float = 1.0
    is_bad: bool = True


class Observations:
    """The observations of one evaluation, in its order; the first of an instruction counts. Call it as an `Observer`."""

    def __init__(self) -> None:
        self.found: dict[HloInstruction, list[Observation]] = {}
        self._visits: dict[HloInstruction, int] = {}

    def __call__(self, instruction: HloInstruction, operands: Sequence[Value], value: Value) -> None:
        """Look at the value of an instruction."""
        if instruction.opcode == "custom-call":
            if _is_no_factor(instruction, value):
                self.found.setdefault(instruction, [Observation(instruction, 0, POSITIVE, is_bad=False)])
            return
        if isinstance(value, tuple) or not instruction.shape.dtype.is_float:
            return
        visit = self._visits.get(instruction, 0) + 1
        self._visits[instruction] = visit
        if instruction in self.found or (visit > _FIRST_VISITS and visit & (visit - 1)):
            return
        sample = _sample(value)
        if not np.isfinite(sample).all():
            found = _born(instruction, operands)
        elif instruction.opcode in _FLAT_FROM:
            found = _flat(instruction, operands[0])
        elif instruction.opcode == "maximum" and sample.size > 1 and not sample.any():
            found = _dead(instruction, operands)
        else:
            return
        if found:
            self.found[instruction] = found


def _is_no_factor(call: HloInstruction, value: Value) -> bool:
    """True if a call finds that a matrix has no Cholesky factor."""
    if not isinstance(value, tuple) or "potrf" not in call.custom_call_target:
        return False
    return bool(np.any(np.asarray(value[-1]) != 0))


def _sample(value: Value) -> Array:
    """Return some of the numbers of an array of floats, as f32 or f64."""
    array = np.asarray(value)
    if array.size > _SAMPLE:
        rest = array.size
        steps: list[slice] = []
        for size in array.shape:
            # From the outermost dimension inwards, take each only as far as the sample is too large.
            step = min(size, max(1, rest // _SAMPLE))
            steps.append(slice(None, None, step))
            rest = rest // size * -(-size // step)
        array = array[tuple(steps)]
    return array if array.dtype.itemsize >= 4 else array.astype(np.float32)


def _floats(value: Value) -> Array | None:
    """Return the numbers of an operand if they are real ones."""
    if isinstance(value, tuple):
        return None
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return None
    return array if array.dtype.kind in "biu" or array.dtype.itemsize >= 4 else array.astype(np.float32)


def _born(instruction: HloInstruction, operands: Sequence[Value]) -> list[Observation]:
    """Return what the operands of an instruction should be that has NaN or infinities; nothing if an operand has them too."""
    arrays = [_floats(operand) for operand in operands]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or not all(np.isfinite(array).all() for array in known if array.dtype.kind == "f"):
        return []
    opcode = instruction.opcode
    if opcode == "convert" and known[0].dtype.kind != "f":
        return []  # the program rounds its integers so
    if opcode in _WANT_POSITIVE | _WANT_NOT_NEGATIVE:
        return [Observation(instruction, 0, POSITIVE)]
    if opcode in _WANT_SMALLER:
        largest = float(np.abs(known[0]).max())
        return [Observation(instruction, 0, SMALLER, _power_of_two(0.9 / max(largest, 1.0)))]
    if opcode == "divide":
        wants = [Observation(instruction, 1, POSITIVE)] if not known[1].all() else []
        return wants or [Observation(instruction, number, SMALLER, _MUCH_SMALLER) for number in (0, 1)]
    if opcode == "power":
        wants = [Observation(instruction, 0, POSITIVE)] if (known[0] <= 0).any() else []
        return wants or [Observation(instruction, 1, POSITIVE)] if (known[1] < 0).any() else wants
    if opcode in _GOOD:
        factor = _GOOD[opcode] / max(float(np.abs(known[0]).max()), 1.0)
        return [Observation(instruction, 0, SMALLER, _power_of_two(factor))]
    return [Observation(instruction, number, SMALLER, _MUCH_SMALLER) for number in range(len(operands))]


def _power_of_two(factor: float) -> float:
    """Return the largest power of two up to a factor: its last bits may differ between machines, and the arguments must not."""
    return math.ldexp(1.0, math.frexp(factor)[1] - 1)


def _flat(instruction: HloInstruction, operand: Value) -> list[Observation]:
    """Return that an operand should be smaller if most of its numbers lie where the function is flat."""
    size = np.abs(_sample(operand)).reshape(-1)
    if instruction.opcode == "exponential":
        size = size[size < -_MASKED]
    if not size.size:
        return []
    flat = size > _FLAT_FROM[instruction.opcode]
    if np.count_nonzero(flat) <= _TOO_MANY * size.size:
        return []
    middle = float(np.partition(size, size.size // 2)[size.size // 2])
    return [Observation(instruction, 0, SMALLER, _power_of_two(_GOOD[instruction.opcode] / middle), is_bad=False)]


def _dead(instruction: HloInstruction, operands: Sequence[Value]) -> list[Observation]:
    """Return that an operand should have both signs if its maximum with zero is zero everywhere."""
    for number, operand in enumerate(operands):
        sample = _sample(operand)
        if sample.any() and (sample <= 0).all():
            return [Observation(instruction, number, CENTRED, is_bad=False)]
    return []
