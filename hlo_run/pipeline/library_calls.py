"""Custom calls that stand for libraries, as XLA writes them: target, backend_config, workspace."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.shape import Shape
from hlo_run.target import TargetSpec

# Smaller products of these types and algorithms are kernels of our own (XLA: xla_gpu_gemm_rewrite_size_threshold).
_SMALLEST_PRODUCT = 100
_IN_KERNELS, _ALGORITHMS_IN_KERNELS = ("f16", "bf16", "f32"), ("unset", "dot_f32_f32_f32")
_WORKSPACE_BYTES, _HOPPER_WORKSPACE_BYTES = 4 << 20, 32 << 20
# Types of both operands to the types that cuBLAS has for their product.
_PRODUCTS = {
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "f32": ("f32",),
    "f64": ("f64",),
    "c64": ("c64",),
    "c128": ("c128",),
    "s8": ("s32",),
}


def gpu_backend_config(name: str, record: Mapping[str, Any]) -> str:
    """Return the JSON text of a backend_config with one record, its fields in XLA's order."""
    config: dict[str, Any] = {
        "operation_queue_id": "0",
        name: record,
        "force_earliest_schedule": False,
        "reification_cost": [],
        "device_type": "DEVICE_TYPE_INVALID",
    }
    return to_json(config)


def to_json(config: Mapping[str, Any]) -> str:
    """Return a record as JSON without blanks."""
    return json.dumps(config, separators=(",", ":"))


def gemm_call(dot: HloInstruction, target: TargetSpec, has_workspace: bool = True) -> HloInstruction | None:
    """Return the call of cuBLASLt for a dot, in no computation yet; None for a dot that no library takes.

    Its shape is (product, workspace); without `has_workspace` that is empty, and cuBLASLt takes what needs none.
    """
    left, right = (operand.shape for operand in dot.operands[:2])
    if not _is_product_of_library(dot, left, right):
        return None
    workspace = _HOPPER_WORKSPACE_BYTES if target.compute_capability >= (9, 0) else _WORKSPACE_BYTES
    attrs: dict[str, Any] = {
        "custom_call_target": "__cublas$lt$matmul",
        "backend_config": gpu_backend_config("gemm_backend_config", _gemm_config(dot)),
    }
    shape = Shape.array("s8", (workspace if has_workspace else 0,))
    return library_call(dot, "custom-call", dot.operands[:2], shape, attrs)


def is_topk_call(instruction: HloInstruction) -> bool:
    """True for the custom call by which the first k elements are asked for; which are first its computation says."""
    if instruction.opcode != "custom-call" or instruction.attrs["custom_call_target"] != "TopK":
        return False
    return len(instruction.operands) == 1 and instruction.shape.is_tuple


def library_call(
    old: HloInstruction, name: str, operands: Sequence[HloInstruction], workspace: Shape, attrs: Mapping[str, Any]
) -> HloInstruction:
    """Return a custom call of shape (what `old` has, workspace), in no computation yet; metadata goes along."""
    kept = {key: old.attrs[key] for key in ("metadata", "frontend_attributes") if key in old.attrs}
    shape = Shape.make_tuple((old.shape, workspace))
    return HloInstruction(name, "custom-call", shape, operands, {**attrs, **kept}, None, old.where)


def result_of(call: HloInstruction) -> HloInstruction:
    """Return the get-tuple-element of a library call's result, in no computation yet."""
    kept = {key: call.attrs[key] for key in ("metadata",) if key in call.attrs}
    shape = call.shape.tuple_shapes[0]
    return HloInstruction("get-tuple-element", "get-tuple-element", shape, [call], {"index": 0, **kept}, None, call.where)


def _is_product_of_library(dot: HloInstruction, left: Shape, right: Shape) -> bool:
    if len(dot.operands) != 2 or left.element_type != right.element_type or "sparsity_config" in dot.attrs:
        return False
    if dot.shape.element_type not in _PRODUCTS.get(left.element_type, ()) or not dot.shape.element_count:
        return False
    if dot.shape.element_type not in _IN_KERNELS or str(dot.attrs.get("algorithm", "unset")) not in _ALGORITHMS_IN_KERNELS:
        return True
    depth = math.prod(left.dims[dim] for dim in _dims(dot, "lhs_contracting_dims"))
    return (_free(dot, "lhs", left) + _free(dot, "rhs", right)) * depth >= _SMALLEST_PRODUCT


def _free(dot: HloInstruction, side: str, shape: Shape) -> int:
    taken = (*dot.attrs.get(f"{side}_batch_dims", ()), *dot.attrs.get(f"{side}_contracting_dims", ()))
    return math.prod(size for dim, size in enumerate(shape.dims) if dim not in taken)


def _gemm_config(dot: HloInstruction) -> dict[str, Any]:
    left, right = (operand.shape for operand in dot.operands[:2])
    default: tuple[str, ...] = ("default", "default")
    precisions: tuple[str, ...] = dot.attrs.get("operand_precision", default)
    algorithm = str(dot.attrs.get("algorithm", "unset"))
    return {
        "alpha_real": 1,
        "beta": 0,
        "dot_dimension_numbers": {
            f"{side}_{what}_dimensions": [str(dim) for dim in _dims(dot, f"{side}_{what}_dims")]
            for what in ("contracting", "batch")
            for side in ("lhs", "rhs")
        },
        "alpha_imag": 0,
        "precision_config": {
            "operand_precision": [precision.upper() for precision in precisions],
            "algorithm": f"ALG_{algorithm.upper()}",
        },
        "epilogue": "DEFAULT",
        "lhs_stride": str(_matrix_size(dot, "lhs", left)),
        "rhs_stride": str(_matrix_size(dot, "rhs", right)),
        "grad_x": False,
        "grad_y": False,
        "damax_output": False,
        "autotune_workspace_size": "0",
        "scale_mode": 0,
    }


def _dims(dot: HloInstruction, name: str) -> tuple[int, ...]:
    return dot.attrs.get(name, ())


def _matrix_size(dot: HloInstruction, side: str, shape: Shape) -> int:
    """Return the elements of one matrix of a batch."""
    return math.prod(size for dim, size in enumerate(shape.dims) if dim not in dot.attrs.get(f"{side}_batch_dims", ()))
