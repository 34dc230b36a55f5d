"""Refuse a dot whose algorithm the target does not support, or not for the dot's types.

    f16[64,96] dot(a, b), algorithm=dot_f16_f16_f16   =>   error

XLA's `AlgorithmChecker`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_F8 = frozenset(("f8e5m2", "f8e4m3fn"))
_AMPERE, _ADA = (8, 0), (8, 9)


class _Rule(Struct, frozen=True):
    """The minimum compute capability for an algorithm, and the operand and result types that it supports."""

    capability: tuple[int, int]
    takes: Callable[[str, str], bool]


def _takes(operand: str, *results: str) -> Callable[[str, str], bool]:
    return lambda given, result: given == operand and result in results


def _takes_bf16(given: str, result: str) -> bool:
    return result == "f32" if given == "f32" else given == "bf16" and result in ("bf16", "f32")


def _takes_f8(given: str, result: str) -> bool:
    return given in _F8 and result in (*_F8, "f16", "bf16", "f32")


_F32 = _takes("f32", "f32")
_RULES = {
    "dot_any_f8_any_f8_f32": _Rule(_ADA, _takes_f8),
    "dot_any_f8_any_f8_f32_fast_accum": _Rule(_ADA, _takes_f8),
    "dot_f16_f16_f32": _Rule((0, 0), _takes("f16", "f16", "f32")),
    "dot_bf16_bf16_f32": _Rule(_AMPERE, _takes_bf16),
    "dot_bf16_bf16_f32_x3": _Rule(_AMPERE, _F32),
    "dot_bf16_bf16_f32_x6": _Rule(_AMPERE, _F32),
    "dot_bf16_bf16_f32_x9": _Rule(_AMPERE, _F32),
    "dot_tf32_tf32_f32": _Rule(_AMPERE, _F32),
    "dot_tf32_tf32_f32_x3": _Rule(_AMPERE, _F32),
    "dot_f32_f32_f32": _Rule((0, 0), _F32),
    "dot_f64_f64_f64": _Rule((0, 0), _takes("f64", "f64")),
}


class AlgorithmChecker(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "algorithm-checker"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Change nothing; raises Unsupported for a dot that the target cannot compute with its algorithm."""
        for dot in module.instructions_of("dot"):
            algorithm = dot.algorithm
            if algorithm != "unset":
                _check(dot, algorithm, ctx.target.compute_capability)


def _check(dot: HloInstruction, algorithm: str, capability: tuple[int, int]) -> None:
    left, right = (operand.shape.element_type for operand in dot.operands[:2])
    result = dot.shape.element_type
    if left != right:
        raise Unsupported(
            f"%{dot.name} multiplies {left} by {right} with {algorithm}", dot.where, hint="convert the operands to one type"
        )
    rule = _RULES.get(algorithm)
    if rule is None or capability < rule.capability or not rule.takes(left, result):
        card = f"compute capability {capability[0]}.{capability[1]}"
        message = f"%{dot.name} requires {algorithm} of {left} in {result}, which {card} does not support"
        raise Unsupported(message, dot.where, hint="remove the attribute algorithm")
