"""Evaluate ops on dynamic dimensions: arrays are buffers of the bounds and carry their run-time sizes.

An op on dynamic arrays is evaluated on the arrays cut to their sizes, and its result is put into a buffer of its bounds.
So reductions, sorts and products see no padding. set-dimension-size keeps the buffer: a later, larger size shows its old
elements again. The shapes say which steps are dynamic, so static modules pay nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hlo_run.errors import HloRunError
from hlo_run.hlo.edit import InstructionMaker, copy_instruction
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import DYNAMIC_SIZE
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.infer import INFER
from hlo_run.records import replace
from hlo_run.reference.values import Array, Calls, Evaluator, Value, as_array, unsupported

Sizes: TypeAlias = "tuple[int, ...]"
_Base: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Bounded(np.ndarray[Any, np.dtype[Any]]):
    """An array with the dimensions of its bounds, and its run-time sizes; only dynamic and pass-through ops see one."""

    sizes: Sizes

    def __array_finalize__(self, source: Array | None) -> None:
        self.sizes = getattr(source, "sizes", self.shape)


def _bounded(array: Array, sizes: Sizes) -> Array:
    found = np.asarray(array).view(Bounded)
    found.sizes = sizes
    return found


def sizes_of(array: Array) -> Sizes:
    """Return the run-time sizes of an array: its dimensions if it is static."""
    return array.sizes if isinstance(array, Bounded) else array.shape


def cut(array: Array) -> Array:
    """Return the array without the elements beyond its run-time sizes."""
    if not isinstance(array, Bounded):
        return array
    return np.asarray(array)[tuple(slice(0, size) for size in array.sizes)]


def _put(array: Array, shape: Shape) -> Array:
    """Return an array of run-time sizes as a value of `shape`: in a buffer of the bounds if the shape is dynamic."""
    if not any(shape.dynamic_dims):
        return array
    buffer = np.zeros(shape.dims, array.dtype)
    buffer[tuple(slice(0, size) for size in array.shape)] = array
    return _bounded(buffer, array.shape)


def enter(value: Value, shape: Shape) -> Value:
    """Convert an argument, whose dynamic dimensions have their run-time sizes, to a value with buffers of the bounds."""
    if isinstance(value, tuple):
        return tuple(enter(part, element) for part, element in zip(value, shape.tuple_shapes, strict=True))
    return _put(np.asarray(value), shape)


def leave(array: Array) -> Array:
    """Convert a result array to one whose dynamic dimensions have their run-time sizes; the inverse of `enter`."""
    return np.asarray(cut(array))


def is_dynamic(instruction: HloInstruction) -> bool:
    """True if the instruction reads or makes dynamic dimensions; ops that only forward their operands do not."""
    if instruction.opcode in _PASS_ON:
        return False
    shapes = [instruction.shape, *(operand.shape for operand in instruction.operands)]
    return instruction.opcode in DYNAMIC_SIZE or any(any(leaf.dynamic_dims) for shape in shapes for _, leaf in shape.leaves())


# They hand on values with their sizes.
_PASS_ON = opcode_set(
    "tuple get-tuple-element opt-barrier add-dependency after-all domain copy-start copy-done async-update async-done"
)


def evaluator(instruction: HloInstruction, static: Evaluator | None) -> Evaluator | None:
    """Return the evaluator of a dynamic instruction; `static` is its evaluator for static arrays. None if it has none."""
    own = _OWN.get(instruction.opcode)
    if own is not None or static is None:
        return own

    def evaluate(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
        return _on_cut_arrays(instruction, [as_array(operand) for operand in operands], calls, static)

    return evaluate


def _on_cut_arrays(instruction: HloInstruction, operands: list[Array], calls: Calls, static: Evaluator) -> Value:
    whole = _READS_WHOLE.get(instruction.opcode, 0)
    arrays = [np.asarray(array) if number < whole else cut(array) for number, array in enumerate(operands)]
    arrays = _alike(instruction, arrays)
    view = _view(instruction, arrays)
    try:
        view.shape = _result_shape(view, operands)
        value = static(view, arrays, calls)
    except HloRunError as error:
        raise type(error)(error.message, instruction.where, error.hint, error.notes) from None
    finally:
        view.operands, view.called = (), {}
    leaves = value if isinstance(value, tuple) else (value,)
    shapes = [leaf for _, leaf in instruction.shape.leaves()]
    found = tuple(_settle(instruction, as_array(leaf), shape, operands) for leaf, shape in zip(leaves, shapes, strict=True))
    return found if isinstance(value, tuple) else found[0]


def _alike(instruction: HloInstruction, arrays: list[Array]) -> list[Array]:
    """Cut the operands of an elementwise op to the smallest sizes, as some may be static and others dynamic."""
    shapes = {array.shape for array in arrays if array.ndim}
    dims = instruction.shape.dims
    if len(shapes) < 2 or any(o.shape.dims not in ((), dims) for o in instruction.operands):
        return arrays
    least = tuple(min(sizes) for sizes in zip(*shapes, strict=True))
    return [array[tuple(slice(0, size) for size in least)] if array.ndim else array for array in arrays]


def _view(instruction: HloInstruction, arrays: Sequence[Array]) -> HloInstruction:
    """Return a copy of the instruction for arrays of these dimensions, outside any computation."""
    operands = [
        InstructionMaker(where=operand.where).add("parameter", _static(operand.shape, array.shape), name=operand.name)
        for operand, array in zip(instruction.operands, arrays, strict=True)
    ]
    return copy_instruction(instruction, operands)


def _static(shape: Shape, dims: Sizes) -> Shape:
    return replace(shape, dims=dims, dynamic_dims=())


def _result_shape(view: HloInstruction, operands: Sequence[Array]) -> Shape:
    """Return the shape of the result for operands of the view's dimensions."""
    rule = _RESULT_SIZES.get(view.opcode)
    if rule is not None:
        return _static(view.shape, rule(view, operands))
    if view.opcode in INFER:
        return INFER[view.opcode](view)
    raise unsupported(view, f"'{view.opcode}' on dynamic dimensions")


