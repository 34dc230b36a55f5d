"""A copy of a product with everything around it that its fusion could contain, in which bitcasts move away from the product.

The copy begins at the last instruction that follows from the product by single uses, and reaches back until an instruction that
block-level fusions do not have. Its bitcasts and reshapes move to its parameters and to its root, since tiles of a product follow
through few of them. XLA's `FusionSearchSpace`.
"""

from __future__ import annotations

import numpy as np

from hlo_run.analysis.block_level.support import is_supported
from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction, has_side_effect, remove_unused
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo_passes.dots.block_level import moved_bitcasts
from hlo_run.records import replace
from hlo_run.target import TargetSpec

_BITCASTS = opcode_set("bitcast reshape")
_NEVER = opcode_set("dot pad parameter")


class SearchSpace:
    """The copy, and the original of each of its instructions; `dot` is the copy of the product.

    `moved` are the broadcasts that a bitcast has moved before.
    """

    def __init__(self, dot: HloInstruction, target: TargetSpec) -> None:
        """Copy what surrounds `dot`."""
        self.body = HloComputation(f"{dot.name}_computation")
        self.originals: dict[HloInstruction, HloInstruction] = {}
        self.moved: set[HloInstruction] = set()
        self._copies: dict[HloInstruction, HloInstruction] = {}
        self._makes = InstructionMaker(self.body)
        self._target = target
        self._origin = dot
        last = dot
        while len(last.users) == 1 and self._can_contain(last.users[0]):
            last = last.users[0]
        self.body.root = self._copy(last)

    @property
    def dot(self) -> HloInstruction:
        """The copy of the product."""
        return self._copies[self._origin]

    def _can_contain(self, value: HloInstruction) -> bool:
        if value.opcode in _NEVER or value.called or has_side_effect(value):
            return False
        return bool(is_supported(value, self._target))

    def _copy(self, last: HloInstruction) -> HloInstruction:
        """Copy an instruction after its operands; what a fusion cannot contain becomes a parameter."""
        stack, count = [last], 0
        while stack:
            value = stack[-1]
            if value in self._copies:
                stack.pop()
                continue
            is_inner = value is self._origin or self._can_contain(value)
            waiting = [operand for operand in value.operands if operand not in self._copies] if is_inner else []
            if waiting:
                stack += reversed(waiting)
                continue
            stack.pop()
            if is_inner:
                copy = self.body.add(copy_instruction(value, [self._copies[operand] for operand in value.operands]))
            else:
                copy = self._makes.parameter(count, value.shape, f"parameter_{count}")
                count += 1
            self._copies[value], self.originals[copy] = copy, value
        return self._copies[last]

    def free_dot(self) -> None:
        """Move bitcasts of the copy away from its product."""
        self.free_border(self.body)

    def free_border(self, body: HloComputation) -> None:
        """Move bitcasts of a fusion within the copy away from its product, and out of it at its parameters and its root."""
        mover = BitcastMover(body, self.originals, self._copies, self.moved)
        while mover.move_all():
            pass

    def original(self, operand: HloInstruction, shape: Shape) -> HloInstruction:
        """Return what has the value of `operand` in the module, with `shape`; adds bitcasts to the module where needed."""
        found = self.originals.get(operand)
        if found is None:
            assert operand.opcode == "bitcast", "only moved bitcasts are new"
            found = self.original(operand.operands[0], shape)
            self.originals[operand] = made = Editor(found, derives=False).bitcast(found, shape)
            return made
        return Editor(found, derives=False).bitcast(found, shape)


