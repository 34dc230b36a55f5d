"""Evaluate XLA:GPU's custom calls to libraries: cuBLAS products and solves, cuDNN convolutions, CUB sorts and scans."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hlo_run.elementary import functions
from hlo_run.hlo.attributes.table import WindowDim
from hlo_run.hlo.edit import DETACHED
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.scan_calls import SCAN_TARGETS, row_scan
from hlo_run.hlo.values.backend_config import read_config
from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.convolution import convolution_labels
from hlo_run.reference.evaluate.async_ops import zeros
from hlo_run.reference.numerics import triangular
from hlo_run.reference.numerics.contraction import operand_in
from hlo_run.reference.numerics.convolution import convolve
from hlo_run.reference.numerics.dot import DotDims, contract
from hlo_run.reference.numerics.sort import stable_order
from hlo_run.reference.numerics.total_order import total_order_key
from hlo_run.reference.values import Array, Calls, Evaluator, Value, as_array, narrow, unsupported, widen


def _config(instruction: HloInstruction) -> Mapping[str, Any]:
    try:
        return read_config(instruction.backend_config)
    except ValueError:
        raise unsupported(instruction, "a custom call whose backend_config is not JSON") from None


def _with_workspace(instruction: HloInstruction, *arrays: Array) -> Value:
    """Return the arrays, followed by zeros for the other elements of the shape: workspaces, whose content is undefined."""
    if not instruction.shape.is_tuple:
        return arrays[0]
    return (*arrays, *(zeros(shape) for shape in instruction.shape.tuple_shapes[len(arrays) :]))


def _part(instruction: HloInstruction, index: int) -> Shape:
    return instruction.shape.tuple_shapes[index] if instruction.shape.is_tuple else instruction.shape


# The number of operand scales of a product, and the largest values of the result types that have a scale.
_OPERAND_SCALES = 2
_LARGEST_RESULT = {"f8e4m3fn": (2 - 2.0**-2) * 2.0**8, "f8e5m2": (2 - 2.0**-2) * 2.0**15}


# ---- products -------------------------------------------------------------------------------------------------------


def _gemm(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return epilogue(alpha * scales * a . b + beta * c + bias), rounded once.

    8-bit results are multiplied by their scale and clamped to their range.
    """
    config: Mapping[str, Any] = _config(instruction).get("gemm_backend_config", {})
    result_shape = _part(instruction, 0)
    result = result_shape.dtype
    wide = _wide(result)
    types = [operand.shape.dtype for operand in instruction.operands]
    left, right, *rest = (operand_in(as_array(o), kind, wide) for o, kind in zip(operands, types, strict=True))
    value = contract(left, right, _dot_dims(config))
    alpha = complex(float(config.get("alpha_real", 1)), float(config.get("alpha_imag", 0)))
    if alpha != 1:
        value = value * value.dtype.type(alpha if result.is_complex else alpha.real)
    beta, epilogue = float(config.get("beta", 0)), str(config.get("epilogue", "DEFAULT"))
    addend = rest.pop(0) if beta else None
    # An addend is used only if beta is not 0. Only products of 8-bit floats have scales.
    is_f8 = instruction.custom_call_target.endswith("$f8")
    bias = rest.pop(_place_of_bias(rest) if is_f8 else -1) if "BIAS" in epilogue else None
    for scale in rest[:_OPERAND_SCALES] if is_f8 else ():
        value = value * scale.reshape(())
    if addend is not None:
        value = value + value.dtype.type(beta) * addend
    if bias is not None:
        value = value + _along_rows(bias, value, result_shape)
    after = _epilogue(instruction, value, epilogue)
    outputs = [narrow(_scaled_result(after, rest[_OPERAND_SCALES:], result), result)]
    if epilogue.endswith("_AUX"):
        outputs.append(narrow(value, _part(instruction, 1).dtype))
    if config.get("damax_output", False):
        outputs.append(narrow(np.max(np.abs(after), initial=0), _part(instruction, 1).dtype))
    return _with_workspace(instruction, *outputs)


