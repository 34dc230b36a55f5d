"""The sharding rule of each opcode."""

from __future__ import annotations

from collections.abc import Callable

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE, PERMUTE
from hlo_run.sharding.shardy import rules_calls, rules_indexed, rules_products, rules_shapes
from hlo_run.sharding.shardy.rule import Rule
from hlo_run.sharding.shardy.rules_given import given_rule

# They are elementwise here, but Shardy knows no rule for them, as StableHLO does not have them.
_WITHOUT_RULE = opcode_set("acos acosh asin asinh atanh cosh erf map rng rng-get-and-update-state sinh stochastic-convert")
_POINTWISE = opcode_set("copy all-reduce collective-broadcast") | PERMUTE

_RULES: dict[Opcode, Callable[[HloInstruction], Rule | None]] = {
    "all-gather": rules_shapes.gathering_collective,
    "all-to-all": rules_shapes.gathering_collective,
    "reduce-scatter": rules_shapes.gathering_collective,
    "batch-norm-inference": rules_shapes.batch_norm_inference,
    "bitcast-convert": rules_shapes.bitcast_convert,
    "broadcast": rules_shapes.broadcast,
    "cholesky": rules_products.cholesky,
    "concatenate": rules_shapes.concatenate,
    "convolution": rules_products.convolution,
    "custom-call": rules_calls.custom_call,
    "dot": rules_products.dot,
    "dynamic-slice": rules_indexed.dynamic_slice,
    "dynamic-update-slice": rules_indexed.dynamic_update_slice,
    "fft": rules_products.fft,
    "gather": rules_indexed.gather,
    "pad": rules_shapes.slice_or_pad,
    "ragged-dot": rules_products.ragged_dot,
    "reduce": rules_shapes.reduce,
    "reduce-window": rules_shapes.reduce_window,
    "reshape": rules_shapes.reshape,
    "reverse": rules_shapes.reverse,
    "rng-bit-generator": rules_shapes.rng_bit_generator,
    "scan": rules_shapes.scan,
    "scatter": rules_indexed.scatter,
    "select-and-scatter": rules_shapes.select_and_scatter,
    "slice": rules_shapes.slice_or_pad,
    "sort": rules_shapes.sort,
    "topk": rules_calls.top_k,
    "transpose": rules_shapes.transpose,
    "triangular-solve": rules_products.triangular_solve,
}


def is_elementwise(instruction: HloInstruction) -> bool:
    """True if Shardy moves shardings through the instruction first, because each element depends on one of each operand."""
    if instruction.opcode == "bitcast-convert":
        return instruction.shape.dims == instruction.operands[0].shape.dims
    if instruction.opcode == "custom-call":
        return instruction.custom_call_target in ("Sharding", "xla.sdy.PropagationBarrier")
    return instruction.opcode == "copy" or (instruction.opcode in ELEMENTWISE and instruction.opcode not in _WITHOUT_RULE)


def rule_of(instruction: HloInstruction) -> Rule | None:
    """Return the sharding rule of an instruction, or None if shardings do not move through it.

    Raises Unsupported for a rule in its attributes that cannot be read or does not fit.
    """
    given = given_rule(instruction)
    if given is not None:
        return given
    make = _RULES.get(instruction.opcode)
    if make is not None:
        return make(instruction)
    is_pointwise = instruction.opcode in _POINTWISE or is_elementwise(instruction)
    return rules_calls.pointwise(instruction) if is_pointwise else None
