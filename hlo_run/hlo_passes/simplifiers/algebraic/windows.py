"""Algebraic rules of reduce-window, before layout assignment."""

from __future__ import annotations

import numpy as np

from hlo_run.analysis.simple_reducer import is_identity, simple_reducer
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import Window, WindowDim
from hlo_run.hlo_passes.simplifiers.algebraic.rule import Rewriter, Rules
from hlo_run.records import replace

# The reduction opcodes that `window_of_one` knows.
_EXTREMA_AND_SUM: frozenset[Opcode] = frozenset(("add", "maximum", "minimum"))
# Opcodes that may be between a broadcast scalar and a window over it.
_SEEN_THROUGH: frozenset[Opcode] = frozenset(("reshape", "convert", "slice", "copy"))
# Padding below this fraction of a running reduction stays a pad: `reduce-window-rewriter` only knows windows without it.
_LEAST_PADDING = 0.1


def neutral_reduction(i: HloInstruction) -> Opcode | None:
    """Return the opcode of a one-array reduction whose init value is an identity, else None."""
    if len(i.operands) != 2 or i.shape.is_tuple or i.operands[0].shape.element_type != i.shape.element_type:
        return None
    opcode = simple_reducer(i.to_apply)
    return opcode if opcode and is_identity(i.operands[1], opcode) else None


def _window(i: HloInstruction) -> Window | None:
    return i.window if i.window.dims and len(i.operands) == 2 and not i.shape.is_tuple else None


def window_of_one(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce-window(A, init), window={size=1x1 pad=..} => pad(A + init, init) for sums and extrema."""
    window, opcode = _window(i), simple_reducer(i.to_apply)
    if window is None or opcode not in _EXTREMA_AND_SUM or i.operands[0].shape.element_type != i.shape.element_type:
        return None
    edges = tuple((dim.pad_low, dim.pad_high, 0) for dim in window.dims)
    if any(replace(dim, pad_low=0, pad_high=0) != WindowDim() for dim in window.dims) or any(min(edge) < 0 for edge in edges):
        return None
    value, init = i.operands
    value = rw.binary(opcode, value, rw.spread(init, value.shape))
    return rw.pad(value, init, edges) if any(any(edge) for edge in edges) else value


def window_of_all(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce-window(f32[2,8] A), window={size=1x8} => reshape f32[2,1] (reduce(A)), for windows of whole dimensions."""
    window = _window(i)
    if window is None:
        return None
    plain = all(replace(dim, size=1) == WindowDim() for dim in window.dims)
    reduced = [d for d, dim in enumerate(window.dims) if dim.size != 1]
    if not plain or not reduced or any(i.shape.dims[d] != 1 for d in reduced):
        return None
    (made,) = rw.reduce_again(i, i.operands[:1], reduced)
    return rw.reshape(made, i.shape.dims)


def window_of_one_value(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce-window of a broadcast constant c that is a running sum => (iota + 1) * c."""
    window = _window(i)
    if window is None or neutral_reduction(i) != "add" or i.shape.dtype.is_complex or i.shape.element_type == "pred":
        return None
    wide = [d for d, dim in enumerate(window.dims) if dim != WindowDim()]
    if len(wide) != 1 or window.dims[wide[0]] != WindowDim(i.shape.dims[wide[0]], pad_low=i.shape.dims[wide[0]] - 1):
        return None
    value, types = i.operands[0], [i.shape.dtype]
    while value.opcode in _SEEN_THROUGH:
        value = value.operands[0]
        types.append(value.shape.dtype)
    if value.opcode != "broadcast" or value.operands[0].shape.dims:
        return None
    value = value.operands[0]
    while value.opcode in ("convert", "reshape", "bitcast", "broadcast") and value.shape.element_count == 1:
        types.append(value.shape.dtype)
        value = value.operands[0]
    if value.opcode != "constant" or value.shape.element_count != 1:
        return None
    types.append(value.shape.dtype)
    number = value.constant_array.reshape(())
    for dtype in reversed(types):
        number = np.asarray(number).astype(dtype.numpy)
    constant = rw.constant(number, i.shape.element_type)
    whole = "s64" if i.shape.element_type == "s64" else "s32"
    iota = rw.add("iota", i.shape.with_element_type(whole), iota_dimension=wide[0])
    count = rw.convert(rw.binary("add", iota, rw.splat(1, iota.shape)), i.shape.element_type)
    return rw.mul(rw.spread(constant, i.shape), count)


def window_of_pad(rw: Rewriter, i: HloInstruction) -> HloInstruction | None:
    """reduce-window(pad(A, init), init) => reduce-window(A, init) with more padding or dilation; also through a convert."""
    window, padded = _window(i), i.operands[0]
    if window is None:
        return None
    is_converted = padded.opcode == "convert"
    pad = padded.operands[0] if is_converted else padded
    if pad.opcode != "pad" or not _same_value(pad.operands[1], i.operands[1]):
        return None
    edges = pad.padding
    if any(low < 0 or high < 0 for low, high, _ in edges) or (is_converted and _pads_little(window, edges, padded)):
        return None
    if any(interior for _, _, interior in edges) and any(dim.base_dilation != 1 for dim in window.dims):
        return None
    value = rw.convert(pad.operands[0], padded.shape.element_type)
    if neutral_reduction(i) and _takes_only_value(window, edges, value.shape.dims):
        return _spread_ones(rw, value, i)
    dims = tuple(
        replace(
            dim,
            pad_low=dim.pad_low + low * dim.base_dilation,
            pad_high=dim.pad_high + high * dim.base_dilation,
            base_dilation=dim.base_dilation + interior,
        )
        for dim, (low, high, interior) in zip(window.dims, edges, strict=True)
    )
    called = {"to_apply": i.called["to_apply"]}
    return rw.add("reduce-window", i.shape, [value, i.operands[1]], called, window=replace(window, dims=dims))


def _same_value(one: HloInstruction, two: HloInstruction) -> bool:
    if one is two:
        return True
    if one.opcode != "constant" or two.opcode != "constant":
        return False
    numbers = one.constant_array, two.constant_array
    return numbers[0].astype(numbers[1].dtype).tobytes() == numbers[1].tobytes()


def _pads_little(window: Window, edges: tuple[tuple[int, int, int], ...], padded: HloInstruction) -> bool:
    wide = [d for d, dim in enumerate(window.dims) if dim != WindowDim()]
    if len(wide) != 1:
        return False
    low, high, _ = edges[wide[0]]
    return low + high < _LEAST_PADDING * padded.shape.dims[wide[0]]


def _takes_only_value(window: Window, edges: tuple[tuple[int, int, int], ...], dims: tuple[int, ...]) -> bool:
    """Return True if every window has one element of the array and otherwise padding: padded dimensions have size 1."""
    for dim, (low, high, interior), size in zip(window.dims, edges, dims, strict=True):
        if dim.stride != 1 or low != high or interior or dim.base_dilation != 1 or dim.window_dilation != 1:
            return False
        if dim.pad_low or dim.pad_high or (low and (size != 1 or dim.size < low + 1)) or (size != 1 and dim.size != 1):
            return False
    return any(low for low, _, _ in edges)


def _spread_ones(rw: Rewriter, value: HloInstruction, i: HloInstruction) -> HloInstruction:
    kept = [d for d, (old, new) in enumerate(zip(value.shape.dims, i.shape.dims, strict=True)) if old == new]
    return rw.broadcast(rw.reshape(value, [value.shape.dims[d] for d in kept]), i.shape.dims, kept)


FREE_RULES: Rules = {"reduce-window": (window_of_one_value, window_of_one, window_of_all, window_of_pad)}
