"""Build custom calls of libraries as XLA writes them: target, backend_config, workspace."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.dots import Dot, Side, dot_side, size_of
from hlo_run.target import TargetSpec

# Smaller dots of these types and algorithms are kernels of our own (XLA: xla_gpu_gemm_rewrite_size_threshold).
_SMALLEST_PRODUCT = 100
_IN_KERNELS, _ALGORITHMS_IN_KERNELS = ("f16", "bf16", "f32"), ("unset", "dot_f32_f32_f32")
_WORKSPACE_BYTES, _HOPPER_WORKSPACE_BYTES = 4 << 20, 32 << 20
# From the operands' types to the result types that cuBLASLt supports for them.
_NARROW_RESULTS = ("bf16", "f8e4m3fn", "f8e5m2", "f16", "f32")
PRODUCTS = {
    ("f16", "f16"): ("f16", "f32"),
    ("bf16", "bf16"): ("bf16", "f32"),
    ("f32", "f32"): ("f32",),
    ("f64", "f64"): ("f64",),
    ("c64", "c64"): ("c64",),
    ("c128", "c128"): ("c128",),
    ("s8", "s8"): ("s32",),
    ("f8e4m3fn", "f8e4m3fn"): ("bf16", "f8e4m3fn", "f16", "f32"),
    ("f8e4m3fn", "f8e5m2"): _NARROW_RESULTS,
    ("f8e5m2", "f8e4m3fn"): _NARROW_RESULTS,
}
# The fields of a backend_config that every instruction has.
NO_RECORD: Mapping[str, object] = {
    "operation_queue_id": "0",
    "force_earliest_schedule": False,
    "reification_cost": [],
    "device_type": "DEVICE_TYPE_INVALID",
}
# Result types of matrix products; those in `_RESULTS` are also supported for a matrix and a vector.
_RESULTS = frozenset("f8e4m3fn f8e5m2 f16 bf16 f32 f64 c64".split())
_RESULTS_OF_MATRICES = frozenset("f8e3m4 f8e4m3 f8e4m3fnuz f8e5m2fnuz c128".split())


def gpu_backend_config(name: str, record: Mapping[str, object], given: Mapping[str, object] = NO_RECORD) -> str:
    """Return the JSON text of a backend_config with one record; the fields of all instructions have the `given` values."""
    return whole_backend_config({field: given[field] for field in NO_RECORD if field in given} | {name: record})


def whole_backend_config(given: Mapping[str, object]) -> str:
    """Return the JSON text of a backend_config with all fields that XLA writes, in its order."""
    first, *others = ((field, given.get(field, value)) for field, value in NO_RECORD.items())
    return to_json(dict([first, *((field, value) for field, value in given.items() if field not in NO_RECORD), *others]))


def to_json(config: Mapping[str, object]) -> str:
    """Return a record as JSON without spaces. Numbers have 15 digits, or 17 if 15 name another one, as protobuf prints them."""
    return _json(config)


def _json(value: Any) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    match value:
        case dict():
            entries: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            return "{" + ",".join([f"{encode_basestring_ascii(key)}:{_json(inner)}" for key, inner in entries.items()]) + "}"
        case {**others}:
            return _json(dict(others))
        case [*elements]:
            return "[" + ",".join(map(_json, elements)) + "]"
        case float() if math.isfinite(value):
            short = f"{value:.15g}"
            return short if float(short) == value else f"{value:.17g}"
        case _:
            return json.dumps(value)


def gemm_call(dot: HloInstruction) -> HloInstruction | None:
    """Return the cuBLASLt call for a dot with any dimension numbers, in no computation yet; None if it is not supported.

    Its shape is (product, s8[0]): the library only uses algorithms without workspace.
    """
    if not is_large_product(dot) or not has_product(dot) or dot.operands[0].shape.element_type.startswith("f8"):
        return None
    return library_call(dot, "custom-call", dot.operands[:2], Shape.array("s8", (0,)), gemm_attributes(dot))


def gemm_attributes(dot: HloInstruction) -> dict[str, AttributeValue]:
    """Return the attributes of the custom call for a dot, which runs on the dot's stream."""
    config = gpu_backend_config("gemm_backend_config", product_record(dot), config_of(dot.backend_config))
    return {"custom_call_target": "__cublas$lt$matmul", "backend_config": config, **kept_attributes(dot)}


def is_topk_call(instruction: HloInstruction) -> bool:
    """Return True for the custom call `TopK`: values of its operand, and their places. Its computation compares the elements."""
    if instruction.opcode != "custom-call" or instruction.custom_call_target != "TopK":
        return False
    if len(instruction.operands) != 1 or len(instruction.shape.tuple_shapes) != 2:
        return False
    return instruction.shape.tuple_shapes[0].element_type == instruction.operands[0].shape.element_type


