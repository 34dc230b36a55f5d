"""Remove slices that cut off zero features before a pad with zeros.

    v = custom-call(x, pad(k, 0)), ..     the filter's last output features are zero, and so are those of the result
    p = pad(slice(get-tuple-element(v)), 0)     =>   pad(get-tuple-element(v)), less the amount that the slice cut off

`cudnn_pad_for_convolutions` leaves such pairs between convolutions with padded features. XLA's `CudnnSimplifyPadding`
without the transposes of 8-bit integers.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_TARGETS = ("__cudnn$convForward", "__cudnn$convBiasActivationForward")


class CudnnSimplifyPadding(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "cudnn_simplify_padding"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        replaced: list[HloInstruction] = []
        for pad in module.instructions_of("pad"):
            new = _simplified(pad)
            if new is not None:
                module.replace(pad, new)
                replaced.append(pad)
        remove_unused(replaced)


def _simplified(pad: HloInstruction) -> HloInstruction | None:
    cut, fill = pad.operands
    if cut.opcode != "slice" or not _is_zero(fill):
        return None
    whole = cut.operands[0]
    if whole.opcode != "get-tuple-element" or whole.tuple_index != 0:
        return None
    call = whole.operands[0]
    if call.custom_call_target not in _TARGETS or call.feature_group_count != 1:
        return None
    labels = call.dim_labels
    feature = labels.output.second_dim
    gone = whole.shape.dims[feature] - cut.shape.dims[feature]
    ranges, edges = cut.slice_ranges, list(pad.padding)
    if any(start or stride != 1 for start, _, stride in ranges):
        return None
    if any(limit != size for d, ((_, limit, _), size) in enumerate(zip(ranges, whole.shape.dims, strict=True)) if d != feature):
        return None
    low, high, interior = edges[feature]
    if low or interior or gone > _zero_features(call, labels.kernel.second_dim):
        return None
    edges[feature] = (0, high - gone, 0)
    return Editor(pad).pad(whole, fill, edges)


def _zero_features(call: HloInstruction, dim: int) -> int:
    """Return the number of trailing output features of the result that are zero."""
    if call.custom_call_target != _TARGETS[0]:
        return 0
    weights = call.operands[1]
    if weights.opcode == "pad" and _is_zero(weights.operands[1]):
        return max(weights.padding[dim][1], 0)
    if weights.opcode != "constant":
        return 0
    literal = np.moveaxis(weights.constant_array, dim, 0)
    used = np.flatnonzero((literal != 0).reshape(literal.shape[0], -1).any(axis=1))
    return literal.shape[0] - (int(used[-1]) + 1 if used.size else 0)


def _is_zero(value: HloInstruction) -> bool:
    return value.opcode == "constant" and not value.shape.dims and not np.any(value.constant_array)
