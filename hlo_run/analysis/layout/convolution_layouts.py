"""Chooses the layouts that cuDNN prefers for convolutions, and renumbers a convolution's dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hlo_run.hlo.attributes.table import DimLabels
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import OperandLabels
from hlo_run.target import TargetSpec

Order: TypeAlias = "tuple[int, ...]"
_GRAPH = "__cudnn$convForwardGraph"
_FORWARD = ("__cudnn$convForward", "__cudnn$convBiasActivationForward", _GRAPH)
# The forward convolution's arrays that are the two operands and the result of a call: 0 input, 1 filter, 2 result.
_ARRAYS = {**dict.fromkeys(_FORWARD, (0, 1, 2)), "__cudnn$convBackwardInput": (2, 1, 0), "__cudnn$convBackwardFilter": (0, 2, 1)}
_IN_ORDER = (0, 1, 2)  # the arrays of an instruction `convolution`


def is_convolution_call(instruction: HloInstruction) -> bool:
    """True for a cuDNN convolution call, which returns its result and a workspace."""
    return instruction.custom_call_target in _ARRAYS and instruction.shape.is_tuple


def call_labels(call: HloInstruction) -> tuple[OperandLabels, OperandLabels, OperandLabels]:
    """Return the dimension labels of the two operands and of the result of a call or a convolution."""
    labels = call.dim_labels
    one, two, result = _ARRAYS.get(call.custom_call_target, _IN_ORDER)
    arrays = (labels.input, labels.kernel, labels.output)
    return arrays[one], arrays[two], arrays[result]


def liked_orders(call: HloInstruction, target: TargetSpec, innermost: bool | None = None) -> tuple[list[Order], Order]:
    """Return the minor-to-major orders of all operands and of the result. XLA's `HeuristicLayoutAssignment`.

    Features are innermost or not as `innermost` says. Without it they are innermost where tensor cores need them so. Else the
    order is batch, features, window dimensions, major to minor.
    """
    one, two, result = call_labels(call)
    if innermost is None:
        innermost = _has_features_innermost(call, len(result.spatial_dims), target)
    orders = [_order(one, innermost), _order(two, innermost)]
    made = _order(result, innermost)
    for number, operand in enumerate(call.operands[2:]):
        is_like_result = number or (call.custom_call_target == _GRAPH and operand.shape.rank)
        orders.append(made if is_like_result else tuple(reversed(range(operand.shape.rank))))
    return orders, made


def _has_features_innermost(call: HloInstruction, spatial_rank: int, target: TargetSpec) -> bool:
    if call.operands[0].shape.dtype.is_integer:
        return True
    kinds = {call.operands[0].shape.element_type, call.shape.tuple_shapes[0].element_type}
    if spatial_rank > 2 or "f64" in kinds:
        return False
    if target.compute_capability >= (9, 0):
        return True
    return target.compute_capability >= (7, 0) and spatial_rank == 2 and kinds <= {"f16", "bf16"}


def _order(side: OperandLabels, innermost: bool) -> Order:
    """Return (batch or output features), (features or input features), window, slowest first. Filters of `io` swap both."""
    outer, inner = (side.first_dim, side.second_dim) if side.letters == "bf" else (side.second_dim, side.first_dim)
    major = (outer, *side.spatial_dims, inner) if innermost else (outer, inner, *side.spatial_dims)
    return tuple(reversed(major))


def renumbered(call: HloInstruction, orders: Sequence[Sequence[int]]) -> DimLabels:
    """Return the dimension labels of a call or convolution with the dimensions of its operands and result in these orders."""
    arrays: list[OperandLabels] = [*call_labels(call)]
    for place, (side, order) in enumerate(zip(call_labels(call), orders, strict=True)):
        spatial = tuple(order.index(dim) for dim in side.spatial_dims)
        arrays[place] = OperandLabels(side.letters, order.index(side.first_dim), order.index(side.second_dim), spatial)
    places = _ARRAYS.get(call.custom_call_target, _IN_ORDER)
    return DimLabels(*(arrays[places.index(array)] for array in range(3)))