def _settle(instruction: HloInstruction, array: Array, shape: Shape, operands: Sequence[Array]) -> Array:
    if any(shape.dynamic_dims):
        whole_sizes = _WHOLE_RESULT_SIZES.get(instruction.opcode)
        if whole_sizes is not None:
            return _bounded(array, whole_sizes(instruction, operands))
        return _put(array, shape)
    whole_sizes = _WHOLE_RESULT_SIZES.get(instruction.opcode)
    if (array.shape if whole_sizes is None else whole_sizes(instruction, operands)) != shape.dims:
        raise dropped(instruction, shape)
    return array


def dropped(instruction: HloInstruction, shape: Shape) -> HloRunError:
    """Return the error for a value with fewer elements than `shape`, whose dimensions are static."""
    return unsupported(
        instruction,
        f"'{instruction.opcode}' of dynamic dimensions to {shape.to_string(layout=False)}",
        hint="give the shape the dynamic dimensions of its source, such as s32[<=4]: elements beyond the size are undefined",
    )


def _broadcast_sizes(view: HloInstruction, _operands: Sequence[Array]) -> Sizes:
    sizes = list(view.shape.dims)
    for dim, size in zip(view.ints("dimensions"), view.operands[0].shape.dims, strict=True):
        sizes[dim] = size
    return tuple(sizes)


def _same_sizes(view: HloInstruction, _operands: Sequence[Array]) -> Sizes:
    return view.operands[0].shape.dims


def _reshape_sizes(view: HloInstruction, operands: Sequence[Array]) -> Sizes:
    """Return the sizes of a reshape: in each group of `common_factors`, the dynamic dimension takes the remaining factor."""
    before, bounds = operands[0].shape, view.shape.dims
    sizes = list(bounds)
    dynamic = view.shape.dynamic_dims or (False,) * len(bounds)
    for sources, targets in common_factors(before, bounds):
        count = math.prod(view.operands[0].shape.dims[dim] for dim in sources)
        free = [dim for dim in targets if dynamic[dim]]
        if len(free) > 1 and len(sources) != len(targets):
            raise unsupported(view, "'reshape' with several dynamic dimensions in one group")
        if len(free) == 1:
            sizes[free[0]] = count // max(1, math.prod(bounds[dim] for dim in targets if dim not in free))
        elif len(sources) == len(targets):
            for source, target in zip(sources, targets, strict=True):
                sizes[target] = view.operands[0].shape.dims[source]
        if math.prod(sizes[dim] for dim in targets) != count:
            raise unsupported(view, "'reshape' of a dynamic dimension that the result's dimensions do not divide")
    return tuple(sizes)


