"""Convolutions by cuDNN: plan the graph of a `ConvolutionThunk`, and run it through NVIDIA's Python frontend.

    y = activation(scale * conv(x, w) + side_scale * side + bias)

Tensors have the dimensions (batch, features, spatial ...), filters (output features, input features of a group, spatial ...).
Strides describe the layout. cuDNN takes two or three spatial dimensions; one or none is extended by dimensions of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, assert_never

import numpy as np
from msgspec import Struct

from hlo_run.artifact import ArraySpec, BufferSlice, ConvolutionThunk, WindowSpec
from hlo_run.artifact.library_thunks import Activation
from hlo_run.backends.cuda.matmul import Address
from hlo_run.backends.cuda.matrices import strides
from hlo_run.errors import DeviceError

# HLO type to cuDNN's storage type and computation type.
_TYPES = {"f16": ("HALF", "FLOAT"), "bf16": ("BFLOAT16", "FLOAT"), "f32": ("FLOAT", "FLOAT"), "f64": ("DOUBLE", "DOUBLE")}
_SCALARS = {"FLOAT": np.float32, "DOUBLE": np.float64}
_OPERATIONS: dict[str, tuple[str, tuple[str, str]]] = {
    "forward": ("conv_fprop", ("image", "weight")),
    "backward-input": ("conv_dgrad", ("loss", "filter")),
    "backward-filter": ("conv_wgrad", ("image", "loss")),
}
_ACTIVATIONS = ("kNone", "kRelu", "kRelu6", "kElu", "kLeakyRelu", "kSigmoid", "kTanh")
_FEWEST_DIMS, _MOST_DIMS = 2, 3
# The unique ids of the graph's tensors.
_ONE, _TWO, _RESULT, _BIAS, _SIDE, _SCALE, _SIDE_SCALE = range(1, 8)


class Laid(Struct, frozen=True):
    """A tensor of the graph: sizes and strides (in elements) per dimension."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]


class ConvolutionForm(Struct, frozen=True):
    """Everything that a graph depends on; equal forms share a graph. `dtype` is the HLO type of all tensors."""

    operation: Literal["forward", "backward-input", "backward-filter"]
    dtype: str
    one: Laid
    two: Laid
    result: Laid
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    bias: Laid | None = None
    side: Laid | None = None
    scale: float = 1.0
    side_scale: float = 1.0
    activation: Activation = "kNone"
    leaky_alpha: float = 0.0


class ConvolutionPlan(Struct, frozen=True):
    """One call: its form, and the slice of each tensor by the tensor's id in the graph."""

    form: ConvolutionForm
    places: tuple[tuple[int, BufferSlice], ...]


def plan_convolution(thunk: ConvolutionThunk) -> ConvolutionPlan | str:
    """Return the cuDNN call of a convolution, or the reason that cuDNN cannot run it."""
    if reason := _not_taken(thunk):
        return reason
    window = thunk.window
    fill = max(_FEWEST_DIMS - len(window), 0)
    numbers = thunk.numbers
    batch, feature, *spatial = numbers.source
    source = _laid(thunk.source, (batch, feature), spatial, fill)
    inputs, outputs, *taps = numbers.kernel
    weights = _laid(thunk.weights, (outputs, inputs), taps, fill)
    batch, feature, *spatial = numbers.result
    result = _laid(thunk.result, (batch, feature), spatial, fill)
    one, two, made = {
        "forward": ((source, thunk.source), (weights, thunk.weights), (result, thunk.result)),
        "backward-input": ((result, thunk.result), (weights, thunk.weights), (source, thunk.source)),
        "backward-filter": ((source, thunk.source), (result, thunk.result), (weights, thunk.weights)),
    }[thunk.direction]
    places = [(_ONE, one[1].slice), (_TWO, two[1].slice), (_RESULT, made[1].slice)]
    bias = side = None
    if thunk.bias is not None:
        features = thunk.bias.dims[0]
        bias = Laid((1, features, *(1,) * (len(result.dims) - 2)), (features, *(1,) * (len(result.dims) - 1)))
        places.append((_BIAS, thunk.bias.slice))
    if thunk.side is not None and thunk.side_scale:
        side = _laid(thunk.side, (batch, feature), spatial, fill)
        places.append((_SIDE, thunk.side.slice))
    form = ConvolutionForm(
        thunk.direction,
        thunk.source.dtype,
        one[0],
        two[0],
        made[0],
        _numbers(window, fill, 0, lambda dim: dim.pad_low),
        _numbers(window, fill, 0, lambda dim: dim.pad_high),
        _numbers(window, fill, 1, lambda dim: dim.stride),
        _numbers(window, fill, 1, lambda dim: dim.window_dilation),
        bias,
        side,
        thunk.scale,
        thunk.side_scale if side is not None else 1.0,
        thunk.activation,
        thunk.leaky_alpha,
    )
    return ConvolutionPlan(form, tuple(places))


