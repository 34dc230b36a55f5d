"""Rewrite f32 dots whose algorithm computes in bf16 or tf32: convert the operands, or sum several dots of their parts.

    f32 dot(a, b), algorithm=dot_bf16_bf16_f32   =>   dot(bf16 convert(a), bf16 convert(b)), algorithm=dot_bf16_bf16_f32
    f32 dot(a, b), algorithm=dot_bf16_bf16_f32_x3
      =>   number(low(a) . high(b) + high(a) . low(b)) + high(a) . high(b)

The high part of a number is its leading bits, the low part is the rest; x6 and x9 also have a middle part. `number` replaces
NaN by 0: the low part of an infinity is a NaN, and so is the sum of the small products. A part is divided as its operand is;
the products have no sharding of their own, as in XLA. XLA's `DotAlgorithmRewriter`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.analysis.computation_order import in_definition_order
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_MASKS = {"bf16": 0xFFFF0000, "tf32": 0xFFFFE000}
_HIGH, _MIDDLE, _LOW = range(3)
_X3 = ((1, _HIGH), (_HIGH, 1))
_X6 = ((_MIDDLE, _MIDDLE), (_HIGH, _LOW), (_LOW, _HIGH), (_HIGH, _MIDDLE), (_MIDDLE, _HIGH))
_X9 = ((_LOW, _LOW), (_LOW, _MIDDLE), (_MIDDLE, _LOW), (_MIDDLE, _MIDDLE), *_X6[1:])


class _Plan(Struct, frozen=True):
    """The type and number of the parts, and the pairs of parts to multiply and sum before high . high, in order."""

    part_type: str
    parts: int
    products: tuple[tuple[int, int], ...]


_PLANS = {
    "dot_bf16_bf16_f32_x3": _Plan("bf16", 2, _X3),
    "dot_bf16_bf16_f32_x6": _Plan("bf16", 3, _X6),
    "dot_bf16_bf16_f32_x9": _Plan("bf16", 3, _X9),
    "dot_tf32_tf32_f32_x3": _Plan("tf32", 2, _X3),
}


class DotAlgorithmRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "dot-algorithm-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        replaced: list[HloInstruction] = []
        for dot in in_definition_order(module, "dot"):
            algorithm = dot.algorithm
            if any(operand.shape.element_type != "f32" for operand in dot.operands):
                continue
            if ctx.options.xla_gpu_default_to_alg_dot_bf16_bf16_f32 and _may_round(dot):
                algorithm = "dot_bf16_bf16_f32"
            if algorithm == "dot_bf16_bf16_f32":
                dot.operands = tuple([Editor(operand).convert(operand, "bf16") for operand in dot.operands])
                dot.attrs.pop("sharding", None)
            elif algorithm in _PLANS:
                module.replace(dot, _in_parts(dot, _PLANS[algorithm]))
                replaced.append(dot)
        remove_unused(replaced)


def _may_round(dot: HloInstruction) -> bool:
    """True for a product of f32 whose algorithm and precision the module leaves open."""
    is_open = dot.algorithm == "unset" and all(precision == "default" for precision in dot.operand_precision)
    return is_open and dot.shape.element_type == "f32"


def _in_parts(dot: HloInstruction, plan: _Plan) -> HloInstruction:
    editor = Editor(dot, keeps_sharding=False)
    left, right = (_split(operand, plan) for operand in dot.operands)

    def product(one: int, two: int) -> HloInstruction:
        made = copy_instruction(dot, [left[one], right[two]], name="dot")
        made.attrs.pop("sharding", None)
        made.attrs["algorithm"] = f"dot_{plan.part_type}_{plan.part_type}_f32"
        return editor.computation.add(made)

    small = product(*plan.products[0])
    for pair in plan.products[1:]:
        small = editor.binary("add", small, product(*pair))
    return editor.binary("add", _number(editor, small), product(_HIGH, _HIGH))


def _split(value: HloInstruction, plan: _Plan) -> list[HloInstruction]:
    """Return the parts of a value, the leading bits first, in the type of the products."""
    editor, plain = Editor(value), Editor(value, derives=False)
    parts: list[HloInstruction] = []
    for _ in range(plan.parts - 1):
        bits = editor.add("bitcast-convert", value.shape.with_element_type("u32"), [value])
        mask = editor.add("broadcast", bits.shape, [plain.constant(_MASKS[plan.part_type], "u32")], dimensions=())
        parts.append(editor.add("bitcast-convert", value.shape, [editor.binary("and", bits, mask)]))
        value = editor.binary("subtract", value, parts[-1])
    return [editor.convert(part, "bf16") if plan.part_type == "bf16" else part for part in (*parts, value)]


def _number(editor: Editor, value: HloInstruction) -> HloInstruction:
    """Return the value with NaNs replaced by 0."""
    infinity, zero = (
        editor.add("broadcast", value.shape, [editor.constant(number, "f32")], dimensions=()) for number in (np.inf, 0)
    )
    return editor.select(editor.compare(infinity, editor.unary("abs", value), "GE"), value, zero)
