"""The arguments of `--hlo_argument_mode` that are not fake arguments: the number of the device, or normally distributed numbers.

As in XLA's functional_hlo_runner, no use of a parameter constrains them, and an array with dynamic sizes is empty there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hlo_run.elementary import functions
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.complex_functions import make_complex
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import TOKEN, Array, narrow, quiet

RANDOM, SHARED, ZEROS, UNINITIALIZED = "use_random_inputs", "use_shared_random_inputs", "use_zeros_as_input", "uninitialized"
DEVICE_ID, NORMAL = "use_device_id_as_input", "use_random_normal_inputs"
_PARTS = {"c64": "f32", "c128": "f64"}


def device_id_arguments(module: HloModule, device: int) -> list[Literal]:
    """Return one literal per entry parameter in which every element is `device`, converted to its type."""
    return _arguments(module, lambda dtype, count: _equal(dtype, device, count))


def normal_arguments(module: HloModule, engine: RandomEngine) -> list[Literal]:
    """Return one literal per entry parameter: floats with mean 0 and standard deviation 1, and integers of the whole type."""
    return _arguments(module, lambda dtype, count: _normal(dtype, count, engine))


def _equal(dtype: DType, value: int, count: int) -> Array:
    if dtype.is_integer:
        value &= (1 << (dtype.bits - dtype.is_signed)) - 1
    return np.full(count, value).astype(dtype.numpy)


def _normal(dtype: DType, count: int, engine: RandomEngine) -> Array:
    if dtype.kind == "pred":
        return engine.integers(dtype, 0, 1, count)
    if dtype.is_integer:
        lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
        return engine.integers(dtype, lowest, lowest + (1 << dtype.bits) - 1, count)
    if dtype.is_complex:
        part = DTYPES[_PARTS[dtype.name]]
        real = _normal(part, count, engine)
        return make_complex(real, _normal(part, count, engine))
    # Box and Muller's method. 1 - u is never 0.
    radius = np.sqrt(-2.0 * functions.log(1.0 - engine.unit(count)))
    return narrow(radius * functions.cos(2.0 * math.pi * engine.unit(count)), dtype)


def _arguments(module: HloModule, make: Callable[[DType, int], Array]) -> list[Literal]:
    def build(shape: Shape) -> Literal:
        if shape.is_tuple:
            return tuple(map(build, shape.tuple_shapes))
        if not shape.is_array:
            return TOKEN
        dynamic = shape.dynamic_dims or (False,) * shape.rank
        dims = tuple(0 if is_dynamic else size for size, is_dynamic in zip(shape.dims, dynamic, strict=True))
        return make(shape.dtype, math.prod(dims)).reshape(dims)

    with quiet():
        return [build(parameter.shape) for parameter in module.entry.parameters]