def _not_taken(thunk: ConvolutionThunk) -> str:
    arrays = [thunk.source, thunk.weights, thunk.result, *(spec for spec in (thunk.bias, thunk.side) if spec is not None)]
    kinds = sorted({spec.dtype for spec in arrays})
    if len(kinds) != 1 or kinds[0] not in _TYPES:
        return f"cuDNN does not convolve {' and '.join(kinds)}"
    if len(thunk.window) > _MOST_DIMS or not all(prod(spec.dims) for spec in arrays):
        return f"cuDNN does not convolve arrays of {len(thunk.window)} dimensions, or of no elements"
    if thunk.batch_groups > 1 or any(dim.base_dilation != 1 or dim.is_reversed for dim in thunk.window):
        return "cuDNN takes no batch groups, no base dilation and no reversed windows here"
    if any(dim.pad_low < 0 or dim.pad_high < 0 for dim in thunk.window):
        return "cuDNN takes no negative padding"
    extras = thunk.bias is not None or thunk.side is not None or thunk.scale != 1.0 or thunk.activation != "kNone"
    if extras and thunk.direction != "forward":
        return "cuDNN fuses nothing into a gradient"
    if thunk.bias is not None and thunk.bias.dims != (thunk.result.dims[thunk.numbers.result[1]],):
        return "the bias is not along the feature dimension"
    if thunk.side is not None and thunk.side.dims != thunk.result.dims:
        return "the side input does not have the result's shape"
    return "" if thunk.activation in _ACTIVATIONS else f"cuDNN has no activation {thunk.activation}"


def _laid(spec: ArraySpec, outer: tuple[int, int], spatial: Sequence[int], fill: int) -> Laid:
    """Return an array's sizes and strides in cuDNN's order. `fill` dimensions of size 1 come before the spatial ones."""
    steps, order = strides(spec), (*outer, *spatial)
    dims, found = [spec.dims[dim] for dim in order], [steps[dim] for dim in order]
    step = max((steps[dim] * spec.dims[dim] for dim in spatial), default=dims[1] * found[1])
    return Laid((*dims[:2], *(1,) * fill, *dims[2:]), (*found[:2], *(step,) * fill, *found[2:]))


def _numbers(window: Sequence[WindowSpec], fill: int, missing: int, number: Callable[[WindowSpec], int]) -> tuple[int, ...]:
    return (*(missing,) * fill, *(number(dim) for dim in window))