def common_factors(first: Sizes, second: Sizes) -> list[tuple[list[int], list[int]]]:
    """Return the smallest groups (dimensions of first, dimensions of second) with equal numbers of elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(first) or j < len(second):
        left, right = first[i : i + 1], second[j : j + 1]
        sources, targets = ([i] if left else []), ([j] if right else [])
        i, j = i + len(left), j + len(right)
        while math.prod(first[k] for k in sources) != math.prod(second[k] for k in targets):
            if math.prod(first[k] for k in sources) < math.prod(second[k] for k in targets) and i < len(first):
                sources.append(i)
                i += 1
            elif j < len(second):
                targets.append(j)
                j += 1
            else:
                sources, i = list(range(sources[0] if sources else 0, len(first))), len(first)
                break
        groups.append((sources, targets))
    return groups


def _whole_sizes(instruction: HloInstruction, operands: Sequence[Array]) -> Sizes:
    """Return the sizes after a slice or update: a dimension that keeps its bound keeps its size, others are static."""
    before = sizes_of(operands[0])
    bounds = instruction.operands[0].shape.dims
    pairs = zip(before, bounds, instruction.shape.dims, strict=True)
    return tuple(size if bound == result else result for size, bound, result in pairs)


def _own_dims(view: HloInstruction, _operands: Sequence[Array]) -> Sizes:
    return view.shape.dims


SizeRule: TypeAlias = "Callable[[HloInstruction, Sequence[Array]], Sizes]"
# Result sizes of ops without a shape rule, from the shape in the text.
_RESULT_SIZES: dict[Opcode, SizeRule] = {
    "broadcast": _broadcast_sizes,
    "reshape": _reshape_sizes,
    "bitcast": _reshape_sizes,
    "iota": _own_dims,
    **dict.fromkeys(("convert", "bitcast-convert", "reduce-precision", "stochastic-convert", "copy"), _same_sizes),
    **dict.fromkeys(("slice", "dynamic-slice", "dynamic-update-slice"), _own_dims),
}
# Ops that read whole buffers: the number of leading operands that they read so, and the sizes of their results.
_READS_WHOLE = {"slice": 1, "dynamic-slice": 1, "dynamic-update-slice": 1, "gather": 1}
_WHOLE_RESULT_SIZES: dict[Opcode, SizeRule] = dict.fromkeys(("slice", "dynamic-slice", "dynamic-update-slice"), _whole_sizes)


def _get_dimension_size(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    (dim,) = instruction.dimensions
    return np.asarray(sizes_of(as_array(operands[0]))[dim], instruction.shape.dtype.numpy)


def _set_dimension_size(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Set the size and keep the buffer; a size is clamped to [0, bound]."""
    array, (dim,) = as_array(operands[0]), instruction.dimensions
    sizes = list(sizes_of(array))
    sizes[dim] = min(max(int(as_array(operands[1])), 0), array.shape[dim])
    if not any(instruction.shape.dynamic_dims):
        if tuple(sizes) != array.shape:
            raise dropped(instruction, instruction.shape)
        return np.asarray(array)
    return _bounded(array, tuple(sizes))


def _dynamic_reshape(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Reshape the elements within the run-time sizes to the sizes in the other operands."""
    array = cut(as_array(operands[0]))
    sizes = tuple(int(as_array(size)) for size in operands[1:])
    bounds = instruction.shape.dims
    if math.prod(sizes) != array.size or any(size > bound for size, bound in zip(sizes, bounds, strict=True)):
        raise unsupported(instruction, f"'dynamic-reshape' of {list(array.shape)} to {list(sizes)}")
    return _put(np.ascontiguousarray(array).reshape(sizes), instruction.shape)


_OWN: dict[Opcode, Evaluator] = {
    "get-dimension-size": _get_dimension_size,
    "set-dimension-size": _set_dimension_size,
    "dynamic-reshape": _dynamic_reshape,
}


def pad_to_static(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Evaluate PadToStatic: return the whole buffer and the run-time size of each dimension."""
    array = as_array(operands[0])
    sizes = zip(sizes_of(array), instruction.shape.tuple_shapes[1:], strict=True)
    return (np.asarray(array), *(np.asarray(size, shape.dtype.numpy) for size, shape in sizes))


def slice_to_dynamic(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Evaluate SliceToDynamic: return the buffer with the run-time sizes in the other operands."""
    array = as_array(operands[0])
    room = [(0, max(0, bound - size)) for bound, size in zip(instruction.shape.dims, array.shape, strict=True)]
    return _bounded(
        np.pad(array, room) if any(more for _, more in room) else array, tuple(int(as_array(size)) for size in operands[1:])
    )
