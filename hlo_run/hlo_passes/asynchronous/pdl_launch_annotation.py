"""Let the fusion after a matrix product of Triton start before the product ends (programmatic dependent launch).

    d = fusion(a, b), kind=kCustom, calls=gemm, backend_config={.. "kind":"__triton_gemm" ..};  f = fusion(d, r), calls=..
      =>   d = fusion(a, b), .., frontend_attributes={xla.pdl_launch="true"}
           f = fusion(d, r), .., frontend_attributes={xla.no_invariant_operands="0"}

The second attribute lists the operands that the product writes: a kernel that has begun must not read them as if they
never changed. Only a fusion that follows in the schedule takes part; parameters, constants, tuples, their elements and bitcasts
may lie between. XLA's `PdlLaunchAnnotationPass`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.fusion_owner import fusion_owner
from hlo_run.hlo.frontend_attributes import frontend_attribute, set_frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.pass_support.hlo_pass import PassContext

_LAUNCH, _CHANGING = "xla.pdl_launch", "xla.no_invariant_operands"
_PRODUCTS = ("__triton_gemm", "__triton_nested_gemm_fusion")
_NO_WORK = opcode_set("bitcast constant get-tuple-element parameter tuple")


class PdlLaunchAnnotation(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "pdl-launch-annotation"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the attributes of fusions in place."""
        del ctx
        if not module.instructions_of("fusion"):
            return
        for computation, order in (module.schedule or {}).items():
            for place, product in enumerate(() if computation.is_fusion else order):
                following = _following_fusion(order[place + 1 :]) if _launches(product) else None
                if following is not None:
                    set_frontend_attribute(product, _LAUNCH, "true")
                    _mark_operands(following, product)


def _launches(instruction: HloInstruction) -> bool:
    """True for a product of Triton that is not marked yet."""
    if instruction.opcode != "fusion" or fusion_owner(instruction) not in _PRODUCTS:
        return False
    dots = [inner for inner in instruction.fused_computation.instructions if inner.opcode == "dot"]
    return len(dots) == 1 and frontend_attribute(instruction, _LAUNCH) is None


def _following_fusion(order: Sequence[HloInstruction]) -> HloInstruction | None:
    """Return the first instruction that does work, if it is a fusion."""
    found = next((instruction for instruction in order if instruction.opcode not in _NO_WORK), None)
    return found if found is not None and found.opcode == "fusion" else None


def _mark_operands(fusion: HloInstruction, product: HloInstruction) -> None:
    known = {int(word) for word in (frontend_attribute(fusion, _CHANGING) or "").split(",") if word.strip().isdecimal()}
    places = [n for n, operand in enumerate(fusion.operands) if n in known or _comes_from(operand, product)]
    if len(places) > len(known):
        set_frontend_attribute(fusion, _CHANGING, ",".join(map(str, places)))


def _comes_from(value: HloInstruction, product: HloInstruction) -> bool:
    """True if the value is a result of the product, behind bitcasts, tuples and their elements."""
    while value is not product:
        if value.opcode == "get-tuple-element" and value.operands[0].opcode == "tuple":
            value = value.operands[0].operands[value.tuple_index]
        elif value.opcode in ("bitcast", "get-tuple-element"):
            value = value.operands[0]
        else:
            return False
    return True