class CuDnn:
    """An open cuDNN with a cache of graphs. `scratch` returns device memory of a size, valid during one call."""

    def __init__(self, cudnn: Any, stream: int, scratch: Callable[[int], int]) -> None:
        self._cudnn, self._scratch = cudnn, scratch
        self._handle: Any = cudnn.create_handle()
        cudnn.set_stream(handle=self._handle, stream=stream)
        self._graphs: dict[ConvolutionForm, tuple[Any, int] | str] = {}

    def close(self) -> None:
        """Release the graphs and the handle."""
        self._graphs.clear()
        self._cudnn.destroy_handle(self._handle)

    def run(self, plan: ConvolutionPlan, address: Address) -> str:
        """Convolve on the stream. Return "", or the reason that cuDNN has no graph of this form. Raises DeviceError."""
        form = plan.form
        if form not in self._graphs:
            self._graphs[form] = self._build(form)
        found = self._graphs[form]
        if isinstance(found, str):
            return found
        graph, workspace_bytes = found
        kind = _SCALARS[_TYPES[form.dtype][1]]
        factors = {_SCALE: np.array(form.scale, kind), _SIDE_SCALE: np.array(form.side_scale, kind)}
        tensors: dict[int, int] = {number: address(place) for number, place in plan.places}
        # The graph takes the factors by value, from host memory.
        tensors |= {number: factor.ctypes.data for number, factor in factors.items() if factor != 1}
        try:
            graph.execute(tensors, self._scratch(workspace_bytes) if workspace_bytes else 0, handle=self._handle)
        except RuntimeError as error:
            raise DeviceError(f"cuDNN failed: {error}") from error
        return ""

    def _build(self, form: ConvolutionForm) -> tuple[Any, int] | str:
        """Return a graph and the bytes of its workspace, or cuDNN's reason against it."""
        cudnn = self._cudnn
        graph = self._graph(form)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.check_support()
            graph.build_plans()
            return graph, int(graph.get_workspace_size())
        except cudnn.cudnnGraphNotSupportedError as error:
            return f"cuDNN has no plan for it: {error}"
        except RuntimeError as error:
            raise DeviceError(f"cuDNN failed: {error}") from error

    def _graph(self, form: ConvolutionForm) -> Any:
        stored, computed = (getattr(self._cudnn.data_type, name) for name in _TYPES[form.dtype])
        graph = self._cudnn.pygraph(
            io_data_type=stored, intermediate_data_type=computed, compute_data_type=computed, handle=self._handle
        )

        def tensor(number: int, laid: Laid) -> Any:
            return graph.tensor(dim=list(laid.dims), stride=list(laid.strides), data_type=stored, uid=number)

        def factor(number: int) -> Any:
            ones = [1] * len(form.result.dims)
            return graph.tensor(dim=ones, stride=ones, data_type=computed, is_pass_by_value=True, uid=number)

        name, operands = _OPERATIONS[form.operation]
        inputs = dict(zip(operands, (tensor(_ONE, form.one), tensor(_TWO, form.two)), strict=True))
        how = {
            "pre_padding": list(form.pre_padding),
            "post_padding": list(form.post_padding),
            "stride": list(form.stride),
            "dilation": list(form.dilation),
        }
        value = getattr(graph, name)(**inputs, **how)
        if form.scale != 1:
            value = graph.mul(a=value, b=factor(_SCALE))
        if form.side is not None:
            side = tensor(_SIDE, form.side)
            value = graph.add(a=value, b=side if form.side_scale == 1 else graph.mul(a=side, b=factor(_SIDE_SCALE)))
        if form.bias is not None:
            value = graph.bias(input=value, bias=tensor(_BIAS, form.bias))
        value = _activated(graph, value, form)
        value.set_output(True).set_uid(_RESULT).set_data_type(stored)
        value.set_dim(list(form.result.dims)).set_stride(list(form.result.strides))
        return graph


def _activated(graph: Any, value: Any, form: ConvolutionForm) -> Any:
    match form.activation:
        case "kRelu":
            return graph.relu(input=value)
        case "kRelu6":
            return graph.relu(input=value, lower_clip=0.0, upper_clip=6.0)
        case "kLeakyRelu":
            return graph.leaky_relu(input=value, negative_slope=form.leaky_alpha)
        case "kElu":
            return graph.elu(input=value)
        case "kSigmoid":
            return graph.sigmoid(input=value)
        case "kTanh":
            return graph.tanh(input=value)
        case "kNone":
            return value
        case _:
            assert_never(form.activation)
