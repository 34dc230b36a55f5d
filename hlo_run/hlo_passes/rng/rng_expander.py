"""Expand rng to a distribution of Philox bits, with a counter that the device keeps between runs.

    f32[5] rng(low, high), distribution=rng_uniform
        =>   state = u64[2] rng-get-and-update-state(), delta=5
             call(key, state, low, high), to_apply=rng   ; (philox(key, state) >> 9) * 2^-23 * (high - low) + low

Normal numbers use the Box-Muller transform; floats below 32 bits are computed in f32. The key mixes the seed of the run with
the numbers of the instruction and the device. XLA's `rng_expander.cc`, where the numbers in the key depend on the process.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.rng.counter_rng import halves, interleave, philox
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext

_MASK_64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class RngExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "rng-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        places = {old: place for place, old in enumerate(module.in_post_order("rng"), 1)}
        if not places:
            return
        replicas, partitions = module.replica_count, module.num_partitions

        def build(b: HloBuilder, old: HloInstruction, first: HloValue, second: HloValue) -> HloValue:
            _check(old)
            seed = b.custom_call("GetRngSeed", [], "u64[]")
            key = seed ^ b.constant((places[old] * _GOLDEN & _MASK_64) >> 32, "u64")
            device = _device_number(b, replicas, partitions)
            if device is not None:
                key = key ^ b.shift_left(b.convert(device, "u64"), 32)
            return _numbers(b, old, key, first, second)

        expand(module, ("rng",), build)


def _check(instruction: HloInstruction) -> None:
    is_normal = instruction.distribution == "rng_normal"
    if len(instruction.operands) != 2 or instruction.shape.dtype.kind not in (
        ("float",) if is_normal else ("float", "signed", "unsigned")
    ):
        raise Unsupported(f"rng of {instruction.shape}", instruction.where, hint="use floats, or uniform integers")


def _device_number(b: HloBuilder, replicas: int, partitions: int) -> HloValue | None:
    if replicas == 1:
        return b.partition_id() if partitions > 1 else None
    replica = b.replica_id()
    return replica if partitions == 1 else replica * partitions + b.partition_id()


def _numbers(b: HloBuilder, old: HloInstruction, key: HloValue, first: HloValue, second: HloValue) -> HloValue:
    shape = old.shape
    words_each = 2 if shape.dtype.bits == 64 else 1
    state = b.rng_get_and_update_state(shape.element_count * words_each)
    is_small_float = shape.dtype.is_float and shape.dtype.bits < 32
    if is_small_float:
        first, second = b.convert(first, "f32"), b.convert(second, "f32")

    def body(inner: HloBuilder) -> HloValue:
        names = ("key", "state", "a_or_mean", "b_or_sigma")
        arguments = (key, state, first, second)
        values = [inner.parameter(n, v.shape, name) for n, (v, name) in enumerate(zip(arguments, names, strict=True))]
        if shape.dtype.is_integer:
            return _uniform_integers(inner, shape.dims, *values)
        kind = _normal if old.distribution == "rng_normal" else _uniform
        return kind(inner, shape.dims, *values)

    inner = b.sub_builder("rng")
    computation = inner.build_computation(body(inner))
    result = b.call([key, state, first, second], computation)
    return b.convert(result, shape.element_type) if is_small_float else result


def _bits(b: HloBuilder, key: HloValue, state: HloValue, width: int, dims: tuple[int, ...]) -> HloValue:
    return philox(b, key, state, width, dims)[0]


def _uniform(b: HloBuilder, dims: tuple[int, ...], key: HloValue, state: HloValue, low: HloValue, high: HloValue) -> HloValue:
    """Return numbers in [low, high): the top bits, as many as the mantissa has, are a fraction in [0, 1)."""
    dtype = low.shape.dtype
    mantissa = dtype.float_format.mantissa_bits
    bits = _bits(b, key, state, dtype.bits, dims)
    unit = b.convert(b.shift_right_logical(bits, dtype.bits - mantissa), dtype.name) * 2.0**-mantissa
    return unit * (high - low) + low


def _uniform_integers(
    b: HloBuilder, dims: tuple[int, ...], key: HloValue, state: HloValue, low: HloValue, high: HloValue
) -> HloValue:
    """Return low + bits mod (high - low), added in two halves as in XLA, so that no sum overflows."""
    dtype = low.shape.dtype
    unsigned = f"u{dtype.bits}"
    bits = _bits(b, key, state, 64 if dtype.bits == 64 else 32, dims)
    if bits.shape.element_type != unsigned:
        bits = b.convert(bits, unsigned)
    span = b.bitcast_convert(high, unsigned) - b.bitcast_convert(low, unsigned)
    offset = b.remainder(bits, span)
    half = b.shift_right_logical(offset, 1)
    return low + b.bitcast_convert(half, dtype.name) + b.bitcast_convert(offset - half, dtype.name)


def _normal(b: HloBuilder, dims: tuple[int, ...], key: HloValue, state: HloValue, mean: HloValue, sigma: HloValue) -> HloValue:
    """Return Box-Muller pairs in the layout of `halves`: sines at even positions, cosines at odd ones."""
    element_type = mean.shape.element_type
    paired, place = halves(dims)[1:]
    zero, one = b.constant(0.0, element_type), b.constant(1.0, element_type)
    unit = _uniform(b, paired, key, state, zero, one)
    u1, u2 = (b.slice(unit, [(n, n + 1) if dim == place else (0, size) for dim, size in enumerate(paired)]) for n in range(2))
    u1 = b.maximum(u1, 1e-7)
    angle = 2 * math.pi * u2
    radius = b.sqrt(-2.0 * b.log(u1))
    return mean + sigma * interleave(b, (b.sine(angle) * radius, b.cosine(angle) * radius), dims)
