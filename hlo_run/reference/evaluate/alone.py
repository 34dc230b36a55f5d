"""Judge one instruction's result on given operands: by the bounds, and by the rounding that its own ops allow.

Rounding errors that an instruction receives are in its operands, so what is left is a few roundings of the terms that it
adds. The reference's value has them too: one evaluation in float64 with random roundings tells how large they are, and only
if the result is farther from the expected one, the exact result and more evaluations decide. What only moves or compares
elements has no rounding at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from msgspec import structs

from hlo_run.errors import DeviceError, Unsupported
from hlo_run.hlo.feeds import NO_FEEDS, Feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.compare.compare import Comparison, ErrorSpec, compare
from hlo_run.reference.compare.rounding import RoundingSamples
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.evaluate.perturbed import is_exact, smallest_step
from hlo_run.reference.values import Value

# Their numbers may depend on the device, though nothing is rounded.
_OPEN: frozenset[Opcode] = frozenset(("rng", "rng-bit-generator", "stochastic-convert", "infeed", "custom-call"))


def judge_alone(
    module: HloModule,
    operands: Sequence[Value],
    expected: Value,
    actual: Value,
    spec: ErrorSpec,
    shape: Shape | None = None,
    part: Callable[[Value], Value] = lambda value: value,
    seed: int = 42,
    feeds: Feeds = NO_FEEDS,
    in_tf32: bool = False,
) -> Comparison:
    """Compare results of `module`, an isolated instruction, on `operands`. Nothing is evaluated unless the bounds leave doubt.

    Floats of an instruction that rounds nothing must be equal; kernels may flush those below the smallest normal number.
    Integers and preds must be equal, unless rounding turns the decision that makes them.

    `part` maps the result of the module to what is compared, which has `shape` (None: that of the whole result). `in_tf32`:
    the device may multiply f32 in TF32.
    """
    numbers = count()

    def evaluated(roundings: int | None = None) -> Value | None:
        try:
            return part(Reference(module, "f64", roundings, in_tf32).run([operands], seed=seed, feeds=feeds)[0])
        except (Unsupported, DeviceError, MemoryError):
            return None

    shape = module.entry.root.shape if shape is None else shape
    if all(map(_rounds_nothing, module.instructions)):
        flushed = max((smallest_step(leaf.dtype) for _, leaf in shape.leaves() if leaf.is_array and _is_near(leaf)), default=0.0)
        return compare(expected, actual, shape, structs.replace(spec, abs=min(spec.abs, flushed), rel=0.0))
    comparison = compare(expected, actual, shape, spec)
    samples = RoundingSamples(evaluated, lambda: evaluated(next(numbers)))
    return comparison.judged(samples, is_alone=True)


def _rounds_nothing(instruction: HloInstruction) -> bool:
    """True for an op that moves or compares elements, or whose rounding of a number has one right result."""
    if instruction.opcode in ("parameter", "reduce-precision"):
        return True
    if instruction.opcode == "convert":
        source, target = instruction.operands[0].shape.dtype, instruction.shape.dtype
        return source.is_float and target.is_float and 16 <= source.bits < target.bits
    return instruction.opcode not in _OPEN and is_exact(instruction)


def _is_near(shape: Shape) -> bool:
    return shape.dtype.kind in ("float", "complex")
