"""Compute values in bf16 that are only used in bf16.

    while state (.., f32[8]) whose element is only converted to bf16 behind it   =>   the state has a bf16[8]

XLA's `BFloat16Propagation`. By default, as in XLA's `hlo-opt`, only instructions that hand values on may take or give bf16, and
associative scans. `mixes_all` is for a device whose instructions take any mix of f32 and bf16 and whose dots round their
operands: then instructions may have operands of both types. Inputs of loops are copied first, so that other uses of them do not
matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, TypeAlias

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_dead
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape, ShapeIndex
from hlo_run.hlo_passes.precision.plan import Plan, keeps_type
from hlo_run.hlo_passes.precision.support import FloatSupport, is_associative_scan
from hlo_run.hlo_passes.precision.value_sets import leaf_at
from hlo_run.hlo_passes.subgraphs.tuple_simplification import simplify_tuples
from hlo_run.pass_support.hlo_pass import PassContext

_Change: TypeAlias = Callable[[HloInstruction, ShapeIndex], HloInstruction]


class BFloat16Propagation(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "bfloat16-propagation"

    mixes_all: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for loop in module.instructions_of("while"):
            (state,) = loop.operands
            loop.replace_operand(state, _rebuilt(state, _convert_wide)) if _holds_wide(state) else None
        plan = Plan(module, FloatSupport(self.mixes_all))
        for value, indices in plan.changes.items():
            _narrow(value, indices)
        if plan.changes:
            _match_roots(module)
            for constant in module.instructions_of("constant"):
                _convert_literal(constant)
        for convert in module.instructions_of("convert"):
            if convert.operands[0].shape == convert.shape:
                module.replace_uses(convert, convert.operands[0])
        simplify_tuples(module)
        remove_dead(module)


def _holds_wide(value: HloInstruction) -> bool:
    return any(leaf.element_type == "f32" for _, leaf in value.shape.leaves())


def _convert_wide(leaf: HloInstruction, index: ShapeIndex) -> HloInstruction:
    del index
    return Editor(leaf).add("convert", leaf.shape, [leaf]) if leaf.shape.element_type == "f32" else leaf


def _rebuilt(value: HloInstruction, change: _Change, index: ShapeIndex = ()) -> HloInstruction:
    """Return a tuple of the changed arrays of a value, or the changed array."""
    if not value.shape.is_tuple:
        return change(value, index) if value.shape.is_array else value
    editor = Editor(value)
    parts = [
        editor.add("get-tuple-element", shape, [value], index=number) for number, shape in enumerate(value.shape.tuple_shapes)
    ]
    return editor.tuple([_rebuilt(part, change, (*index, number)) for number, part in enumerate(parts)])


def _narrow(value: HloInstruction, indices: set[ShapeIndex]) -> None:
    if not keeps_type(value):
        value.shape = _narrowed(value.shape, indices)
        return

    # The root of a fusion, whose result is bf16.
    def convert(leaf: HloInstruction, index: ShapeIndex) -> HloInstruction:
        return Editor(leaf).convert(leaf, "bf16") if index in indices else leaf

    users = list(value.users)
    made = _rebuilt(value, convert)
    for user in users:
        user.replace_operand(value, made)
    if value.is_root and value.parent is not None:
        value.parent.root = made


def _narrowed(shape: Shape, indices: set[ShapeIndex], index: ShapeIndex = ()) -> Shape:
    if not shape.is_tuple:
        return shape.with_element_type("bf16") if index in indices else shape
    return Shape.make_tuple(tuple(_narrowed(part, indices, (*index, n)) for n, part in enumerate(shape.tuple_shapes)))


def _match_roots(module: HloModule) -> None:
    """Convert what fusions and scans return to the types of their results."""
    for computation in module.computations:
        for caller in reversed(computation.post_order()):
            if caller.opcode != "fusion" and not is_associative_scan(caller):
                continue
            (body,) = caller.called_computations
            wanted = {index: leaf.element_type for index, leaf in caller.shape.leaves()}
            if any(leaf.element_type != wanted[index] for index, leaf in body.root.shape.leaves()):
                body.root = _rebuilt(body.root, partial(_convert_to_leaf_of, caller.shape))


def _convert_to_leaf_of(shape: Shape, leaf: HloInstruction, index: ShapeIndex) -> HloInstruction:
    return Editor(leaf).convert(leaf, leaf_at(shape, index).element_type)


def _convert_literal(constant: HloInstruction) -> None:
    if constant.shape.element_type == "bf16" and constant.constant_array.dtype != DTYPES["bf16"].numpy:
        constant.attrs["literal"] = constant.constant_array.astype(DTYPES["bf16"].numpy)