class BitcastMover:
    """Moves the bitcasts and reshapes of a computation with a product: those before it to parameters, others to the root."""

    def __init__(
        self,
        body: HloComputation,
        originals: dict[HloInstruction, HloInstruction],
        copies: dict[HloInstruction, HloInstruction],
        moved: set[HloInstruction],
    ) -> None:
        """Keep the two maps between the computation and the module up to date, and add to `moved`."""
        self._moved = moved
        self._body = body
        self._originals = originals
        self._copies = copies
        self._makes = InstructionMaker(body)
        self._behind: set[HloInstruction] = set()
        self._fresh: list[HloInstruction] = []

    def move_all(self) -> bool:
        """Move each bitcast as far as it can go, in post-order; return whether one moved."""
        waiting = self._bitcasts()[::-1]
        has_moved = False
        while waiting:
            bitcast = waiting.pop()
            if bitcast.parent is not None and (self._sink(bitcast) if bitcast in self._behind else self._hoist(bitcast)):
                has_moved = True
                waiting += reversed(self._fresh)
            self._fresh.clear()
        return has_moved

    def _bitcasts(self) -> list[HloInstruction]:
        """Return the bitcasts in post-order, and note what comes after the product."""
        dot = next((i for i in self._body.instructions if i.opcode == "dot"), None)
        if dot is None:
            return []
        self._behind = {dot}
        found: list[HloInstruction] = []
        for instruction in self._body.post_order():
            if not self._behind.isdisjoint(instruction.operands):
                self._behind.add(instruction)
            if instruction.opcode in _BITCASTS and instruction.shape.element_type == instruction.operands[0].shape.element_type:
                found.append(instruction)
        return found

    def _view(self, value: HloInstruction, shape: Shape) -> HloInstruction:
        """Make a bitcast, which may move on."""
        made = self._makes.add("bitcast", _as(shape, value.shape), [value])
        self._fresh.append(made)
        return made

    def _hoist(self, bitcast: HloInstruction) -> bool:
        """Let the bitcast change places with its operand. A parameter takes its shape."""
        operand = bitcast.operands[0]
        if operand.opcode == "parameter":
            return self._reshape_parameter(operand, bitcast)
        made = self._before(operand, bitcast.shape)
        if made is None:
            return False
        self._follow(operand, made)
        if made.opcode == "broadcast":
            self._moved.add(made)
        self._replace(bitcast, made)
        return True

    def _reshape_parameter(self, parameter: HloInstruction, bitcast: HloInstruction) -> bool:
        users = list(dict.fromkeys(parameter.users))
        if any(user.opcode not in _BITCASTS or user.shape != bitcast.shape for user in users):
            return False
        parameter.shape = _as(bitcast.shape, parameter.shape)
        for user in users:
            self._replace(user, parameter)
        return True

    def _before(self, operand: HloInstruction, shape: Shape) -> HloInstruction | None:
        """Make the operation of the operand on bitcasts, with the bitcast's result."""
        if operand.opcode == "constant":
            if operand.shape.element_count != 1:
                return None
            return self._makes.constant(np.reshape(operand.literal, shape.dims), operand.shape.element_type)
        if operand.opcode == "broadcast":
            moved = moved_bitcasts.bitcast_before_broadcast(operand, shape)
        elif operand.opcode == "transpose":
            moved = moved_bitcasts.bitcast_before_transpose(operand, shape)
        elif is_elementwise(operand):
            return self._on_bitcasts(operand, shape, operand.operands)
        else:
            return None
        if moved is None:
            return None
        source = operand.operands[0]
        inner = self._view(source, moved.shape)
        return self._with_dimensions(operand, shape, inner, moved.dimensions)

    def _on_bitcasts(self, old: HloInstruction, shape: Shape, operands: tuple[HloInstruction, ...]) -> HloInstruction:
        views = [self._view(operand, shape) for operand in operands]
        return self._body.add(copy_instruction(old, views, _as(shape, old.shape)))

    def _with_dimensions(
        self, old: HloInstruction, shape: Shape, operand: HloInstruction, dimensions: tuple[int, ...]
    ) -> HloInstruction:
        made = copy_instruction(old, [operand], _as(shape, old.shape), old.opcode)
        made.attrs["dimensions"] = dimensions
        return self._body.add(made)

    def _sink(self, bitcast: HloInstruction) -> bool:
        """Let the bitcast change places with its only user. The root's bitcast leaves the computation."""
        operand = bitcast.operands[0]
        if bitcast.is_root:
            self._body.root = operand
            remove_unused([bitcast])
            return True
        if len(bitcast.users) != 1:
            return False
        user = bitcast.users[0]
        made = self._on_operand(user, bitcast)
        if made is None:
            return False
        view = self._view(made, user.shape)
        self._behind |= {made, view}
        if user in self._originals:
            original = self._originals[user]
            self._originals[made] = self._originals[view] = original
            self._copies[original] = made
        self._replace(user, view)
        return True

    def _on_operand(self, user: HloInstruction, bitcast: HloInstruction) -> HloInstruction | None:
        """Make the operation of the user on the bitcast's operand."""
        operand = bitcast.operands[0]
        if user.opcode == "transpose":
            moved = moved_bitcasts.transpose_before_bitcast(user, operand.shape)
        elif user.opcode == "broadcast":
            moved = moved_bitcasts.broadcast_before_bitcast(user, operand.shape)
        elif is_elementwise(user):
            views = [operand if other is bitcast else self._view(other, operand.shape) for other in user.operands]
            return self._body.add(copy_instruction(user, views, _as(operand.shape, user.shape)))
        else:
            return None
        return None if moved is None else self._with_dimensions(user, moved.shape, operand, moved.dimensions)

    def _follow(self, old: HloInstruction, new: HloInstruction) -> None:
        if old in self._originals:
            original = self._originals[old]
            self._originals[new] = original
            self._copies[original] = new

    def _replace(self, old: HloInstruction, new: HloInstruction) -> None:
        for user in list(dict.fromkeys(old.users)):
            user.replace_operand(old, new)
        if old.is_root:
            self._body.root = new
        remove_unused([old])


def _as(shape: Shape, like: Shape) -> Shape:
    """Return `shape` with the element type of `like` and the bits of its elements."""
    extra = like.layout.extra if like.layout else ""
    return replace(shape, element_type=like.element_type, layout=Layout(shape.minor_to_major, extra))
