"""Expand stochastic rounding to ordinary operations.

    s8 stochastic-convert(x, random)   =>   magnitude = floor(abs(x));  fraction = abs(x) - magnitude
                                            rounded = magnitude + (random < u32(fraction * 2^32))
                                            select(x >= 127, 127, select(x <= -128, -128, sign(x) * rounded))

XLA's `stochastic_convert_decomposer.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext

_F16_BITS = 16


class StochasticConvertDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "stochastic_convert_decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("stochastic-convert",), _round_by_chance, inherits=False)


def _round_by_chance(b: HloBuilder, old: HloInstruction, x: HloValue, random: HloValue) -> HloValue:
    source, target = x.shape.element_type, old.shape.element_type
    if not old.shape.dtype.is_signed:
        raise Unsupported(
            f"stochastic-convert from {source} to {target}", old.where, hint="only floats to signed integers are supported"
        )
    is_negative = b.sign(x) < 0
    absolute = b.abs(x)
    magnitude = b.floor(absolute)
    fraction = absolute - magnitude
    bits = random.shape.dtype.bits
    if bits == _F16_BITS:
        fraction = b.convert(fraction, "f32")  # 2^16 is infinite in f16
    threshold = b.convert(fraction * 2.0**bits, random.shape.element_type)
    rounds_up = random < threshold
    truncated = b.convert(magnitude, target)
    rounded = b.select(rounds_up, truncated + 1, truncated)
    signed = b.select(is_negative, -rounded, rounded)
    least, most = -(1 << (old.shape.dtype.bits - 1)), (1 << (old.shape.dtype.bits - 1)) - 1
    not_below = b.select(x <= float(least), b.constant(least, target), signed)
    return b.select(x >= float(most), b.constant(most, target), not_below)
