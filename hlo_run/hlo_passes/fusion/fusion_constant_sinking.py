"""Move scalar constants into the fusions that read them, and from there into inner fusions.

    c = s32[] constant(3)
    f = f32[8] fusion(x, c), kind=kLoop   =>   f = f32[8] fusion(x), kind=kLoop, calls={ .. c = s32[] constant(3) .. }

XLA's `FusionConstantSinking`: fusions of the kinds kLoop and kOutput, and those of kind kCustom whose frontend attribute
`MUST_FUSE` is a number and that of the constant, too. Each keeps at least one operand.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import copy_instruction, remove_unused
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext


class FusionConstantSinking(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "fusion_constant_sinking"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        waiting = [
            value
            for computation in module.computations
            for value in computation.post_order()
            if value.opcode == "constant" and value.shape.is_array and not value.shape.dims
        ]
        while waiting:
            scalar = waiting.pop(0)
            found = [user for user in scalar.users if _can_sink(user, scalar)]
            waiting += [_sink(fusion, scalar) for fusion in found]
            if found:
                remove_unused([scalar])


def _can_sink(fusion: HloInstruction, scalar: HloInstruction) -> bool:
    if fusion.opcode != "fusion" or len(fusion.operands) == 1:
        return False
    if fusion.fusion_kind not in ("kLoop", "kOutput") and not (fusion.fusion_kind == "kCustom" and _belongs(fusion, scalar)):
        return False
    body = fusion.fused_computation
    if len(body.callers) > 1 or set(fusion.operands) == {scalar}:
        return False
    parameter = body.parameters[fusion.operands.index(scalar)]
    return not any(user.opcode == "fusion" and len(user.operands) == 1 for user in parameter.users)


def _belongs(fusion: HloInstruction, scalar: HloInstruction) -> bool:
    """True if the user asked for both to be in one fusion."""
    wanted = [frontend_attribute(value, "MUST_FUSE") for value in (fusion, scalar)]
    return wanted[0] is not None and wanted[0].isdecimal() and wanted[0] == wanted[1]


def _sink(fusion: HloInstruction, scalar: HloInstruction) -> HloInstruction:
    """Replace the parameters that are the scalar by a copy of it in the fusion's body, and return the copy."""
    body = fusion.fused_computation
    module = body.module
    assert module is not None, "the fusion is in a module"
    inner = body.add(copy_instruction(scalar, ()))
    kept = [operand for operand in fusion.operands if operand is not scalar]
    number = 0
    for parameter, operand in zip(body.parameters, fusion.operands, strict=True):
        if operand is scalar:
            module.replace_uses(parameter, inner)
            body.remove(parameter)
        else:
            parameter.attrs["parameter_number"] = number
            number += 1
    body.forget_parameters()
    fusion.operands = tuple(kept)
    return inner