def _place_of_bias(rest: Sequence[Array]) -> int:
    """Return the index of the bias: after the scales of the operands, before the scale of the result; scales have rank 0."""
    return next((place for place, array in enumerate(rest) if array.ndim), len(rest) - 1)


def _along_rows(bias: Array, value: Array, shape: Shape) -> Array:
    """Spread a bias along the innermost dimension of the result's layout.

    XLA pads the rows for the library, but not the bias: it ends in zeros.
    """
    if bias.ndim != 1 or not value.ndim:
        return bias
    inner = shape.minor_to_major[0]
    padded = np.pad(bias, (0, max(value.shape[inner] - len(bias), 0)))
    return padded.reshape([-1 if dim == inner else 1 for dim in range(value.ndim)])


def _scaled_result(value: Array, scales: Sequence[Array], result: DType) -> Array:
    """Scale and clamp an 8-bit result. Its scale is the last one: older modules have the addend's scale before it."""
    if not scales or result.name not in _LARGEST_RESULT:
        return value
    largest = value.dtype.type(_LARGEST_RESULT[result.name])
    return np.clip(value * scales[-1].reshape(()), -largest, largest)


def _wide(result: DType) -> DType:
    return DTYPES["f32"] if result.is_float and result.bits < 32 else result


def _dot_dims(config: Mapping[str, Any]) -> DotDims:
    numbers: Mapping[str, Sequence[Any]] = config.get("dot_dimension_numbers", {})
    names = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
    return DotDims(*(tuple(int(dim) for dim in numbers.get(f"{name}_dimensions", ())) for name in names))


def _epilogue(instruction: HloInstruction, value: Array, epilogue: str) -> Array:
    words = [word for word in epilogue.split("_") if word not in ("BIAS", "AUX")]
    match words:
        case [] | ["DEFAULT"]:
            return value
        case ["RELU"]:
            return np.where(value > 0, value, value.dtype.type(0))
        case ["GELU"]:
            cubic = value + value.dtype.type(0.044715) * (value * value * value)
            return value * (1 + functions.tanh.native(value.dtype.type(math.sqrt(2 / math.pi)) * cubic)) / 2
        case _:
            raise unsupported(instruction, f"cuBLASLt's epilogue {epilogue}")


# ---- convolutions ---------------------------------------------------------------------------------------------------


