"""Swap the operands of a product in a Triton fusion if that suits the tensor cores.

    d = f32[16,128]{1,0} dot(a, b)   =>   s = f32[128,16]{0,1} dot(b, a); d = f32[16,128]{1,0} bitcast(s)

The left operand is read in blocks of 64 rows, and may be computed in registers. So the operands change places if the left one
has fewer than 64 rows and the right one has not, or if only the right one is computed. XLA's `GemmFusionSwapOperands`, which
XLA:GPU runs where Triton computes products.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.fusion_owner import fusion_owner
from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo.views.dots import dot_side, size_of
from hlo_run.pass_support.hlo_pass import PassContext

_BLOCK_ROWS = 64
_ONLY_MOVE = opcode_set("bitcast broadcast constant get-tuple-element parameter reshape transpose")
_SIDES = ("batch_dims", "contracting_dims")


class GemmFusionSwapOperands(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "gemm-fusion-swap-operands"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the bodies of Triton fusions in place."""
        del ctx
        fusions = [fusion for fusion in module.instructions_of("fusion") if fusion_owner(fusion) == "__triton_gemm"]
        for body in dict.fromkeys(fusion.fused_computation for fusion in fusions):
            dot = next((i for i in body.instructions if i.opcode == "dot"), None)
            if dot is not None and _gains(dot):
                swapped = _swapped(dot)
                module.replace(dot, Editor(dot).bitcast(swapped, dot.shape))
                remove_unused([dot])


def _gains(dot: HloInstruction) -> bool:
    lhs, rhs = (size_of(dot, number, dot_side(dot, number).free) for number in (0, 1))
    if rhs < _BLOCK_ROWS:
        return False
    return lhs < _BLOCK_ROWS or (not _is_computed(dot.operands[0]) and _is_computed(dot.operands[1]))


def _is_computed(value: HloInstruction) -> bool:
    """True if more than a move happens on the way from the first operands, as XLA follows them."""
    while value.operands and value.opcode in _ONLY_MOVE:
        value = value.operands[0]
    return bool(value.operands)


def _swapped(dot: HloInstruction) -> HloInstruction:
    """Add the product with its operands swapped. Its result is the old one with other names of dimensions: no byte moves."""
    lhs, rhs = dot_side(dot, 0), dot_side(dot, 1)
    first, left, right = len(lhs.batch), len(lhs.free), len(rhs.free)
    order = [*range(first), *range(first + left, first + left + right), *range(first, first + left)]
    places = {old: new for new, old in enumerate(order)}
    layout = Layout(tuple(places[dim] for dim in dot.shape.minor_to_major), dot.shape.layout.extra if dot.shape.layout else "")
    dims = tuple(dot.shape.dims[dim] for dim in order)
    shape = Shape(dot.shape.element_type, dims, layout)
    attributes = dict(dot.attrs)
    for name in _SIDES:
        for mine, other in (("lhs", "rhs"), ("rhs", "lhs")):
            attributes.pop(f"{mine}_{name}", None)
            if f"{other}_{name}" in dot.attrs:
                attributes[f"{mine}_{name}"] = dot.attrs[f"{other}_{name}"]
    if dot.operand_precision:
        attributes["operand_precision"] = dot.operand_precision[::-1]
    return Editor(dot).add_with("dot", shape, dot.operands[::-1], attributes)
