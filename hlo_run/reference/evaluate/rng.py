"""Evaluate random numbers: rng-bit-generator bit for bit as XLA, rng and rng-get-and-update-state as XLA's expanders.

Every `rng` draws Philox bits from its own rng-get-and-update-state. XLA mixes the key from the instruction's number in
the process; ours is its number among the module's `rng` instructions, so that two runs agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hlo_run.elementary import functions
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.reference.bits import from_element_bits
from hlo_run.reference.convert import convert
from hlo_run.reference.evaluate.device import Device, Frame, ProgramEvaluator
from hlo_run.reference.numerics.counter_rng import philox_words, threefry_words
from hlo_run.reference.values import Array, Calls, Value, as_array, table, unsupported

_MASK_64 = 2**64 - 1
_MASK_128 = 2**128 - 1
# The counter of rng-get-and-update-state before its first use.
_INITIAL_STATE = 0x7012395


def _rng_bit_generator(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    state = as_array(operands[0])
    shapes = instruction.shape.tuple_shapes
    if len(shapes) != 2 or state.ndim != 1 or state.shape[0] not in (2, 3) or state.dtype != np.uint64:
        raise unsupported(instruction)
    words = [int(word) for word in state]
    algorithm = instruction.algorithm
    if algorithm == "rng_three_fry":
        if len(words) != 2:
            raise unsupported(instruction, "rng_three_fry with a state that is not u64[2]")
        new_state, bits = _three_fry(words, shapes[1])
    else:
        new_state, bits = _philox(words, shapes[1])
    return np.array(new_state, np.uint64), _from_bits(bits, shapes[1].dtype)


def _from_bits(bits: Array, dtype: DType) -> Array:
    """Return the elements whose bits are the low bits of these."""
    if dtype.bits < 8:
        bits = bits & np.array((1 << dtype.bits) - 1, bits.dtype)
    bits = np.asarray(bits)  # numpy's operators return numbers for arrays without dimensions
    return from_element_bits(bits.astype(f"u{max(1, dtype.bits // 8)}"), dtype)


def _philox(state: list[int], shape: Shape) -> tuple[list[int], Array]:
    """Return the new state and the bits. The state is key, counter low, counter high; with two words, high is the key."""
    key, low = state[0], state[1]
    high = state[2] if len(state) == 3 else key
    is_wide = shape.dtype.bits == 64
    count = shape.element_count
    blocks = -(-count * (2 if is_wide else 1) // 4)
    counter = low | high << 64
    words = philox_words(key, counter, blocks).reshape(-1)
    bits = _pairs(words[0::2], words[1::2]) if is_wide else words
    after = (counter + blocks) & _MASK_128
    return [key, after & _MASK_64, after >> 64][: len(state)], bits[:count].reshape(shape.dims)


def _pairs(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _three_fry(state: list[int], shape: Shape) -> tuple[list[int], Array]:
    """Return the new state and the bits: a block per 64-bit element, or per two narrower ones along the split dimension."""
    key, counter = state
    dims = shape.dims
    if shape.dtype.bits == 64:
        first, second = threefry_words(key, _counters(counter, dims))
        return [key, (counter + shape.element_count) & _MASK_64], _pairs(first, second)
    split = _split_dim(dims)
    halved = [(size + 1) // 2 if dim == split else size for dim, size in enumerate(dims)]
    pair = threefry_words(key, _counters(counter, tuple(halved)))
    after = (counter + math.prod(halved)) & _MASK_64
    return [key, after], interleave(pair, dims, split)


def _counters(start: int, dims: Sequence[int]) -> Array:
    return (np.uint64(start) + np.arange(math.prod(dims), dtype=np.uint64)).reshape(tuple(dims))


def _split_dim(dims: Sequence[int]) -> int:
    """Return the first even dimension, else the largest (the first of equals); -1 for a scalar."""
    if not dims:
        return -1
    even = next((dim for dim, size in enumerate(dims) if size % 2 == 0), None)
    return list(dims).index(max(dims)) if even is None else even


def interleave(pair: tuple[Array, Array], dims: Sequence[int], split: int) -> Array:
    """Interleave two arrays along dimension `split` and cut the result to `dims`; with `split` < 0 return the first."""
    if split < 0:
        return pair[0]
    both = np.stack(pair, axis=split + 1)
    whole = [2 * size if dim == split else size for dim, size in enumerate(pair[0].shape)]
    return both.reshape(whole)[tuple(slice(0, size) for size in dims)]


def _take_state(instruction: HloInstruction, device: Device, delta: int) -> int:
    """Return the 128-bit counter of an instruction and advance it; each device has its own."""
    old = device.counters.get(instruction, _INITIAL_STATE)
    device.counters[instruction] = (old + delta) & _MASK_128
    return old


def _rng_get_and_update_state(instruction: HloInstruction, _operands: list[Value], device: Device) -> Frame:
    yield from ()
    old = _take_state(instruction, device, instruction.rng_delta)
    return np.array([old & _MASK_64, old >> 64], np.uint64).reshape(instruction.shape.dims)


def _rng(instruction: HloInstruction, operands: list[Value], device: Device) -> Frame:
    """Make numbers from Philox bits; see `random_numbers`."""
    yield from ()
    shape = instruction.shape
    if len(operands) != 2 or shape.dtype.kind not in ("float", "signed", "unsigned"):
        raise unsupported(instruction)
    words_each = 2 if shape.dtype.bits == 64 else 1
    state = _take_state(instruction, device, shape.element_count * words_each)
    first, second = (as_array(operand) for operand in operands)
    key = _key(instruction, device)
    return random_numbers(instruction.distribution, first, second, shape, key, state)


def _key(instruction: HloInstruction, device: Device) -> int:
    """Mix the module's seed with the number of the instruction among all `rng` and with the number of the device."""
    places = device.world.rng_places
    if not places:
        computation = instruction.parent
        assert computation is not None, "the instruction is in a computation"
        assert computation.module is not None, "the computation is in a module"
        drawing = (other for other in computation.module.instructions if other.opcode == "rng")
        places.update({other: number for number, other in enumerate(drawing, 1)})
    place = places[instruction]
    return device.world.seed ^ ((place * 0x9E3779B97F4A7C15 & _MASK_64) >> 32) ^ device.id << 32


