"""Expand rng-bit-generator to integer arithmetic, with the same bits as in XLA.

    (u64[2], u32[5]) rng-bit-generator(state), algorithm=rng_three_fry
        =>   call(state), to_apply=rng      ; Threefry-2x32 of consecutive counters

The default algorithm is Philox. Leaves a call for the inliner. XLA's `rng_bit_generator_expander.cc`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue
from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo_passes.rng.counter_rng import philox, three_fry
from hlo_run.hlo_passes.subgraphs.expansion import expand
from hlo_run.pass_support.hlo_pass import PassContext


class RngBitGeneratorExpander(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "rng-bit-generator-expander"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        expand(module, ("rng-bit-generator",), _bits, called="rng")


def _check(instruction: HloInstruction) -> None:
    state, parts = instruction.operands[0].shape, instruction.shape.tuple_shapes
    most_words = 2 if instruction.algorithm == "rng_three_fry" else 3
    known_state = state.element_type == "u64" and state.dims in ((2,), (most_words,))
    if not known_state or len(parts) != 2 or parts[1].dtype.kind not in ("signed", "unsigned", "float"):
        raise Unsupported(
            f"rng-bit-generator of {instruction.shape} from a state of {state}",
            instruction.where,
            hint="the state must be u64[2] (Threefry, Philox) or u64[3] (Philox), the result a state and integers or floats",
        )


def _bits(b: HloBuilder, old: HloInstruction, state: HloValue) -> HloValue:
    _check(old)
    shape = old.shape.tuple_shapes[1]
    state.annotate(name="state")
    width = 64 if shape.dtype.bits == 64 else 32
    key = b.reshape(b.slice(state, [(0, 1)]), ())
    if old.algorithm == "rng_three_fry":
        bits, counter = three_fry(b, key, b.slice(state, [(1, 2)]), width, shape.dims)
        bits = _as_type(b, bits, shape.element_type)
    else:
        # In a state of two words, the key is also the high half of the counter.
        is_wide = state.shape.dims[0] == 3
        bits, counter = philox(b, key, b.slice(state, [(1, 3)]) if is_wide else b.reverse(state, (0,)), width, shape.dims)
        bits = _as_type(b, bits, shape.element_type)
        counter = counter if is_wide else b.slice(counter, [(0, 1)])
    return b.tuple([b.concatenate([b.reshape(key, (1,)), counter], 0), bits])


def _as_type(b: HloBuilder, bits: HloValue, element_type: str) -> HloValue:
    """Return the low bits of unsigned integers as another type; for a float type, they are its bit patterns."""
    dtype = DTYPES[element_type]
    unsigned = f"u{dtype.bits}"
    if bits.shape.element_type != unsigned:
        bits = b.convert(bits, unsigned)
    return bits if element_type == unsigned else b.bitcast_convert(bits, element_type)