def library_call(
    old: HloInstruction, name: str, operands: Sequence[HloInstruction], workspace: Shape, attrs: Mapping[str, AttributeValue]
) -> HloInstruction:
    """Return a custom call of shape (the shape of `old`, workspace), in no computation yet; it keeps the metadata."""
    shape = Shape.make_tuple((old.shape, workspace))
    return InstructionMaker(None, old.where, {**attrs, **kept_attributes(old)}).add("custom-call", shape, operands, name=name)


def result_of(call: HloInstruction) -> HloInstruction:
    """Return the get-tuple-element of a library call's result, in no computation yet."""
    kept = {key: call.attrs[key] for key in ("metadata",) if key in call.attrs}
    shape = call.shape.tuple_shapes[0]
    return InstructionMaker(where=call.where).add_with("get-tuple-element", shape, [call], {"index": 0, **kept})


def kept_attributes(old: HloInstruction) -> dict[str, AttributeValue]:
    """Return the attributes that a library call takes over from the instruction it replaces."""
    return {key: old.attrs[key] for key in ("metadata", "frontend_attributes") if key in old.attrs}


def workspace_bytes(target: TargetSpec) -> int:
    """Return the size of the workspace that XLA gives cuBLASLt on a GPU."""
    return _HOPPER_WORKSPACE_BYTES if target.compute_capability >= (9, 0) else _WORKSPACE_BYTES


def has_product(dot: HloInstruction) -> bool:
    """Return True if cuBLASLt supports a product of these operand and result types."""
    left, right = (operand.shape.element_type for operand in dot.operands[:2])
    return dot.shape.element_type in PRODUCTS.get((left, right), ())


def is_product_of_library(dot: HloInstruction, smallest: int) -> bool:
    """Return True for a product of two matrices, or of a matrix and a vector, with a size and type for a library.

    XLA's `IsCublasSupportedMatMul`, and its threshold `smallest`, below which a kernel of our own computes the product.
    """
    if not is_large_product(dot, smallest):
        return False
    sides = dot_side(dot, 0), dot_side(dot, 1)
    if not all(_is_matrix(operand.shape, side) for operand, side in zip(dot.operands, sides, strict=True)):
        return False
    matrices = sum(size_of(dot, number, side.free) != 1 for number, side in enumerate(sides))
    return matrices > 0 and _has_result_type(dot, matrices)


def is_large_product(dot: HloInstruction, smallest: int = _SMALLEST_PRODUCT) -> bool:
    """Return True for a product that is not small enough for a kernel of our own."""
    if len(dot.operands) != 2 or "sparsity_config" in dot.attrs or not dot.shape.element_count:
        return False
    if dot.shape.element_type not in _IN_KERNELS or dot.algorithm not in _ALGORITHMS_IN_KERNELS:
        return True
    sides = dot_side(dot, 0), dot_side(dot, 1)
    free = sum(size_of(dot, number, side.free) for number, side in enumerate(sides))
    return free * size_of(dot, 0, sides[0].contracting) >= smallest


def _is_matrix(shape: Shape, side: Side) -> bool:
    return len(side.contracting) == 1 and len(side.free) <= 1 and shape.rank - 1 not in side.batch


def _has_result_type(dot: HloInstruction, matrices: int) -> bool:
    element_type = dot.shape.element_type
    if element_type == "s32":
        return all(operand.shape.element_type == "s8" for operand in dot.operands)
    return element_type in _RESULTS or (matrices == len(dot.operands) and element_type in _RESULTS_OF_MATRICES)


def product_record(dot: HloInstruction) -> dict[str, object]:
    """Return the `gemm_backend_config` of a dot without epilogue, the fields in XLA's order."""
    left, right = (operand.shape for operand in dot.operands[:2])
    dims, precisions = Dot.of(dot), dot.operand_precision or ("default", "default")
    algorithm = dims.algorithm
    if algorithm == "dot_bf16_bf16_f32" and left.element_type == right.element_type == "bf16":
        # bf16 operands already have this meaning with the default algorithm.
        algorithm = "unset"
    return {
        "alpha_real": 1,
        "beta": 0,
        "dot_dimension_numbers": {
            "lhs_contracting_dimensions": [*map(str, dims.lhs.contracting)],
            "rhs_contracting_dimensions": [*map(str, dims.rhs.contracting)],
            "lhs_batch_dimensions": [*map(str, dims.lhs.batch)],
            "rhs_batch_dimensions": [*map(str, dims.rhs.batch)],
        },
        "alpha_imag": 0,
        "precision_config": {
            "operand_precision": [precision.upper() for precision in precisions],
            "algorithm": f"ALG_{algorithm.upper()}",
        },
        "epilogue": "DEFAULT",
        "lhs_stride": str(_matrix_size(dims.lhs, left)),
        "rhs_stride": str(_matrix_size(dims.rhs, right)),
        "grad_x": False,
        "grad_y": False,
        "damax_output": False,
        "autotune_workspace_size": "0",
        "scale_mode": 0,
    }


def _matrix_size(side: Side, shape: Shape) -> int:
    """Return the stride between the matrices of a batch, in elements, as XLA gives it; it assumes that the batch comes first."""
    return math.prod(shape.dims[len(side.batch) :])
