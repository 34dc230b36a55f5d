"""Access to the `gemm_backend_config` in the backend_config of a product's call."""

from __future__ import annotations

from typing import Any, cast

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo_passes.subgraphs.library_calls import to_json

MATMUL, F8_MATMUL, LEGACY = "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__cublas$gemm"
F8_TYPES = frozenset(dtype.name for dtype in DTYPES.values() if dtype.is_float and dtype.bits == 8)
# Result types for which cuBLASLt has epilogues.
_WITH_EPILOGUES = frozenset("f8e4m3fn f8e5m2 f16 bf16 f32 f64".split())
_OUTPUTS_WITH_AUXILIARY = ("GELU_AUX", "BIAS_GELU_AUX")


def is_call(instruction: HloInstruction, *targets: str) -> bool:
    """Return True for a custom call of one of these targets, by default of cuBLASLt's two product targets."""
    if instruction.opcode != "custom-call":
        return False
    return instruction.custom_call_target in (targets or (MATMUL, F8_MATMUL))


def gemm_record(call: HloInstruction) -> dict[str, Any]:
    """Return a copy of the `gemm_backend_config` of a call; empty if it has none or its backend_config is not JSON."""
    config = config_of(call.backend_config)
    found = config.get("gemm_backend_config")
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def update_record(call: HloInstruction, **changes: object) -> None:
    """Set fields of the `gemm_backend_config` of a call."""
    config = config_of(call.backend_config)
    gemm = gemm_record(call) | {name: _number(value) for name, value in changes.items()}
    call.attrs["backend_config"] = to_json(config | {"gemm_backend_config": gemm})


def epilogue_of(call: HloInstruction) -> str:
    """Return XLA's name of the call's epilogue."""
    return str(gemm_record(call).get("epilogue", "DEFAULT"))


def beta_of(call: HloInstruction) -> float:
    """Return the factor of the added matrix, which is operand 2 unless the factor is 0."""
    return float(gemm_record(call).get("beta", 0))


def has_auxiliary(call: HloInstruction) -> bool:
    """Return True if the call also returns the argument of its activation."""
    return epilogue_of(call) in _OUTPUTS_WITH_AUXILIARY


def takes_epilogues(call: HloInstruction) -> bool:
    """Return True if cuBLASLt has epilogues for the type of the result."""
    return call.shape.element_type in _WITH_EPILOGUES


def _number(value: object) -> object:
    """Return whole numbers as int, which print without a decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
