"""Shrink scatters whose users all slice off the end of a dimension: slice the operand before instead.

    slice(exp(scatter(f32[65,3] a, i, f32[8,1,3] u))), slice={[0:64], [0:3]}   =>   exp(scatter(slice(a)[0:64], i, u))

An update outside of the sliced part is dropped in both forms, so updates must have size one in that dimension. Elementwise
instructions may be between scatter and slices. Programs pad an array by a row as the target of ignored updates. XLA's
`ScatterSliceSimplifier`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import ClassVar

from msgspec import Struct, field

from hlo_run.analysis.elementwise import is_element_operation
from hlo_run.hlo.edit import Editor, copy_instruction, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.views.indexed import Indexed
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class ScatterSliceSimplifier(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "scatter-slice-simplifier"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for scatter in module.instructions_of("scatter"):
            parent = scatter.parent
            if parent is None or parent.is_fusion or not Indexed.of(scatter).is_simple:
                continue
            cut = _Cut(scatter, list(scatter.operands[0].shape.dims))
            if cut.takes(scatter) and cut.slices:
                _Narrower(module, tuple(cut.dims)).narrow(scatter, cut.seen)


class _Cut(Struct):
    """The dimensions of a scatter that remain after the slices of its users; `slices` are those slices."""

    scatter: HloInstruction
    dims: list[int]
    slices: dict[HloInstruction, None] = field(default_factory=dict[HloInstruction, None])
    seen: dict[HloInstruction, None] = field(default_factory=dict[HloInstruction, None])

    def takes(self, value: HloInstruction) -> bool:
        """Return True if all paths from `value` end in slices with the same sizes."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if value.is_root or not value.users:
                return False
            for user in value.users:
                if user in self.seen:
                    continue
                self.seen[user] = None
                if user.opcode == "slice":
                    if not self._cuts(user):
                        return False
                    self.slices[user] = None
                elif _lets_through(user):
                    waiting.append(user)
                else:
                    return False
        return True

    def _cuts(self, user: HloInstruction) -> bool:
        """Return True if a slice takes the beginning of each dimension, with the same sizes as the slices before."""
        updates, whole = self.scatter.operands[-1].shape.dims, self.scatter.operands[0].shape.dims
        for dim, (start, limit, stride) in enumerate(user.slice_ranges):
            if start or stride != 1:
                return False
            if limit != self.dims[dim] and (self.dims[dim] != whole[dim] or updates[dim + 1] != 1 or self._was_read_whole(dim)):
                return False
            self.dims[dim] = limit
        return True

    def _was_read_whole(self, dim: int) -> bool:
        return any(one.shape.dims[dim] == self.scatter.operands[0].shape.dims[dim] for one in self.slices)


def _lets_through(user: HloInstruction) -> bool:
    return not user.control_predecessors and (user.opcode == "get-tuple-element" or is_element_operation(user))


class _Narrower(Struct):
    """Rebuilds a scatter and its users with the dimensions `dims`; their slices to `dims` are replaced."""

    module: HloModule
    dims: tuple[int, ...]
    made: dict[HloInstruction, HloInstruction] = field(default_factory=dict[HloInstruction, HloInstruction])

    def narrow(self, scatter: HloInstruction, between: Container[HloInstruction]) -> None:
        """Rebuild the users in `between`, down to the slices, which are replaced by their operands."""
        editor, count = Editor(scatter), len(scatter.operands) // 2
        inputs = [self._cut(editor, operand) for operand in scatter.operands[:count]]
        self._remake(scatter, [*inputs, *scatter.operands[count:]])
        users = [value for value in editor.computation.post_order() if value in between]
        for user in users:
            if user.opcode == "slice":
                self.module.replace(user, self.made[user.operands[0]])
            else:
                self._remake(user, [self.made.get(o) or self._cut(Editor(user), o) for o in user.operands])
        remove_unused(users)

    def _remake(self, old: HloInstruction, operands: list[HloInstruction]) -> None:
        parent = Editor(old).computation
        self.made[old] = parent.add(copy_instruction(old, operands, self._shape(old.shape), old.opcode))

    def _shape(self, shape: Shape) -> Shape:
        if shape.is_tuple:
            return Shape.make_tuple(tuple(map(self._shape, shape.tuple_shapes)))
        return replace(shape, dims=self.dims)

    def _cut(self, editor: Editor, value: HloInstruction) -> HloInstruction:
        return value if value.shape.dims == self.dims else editor.slice(value, [0] * len(self.dims), self.dims)