def _forward(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    is_integral = instruction.operands[0].shape.dtype.is_integer
    given = [as_array(o).astype(np.int32) for o in operands] if is_integral else _wide_operands(instruction, operands)
    source, weights, *extras = given
    window, groups = _window(instruction), instruction.feature_group_count
    labels = convolution_labels(instruction.dim_labels)
    (b, f, spatial), (i, o, taps) = labels.input, labels.kernel
    value = convolve(source.transpose(b, *spatial, f), weights.transpose(*taps, i, o), window, groups)
    out_batch, out_feature, out_spatial = labels.output
    value = value.transpose(np.argsort((out_batch, *out_spatial, out_feature)))
    result = _part(instruction, 0).dtype
    if is_integral and result.is_float:
        # Integers are summed exactly; what follows is computed in f32.
        value, extras = value.astype(np.float32), [as_array(o).astype(np.float32) for o in operands[2:]]
    elif is_integral and result.name == "s8":
        extras = [as_array(o).astype(np.float32) for o in operands[2:]]
        found = _after(instruction, value.astype(np.float32), extras)
        low, high = np.float32(-128), np.float32(127)
        return _with_workspace(instruction, np.minimum(np.maximum(np.where(found == found, found, 0), low), high).astype(np.int8))
    return _with_workspace(instruction, narrow(_after(instruction, value, extras), result))


def _after(instruction: HloInstruction, value: Array, extras: Sequence[Array]) -> Array:
    """Return activation(scale * value + side_scale * side + bias)."""
    config: Mapping[str, object] = _config(instruction).get("cudnn_conv_backend_config", {})
    labels = instruction.dim_labels
    number = value.dtype.type
    value = value * number(config.get("conv_result_scale", 1))
    if len(extras) > 1:
        value = value + number(config.get("side_input_scale", 0)) * extras[1]
    if extras:
        value = value + extras[0].reshape([-1 if dim == labels.output.second_dim else 1 for dim in range(value.ndim)])
    activation = str(config.get("activation_mode", "kNone"))
    alpha = number(config.get("leakyrelu_alpha", 0))
    found = _activate(value, activation, alpha)
    if found is None:
        raise unsupported(instruction, f"cuDNN's activation {activation}")
    return found


def _activate(value: Array, activation: str, alpha: object) -> Array | None:
    zero = value.dtype.type(0)
    match activation:
        case "kNone":
            return value
        case "kRelu":
            return np.where(value > 0, value, zero)
        case "kRelu6":
            return np.where(value > 6, value.dtype.type(6), np.where(value > 0, value, zero))
        case "kElu":
            return np.where(value > 0, value, functions.expm1.native(value))
        case "kLeakyRelu":
            return np.where(value > 0, value, alpha * value)
        case "kSigmoid":
            return functions.logistic.native(value)
        case "kTanh":
            return functions.tanh.native(value)
        case _:
            return None


def _wide_operands(instruction: HloInstruction, operands: Sequence[Value]) -> list[Array]:
    wide = _wide(_part(instruction, 0).dtype)
    types = [operand.shape.dtype for operand in instruction.operands]
    return [operand_in(as_array(o), kind, wide) for o, kind in zip(operands, types, strict=True)]


def _window(instruction: HloInstruction) -> tuple[WindowDim, ...]:
    return instruction.window.dims


def _backward_input(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Add every element of the result's gradient, times each weight, to the input element that it was computed from."""
    gradient, weights = _wide_operands(instruction, operands)[:2]
    window, groups = _window(instruction), instruction.feature_group_count
    labels = convolution_labels(instruction.dim_labels)
    (b, f, spatial), (i, o, taps) = labels.input, labels.kernel
    out_batch, out_feature, out_spatial = labels.output
    gradient = gradient.transpose(out_batch, *out_spatial, out_feature)
    weights = weights.transpose(*taps, i, o)
    dims = _part(instruction, 0).dims
    sizes, deep, wide = [dims[dim] for dim in spatial], weights.shape[-2], weights.shape[-1] // groups
    reach = [_reach(dim, places) for dim, places in zip(window, gradient.shape[1:-1], strict=True)]
    low = [max(dim.pad_low, 0) for dim in window]
    room = [max(r, p + s) + max(-dim.pad_low, 0) for r, p, s, dim in zip(reach, low, sizes, window, strict=True)]
    padded = np.zeros((dims[b], *room, dims[f]), gradient.dtype)
    for tap in np.ndindex(*weights.shape[:-2]):
        place = tuple(_places(dim, k, n) for dim, k, n in zip(window, tap, gradient.shape[1:-1], strict=True))
        for group in range(groups):
            part = weights[tap][:, group * wide : (group + 1) * wide]
            seen = gradient[..., group * wide : (group + 1) * wide] @ part.T
            padded[(slice(None), *place, slice(group * deep, (group + 1) * deep))] += seen
    cut = tuple(slice(dim.pad_low, dim.pad_low + size) for dim, size in zip(window, sizes, strict=True))
    value = padded[(slice(None), *cut)].transpose(np.argsort((b, *spatial, f)))
    return _with_workspace(instruction, narrow(value, _part(instruction, 0).dtype))


def _reach(dim: WindowDim, places: int) -> int:
    return (places - 1) * dim.stride + (dim.size - 1) * dim.window_dilation + 1


def _places(dim: WindowDim, tap: int, places: int) -> slice:
    """Return the elements of the padded source that one tap of the window reads."""
    start = (dim.size - 1 - tap if dim.reversal else tap) * dim.window_dilation
    return slice(start, start + (places - 1) * dim.stride + 1, dim.stride)


def _backward_filter(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Convolve the source with the result's gradient, with batch and features exchanged."""
    source, gradient = _wide_operands(instruction, operands)[:2]
    window, groups = _window(instruction), instruction.feature_group_count
    labels = convolution_labels(instruction.dim_labels)
    (b, f, spatial), (i, o, taps) = labels.input, labels.kernel
    out_batch, out_feature, out_spatial = labels.output
    source = source.transpose(f, *spatial, b)
    gradient = gradient.transpose(*out_spatial, out_batch, out_feature)
    turned: list[WindowDim] = []
    for dim, size, places in zip(window, source.shape[1:-1], gradient.shape[:-2], strict=True):
        high = (dim.size - 1) * dim.window_dilation + (places - 1) * dim.stride + 1 - size - dim.pad_low
        turned.append(WindowDim(places, dim.window_dilation, dim.pad_low, high, 1, dim.stride))
    deep, wide = source.shape[0] // groups, gradient.shape[-1] // groups
    parts = [
        convolve(source[g * deep : (g + 1) * deep], gradient[..., g * wide : (g + 1) * wide], turned, 1) for g in range(groups)
    ]
    value = np.moveaxis(np.concatenate(parts, axis=-1), 0, -2)
    value = np.flip(value, tuple(axis for axis, dim in enumerate(window) if dim.reversal))
    return _with_workspace(instruction, narrow(value.transpose(np.argsort((*taps, i, o))), _part(instruction, 0).dtype))


# ---- solves and sorts -----------------------------------------------------------------------------------------------


def _triangular_solve(instruction: HloInstruction, operands: Sequence[Value], calls: Calls) -> Value:
    config = _config(instruction)
    options: dict[str, Any] = dict(config.get("triangular_solve_options", config))
    sources = [DETACHED.parameter(n, o.shape, o.name) for n, o in enumerate(instruction.operands)]
    solve = DETACHED.add("triangular-solve", _part(instruction, 0), sources, name=instruction.name, **options)
    return _with_workspace(instruction, as_array(triangular.EVALUATE["triangular-solve"](solve, operands, calls)))


def _radix_sort(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Sort the last dimension by the keys in the first operand; a second operand is permuted with it."""
    arrays = [as_array(operand) for operand in operands]
    dtype = instruction.operands[0].shape.dtype
    keys = total_order_key(arrays[0], dtype) if dtype.is_float else widen(arrays[0], dtype)
    # A CUB call has {descending = true, ..}, a call that becomes one has JSON.
    descending = re.search(r'descending"?\s*[:=]\s*true', instruction.backend_config)
    order = stable_order(keys, descending is not None)
    return _with_workspace(instruction, *(np.take_along_axis(array, order, -1) for array in arrays))


def _row_scan(instruction: HloInstruction, operands: Sequence[Value], _calls: Calls) -> Value:
    """Return the running sums along the rows of an array's memory, whose order its layout gives."""
    scan = row_scan(instruction)
    if scan is None:
        raise unsupported(instruction, "a scan of another kind than sums")
    dtype, order = instruction.operands[0].shape.dtype, instruction.operands[0].shape.minor_to_major[::-1]
    in_memory = as_array(operands[0]).transpose(order)
    rows = widen(in_memory, dtype).reshape(scan.columns, scan.rows, scan.vector)
    step = -1 if scan.is_reverse else 1
    with np.errstate(all="ignore"):
        sums = np.cumsum(rows[:, ::step], axis=1, dtype=np.float64 if dtype.is_float else rows.dtype)[:, ::step]
    return _with_workspace(instruction, narrow(sums, dtype).reshape(in_memory.shape).transpose(np.argsort(order)))


_CUB = ("sort_keys", "sort_pairs", *(f"sort{of}_unassigned_scratch_size" for of in ("", "_keys", "_pairs")))
CUSTOM_CALLS: dict[str, Evaluator] = {
    "__cublas$gemm": _gemm,
    "__cublas$lt$matmul": _gemm,
    "__cublas$lt$matmul$f8": _gemm,
    "__cudnn$convForward": _forward,
    "__cudnn$convBiasActivationForward": _forward,
    "__cudnn$convBackwardInput": _backward_input,
    "__cudnn$convBackwardFilter": _backward_filter,
    "__cublas$triangularSolve": _triangular_solve,
    **{f"xla.gpu.ext.cub_{name}": _radix_sort for name in _CUB},
    **dict.fromkeys(SCAN_TARGETS, _row_scan),
}
