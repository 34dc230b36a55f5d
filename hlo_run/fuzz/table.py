"""The table of step families of random modules: the step, its weight, and whether it may be in a fusion."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from hlo_run.fuzz.families import bits, control, dynamic, effects, elementwise, indexed, products, reductions, shaping
from hlo_run.fuzz.program.scope import Scope


class Family(Struct, frozen=True):
    """A family: its name, its step, the weight of the step, and whether fusions may contain it."""

    name: str
    weight: float
    step: Callable[[Scope], None]
    fuses: bool = False


FAMILIES: tuple[Family, ...] = (
    Family("smooth", 3, elementwise.smooth, fuses=True),
    Family("arithmetic", 6, elementwise.arithmetic, fuses=True),
    Family("sign", 1, elementwise.sign_changes, fuses=True),
    Family("steps", 1, elementwise.steps, fuses=True),
    Family("divide", 1.5, elementwise.divide, fuses=True),
    Family("integer", 1.5, elementwise.integer, fuses=True),
    Family("logic", 1, elementwise.logic, fuses=True),
    Family("compare", 1.5, elementwise.compare, fuses=True),
    Family("select", 2, elementwise.select, fuses=True),
    Family("clamp", 1, elementwise.clamp, fuses=True),
    Family("convert", 2.5, elementwise.convert, fuses=True),
    Family("complex", 0.7, elementwise.complex_parts, fuses=True),
    Family("map", 0.4, elementwise.map_scalars),
    Family("nothing", 1, elementwise.nothing_much, fuses=True),
    Family("broadcast", 2, shaping.broadcast, fuses=True),
    Family("transpose", 2.5, shaping.transpose, fuses=True),
    Family("reshape", 2.5, shaping.reshape, fuses=True),
    Family("squeeze", 0.7, shaping.squeeze, fuses=True),
    Family("slice", 1.5, shaping.slice_, fuses=True),
    Family("pad", 1.5, shaping.pad, fuses=True),
    Family("concatenate", 1.5, shaping.concatenate, fuses=True),
    Family("reverse", 0.8, shaping.reverse, fuses=True),
    Family("count", 0.6, shaping.count, fuses=True),
    Family("constant", 0.8, shaping.constant, fuses=True),
    Family("barrier", 0.5, shaping.barrier),
    Family("tuple", 0.5, shaping.through_tuple),
    Family("reduce", 3.5, reductions.reduce, fuses=True),
    Family("reduce_several", 1, reductions.reduce_several),
    Family("argmax", 0.8, reductions.argmax),
    Family("window", 1.2, reductions.window),
    Family("cumulative", 0.8, reductions.cumulative),
    Family("scan", 0.5, reductions.scan),
    Family("sort", 1, reductions.sort),
    Family("top", 0.5, reductions.top),
    Family("select_and_scatter", 0.5, reductions.select_and_scatter),
    Family("norm", 0.6, reductions.norm),
    Family("gather", 1.5, indexed.gather),
    Family("scatter", 1.5, indexed.scatter),
    Family("lookup", 0.6, indexed.lookup),
    Family("dynamic_slice", 1, indexed.dynamic_slice, fuses=True),
    Family("dynamic_update", 1, indexed.dynamic_update, fuses=True),
    Family("dot", 2, products.dot),
    Family("convolution", 1, products.convolution),
    Family("ragged_dot", 0.3, products.ragged_dot),
    Family("transform", 0.2, products.transform),
    Family("quantised_dot", 0.2, products.quantised_dot),
    Family("bitcast_convert", 1.2, bits.bitcast_convert),
    Family("pack", 0.4, bits.pack, fuses=True),
    Family("flip", 0.4, effects.flip),
    Family("record", 0.7, effects.record),
    Family("infeed", 0.3, effects.infeed),
    Family("outfeed", 0.3, effects.outfeed),
    Family("random_bits", 0.4, effects.random_bits),
    Family("device", 0.1, effects.device),
    Family("dependency", 0.2, effects.dependency),
    Family("all_reduce", 0.2, effects.all_reduce),
    Family("dynamic_size", 0.6, dynamic.dynamic_size),
    Family("call", 0.8, control.call),
    Family("fusion", 1.5, control.fusion, fuses=True),
    Family("async", 0.3, control.async_pair),
    Family("conditional", 1, control.conditional),
    Family("loop", 1.2, control.loop),
)
BY_NAME = {family.name: family for family in FAMILIES}