def random_numbers(distribution: str, first: Array, second: Array, shape: Shape, key: int, state: int) -> Array:
    """Return uniform numbers in [first, second), or normal numbers of mean `first` and standard deviation `second`.

    `key` is the 64-bit key and `state` the 128-bit counter of Philox. Floats below 32 bits are made in f32 and
    converted. Every step rounds, as in XLA's expansion.
    """
    dtype = shape.dtype
    if dtype.is_integer:
        return _uniform_ints(first, second, shape, key, state)
    real = dtype if dtype.bits >= 32 else DTYPES["f32"]
    low, high = (convert(array, dtype, real) for array in (first, second))
    if distribution.lower() == "rng_uniform":
        units = _units(real, shape.dims, key, state)
        numbers = units * (high - low) + low
    else:
        numbers = _normal(real, shape.dims, key, state) * high + low
    return convert(numbers.astype(real.numpy), real, dtype)


def _units(real: DType, dims: tuple[int, ...], key: int, state: int) -> Array:
    """Return numbers in [0, 1) from the top bits of random words: 23 bits for f32, 52 for f64."""
    bits = _words(Shape.array("u64" if real.bits == 64 else "u32", dims), key, state)
    mantissa = real.float_format.mantissa_bits
    return (bits >> bits.dtype.type(real.bits - mantissa)).astype(real.numpy) * real.numpy.type(2.0**-mantissa)


def _words(shape: Shape, key: int, state: int) -> Array:
    _, bits = _philox([key, state & _MASK_64, state >> 64], shape)
    return bits


def _uniform_ints(first: Array, second: Array, shape: Shape, key: int, state: int) -> Array:
    """Return first + bits mod (second - first), with wrapping arithmetic."""
    dtype = shape.dtype
    mask = (1 << dtype.bits) - 1
    lowest = int(first)
    span = (int(second) - lowest) & mask
    bits = _words(shape, key, state).astype(np.uint64) & np.uint64(mask)
    offset = bits % np.uint64(span) if span else bits
    wrapped = (offset + np.uint64(lowest & _MASK_64)) & np.uint64(mask)
    return _from_bits(wrapped, dtype)


def _normal(real: DType, dims: tuple[int, ...], key: int, state: int) -> Array:
    """Return normal numbers by Box-Muller, in pairs along the split dimension: sine at even indices, cosine at odd ones."""
    split = _split_dim(dims)
    halved = tuple((size + 1) // 2 if dim == split else size for dim, size in enumerate(dims))
    after = split + 1
    units = _units(real, (*halved[:after], 2, *halved[after:]), key, state)
    number = real.numpy.type
    u1, u2 = np.take(units, 0, axis=after), np.take(units, 1, axis=after)
    angle = number(2 * math.pi) * u2
    radius = np.sqrt(number(-2) * functions.log.native(np.maximum(u1, number(1e-7))))
    return interleave((functions.sin.native(angle) * radius, functions.cos.native(angle) * radius), dims, split)


EVALUATE = table(("rng-bit-generator", _rng_bit_generator))
PROGRAM: dict[Opcode, ProgramEvaluator] = {"rng": _rng, "rng-get-and-update-state": _rng_get_and_update_state}
