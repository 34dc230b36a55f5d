"""Compute in a wider type, between conversions, where the GPU has no instructions for a narrow type.

    d = bf16[8] divide(a, b)   =>   convert bf16[8] (f32[8] divide(convert f32[8] (a), convert f32[8] (b)))

Computations that a reduction or a window calls are copied with wide parameters and results; their inner steps are still
rounded as they were. The reducers of collectives stay as they are. XLA's `FloatNormalization`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.facts import element_types
from hlo_run.analysis.float_support import WIDE_TYPES, computes_in
from hlo_run.analysis.fusion_owner import is_block_level
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.edit import Editor, clone_with_fusions, remove_uncalled
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import REDUCING_COLLECTIVE
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

# The library knows the reducers of collectives by their form.
_KEEPS_COMPUTATIONS = REDUCING_COLLECTIVE | opcode_set("select-and-scatter")


class FloatNormalization(Struct, frozen=True):
    """The pass for one narrow type; see the module's docstring. With `opcodes`, it edits only these."""

    name: ClassVar[str] = "float-normalization"

    narrow: str
    opcodes: tuple[str, ...] = ()

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit all computations in place.

        Asynchronous computations must stay one instruction; of the bodies of fusions, only block-level ones are edited.
        """
        omits_roundings = ctx.options.xla_allow_excess_precision
        wide = WIDE_TYPES[self.narrow]
        normalizer = _Normalizer(module, self.narrow, wide, ctx.target.sm, self.opcodes, omits_roundings)
        version = module.version
        reducers = _collective_reducers(module)
        if self.narrow not in element_types(module):
            return
        for computation in _callees_first(module):
            if _may_change(computation) and computation not in reducers and not is_async_wrapper(computation):
                normalizer.run(computation)
        if module.version != version:
            remove_uncalled(module)


def _may_change(computation: HloComputation) -> bool:
    return not computation.is_fusion or any(is_block_level(caller) for caller in computation.callers)


def _collective_reducers(module: HloModule) -> frozenset[HloComputation]:
    """Return the reducers of collectives, of which the library knows the plain form; one that others call too is copied first."""
    found: set[HloComputation] = set()
    copies: dict[HloComputation, HloComputation] = {}
    for instruction in module.instructions_of(*REDUCING_COLLECTIVE):
        reducer = instruction.to_apply
        if any(caller.opcode not in REDUCING_COLLECTIVE for caller in reducer.callers):
            reducer = copies.get(reducer) or copies.setdefault(reducer, clone_with_fusions(module, reducer))
            instruction.called = {"to_apply": (reducer,)}
        found.add(reducer)
    return frozenset(found)


def _callees_first(module: HloModule) -> list[HloComputation]:
    order: dict[HloComputation, None] = {}
    waiting = list(reversed(module.computations))
    while waiting:
        computation = waiting[-1]
        callees = [c for i in computation.instructions for c in i.called_computations if c not in order]
        if callees and computation not in order:
            waiting += callees
            continue
        waiting.pop()
        order[computation] = None
    return list(order)


class _Normalizer(Struct, frozen=True):
    module: HloModule
    narrow: str
    wide: str
    sm: int
    opcodes: tuple[str, ...]
    omits_roundings: bool

    def run(self, computation: HloComputation) -> None:
        if not any(self._has_narrow(instruction.shape) for instruction in computation.instructions):
            return
        for instruction in computation.post_order():
            if self._is_to_do(instruction):
                self._widen(instruction)

    def _has_narrow(self, shape: Shape) -> bool:
        if shape.is_tuple:
            return any(self._has_narrow(element) for element in shape.tuple_shapes)
        return shape.element_type == self.narrow

    def _is_to_do(self, instruction: HloInstruction) -> bool:
        if instruction.opcode not in self.opcodes if self.opcodes else computes_in(instruction, self.narrow, self.sm):
            return False
        shapes = [instruction.shape, *(operand.shape for operand in instruction.operands)]
        return any(self._has_narrow(shape) for shape in shapes)

    def _widen(self, instruction: HloInstruction) -> None:
        """Let an instruction have wide operands and results, between conversions."""
        editor, shape, users = Editor(instruction, derives=False), instruction.shape, list(instruction.users)
        narrow_operands = {o: self._converted(editor, o) for o in instruction.operands if o.shape.element_type == self.narrow}
        instruction.operands = tuple([narrow_operands.get(operand, operand) for operand in instruction.operands])
        if self._has_narrow(shape):
            self._widen_result(editor, instruction, users)
        if instruction.called_computations and instruction.opcode not in _KEEPS_COMPUTATIONS:
            instruction.called = {key: tuple(map(self._wide_clone, group)) for key, group in instruction.called.items()}

    def _widen_result(self, editor: Editor, instruction: HloInstruction, users: list[HloInstruction]) -> None:
        shape, is_root = instruction.shape, instruction.is_root
        instruction.shape = shape.map_leaves(self._wide_shape)
        back = self._back(editor, instruction, shape)
        widened = [u for u in users if self.omits_roundings and u.opcode == "convert" and u.shape.element_type == self.wide]
        for user in users:
            if user not in widened:
                user.operands = tuple([back if operand is instruction else operand for operand in user.operands])
        for user in widened:  # they would widen what was just narrowed
            self.module.replace_uses(user, instruction)
        if is_root:
            editor.computation.root = back

    def _converted(self, editor: Editor, value: HloInstruction) -> HloInstruction:
        return editor.add("convert", self._wide_shape(value.shape), [value])

    def _back(self, editor: Editor, value: HloInstruction, shape: Shape) -> HloInstruction:
        """Return `value` converted back to the element types of `shape`."""
        if not shape.is_tuple:
            return editor.add("convert", shape, [value]) if shape.element_type == self.narrow else value
        parts = [self._back(editor, editor.element(value, number), element) for number, element in enumerate(shape.tuple_shapes)]
        return editor.tuple(parts)

    def _wide_shape(self, leaf: Shape) -> Shape:
        if leaf.element_type != self.narrow:
            return leaf
        layout = leaf.layout
        if layout is not None and layout.extra:
            layout = replace(layout, extra=re.sub(r"E\(\d+\)", "", layout.extra))
        return replace(leaf, element_type=self.wide, layout=layout)

    def _wide_clone(self, body: HloComputation) -> HloComputation:
        """Return a clone of a called computation with wide parameters and results; itself if none of them is narrow."""
        if not any(self._has_narrow(p.shape) for p in body.parameters) and not self._has_narrow(body.root.shape):
            return body
        clone = clone_with_fusions(self.module, body)
        # The result first, as in XLA: it decides the names.
        root = clone.root
        if self._has_narrow(root.shape):
            editor = Editor(root, derives=False)
            clone.root = self._forth(editor, root)
        for parameter in clone.parameters:
            if parameter.shape.element_type == self.narrow:
                self._widen_parameter(parameter)
        return clone

    def _widen_parameter(self, parameter: HloInstruction) -> None:
        """Make a parameter wide; users that convert it to the wide type are replaced by it."""
        shape, editor = parameter.shape, Editor(parameter, derives=False)
        users = list(parameter.users)
        parameter.shape = self._wide_shape(shape)
        rest = [user for user in users if not (user.opcode == "convert" and user.shape == parameter.shape)]
        if parameter.is_root:
            editor.computation.root = editor.add("convert", shape, [parameter])
        if rest:
            narrowed = editor.add("convert", shape, [parameter])
            for user in rest:
                user.operands = tuple([narrowed if operand is parameter else operand for operand in user.operands])
        for user in users:
            if user not in rest:
                self.module.replace(user, parameter)
                if not user.is_root:
                    editor.computation.remove(user)

    def _forth(self, editor: Editor, value: HloInstruction) -> HloInstruction:
        """Return a value of a clone, possibly a tuple, with its narrow parts widened."""
        if not value.shape.is_tuple:
            return self._converted(editor, value) if value.shape.element_type == self.narrow else value
        return editor.tuple([self._forth(editor, editor.element(value, n)) for n in range(len(value.shape.tuple_shapes))])
