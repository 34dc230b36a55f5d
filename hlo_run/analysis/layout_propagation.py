"""Which layout does every array of a computation get, so that few of them must be copied to another?

A layout spreads from where it is asked for: to those who use the value, to the operands of the instruction that makes it,
through transposes and reshapes so that they move no byte, from results to the operands of broadcasts, and of reduces so that
they go along rows. What nothing reaches gets the default layout. The engine of XLA's `LayoutAssignment`, with one round where
XLA has two.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from hlo_run.analysis.bitcast_kind import aligned_order
from hlo_run.analysis.defining_value import FORWARDING, ShapeIndex
from hlo_run.analysis.reduction_description import WARP_SIZE
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.shape import Shape
from hlo_run.ops.layouts import KEEPS_LAYOUT

Order: TypeAlias = tuple[int, ...]
Value: TypeAlias = "tuple[HloInstruction, ShapeIndex]"
# Operand number and place in the operand of a user; a user of None is the computation's result.
Use: TypeAlias = "tuple[HloInstruction | None, int, ShapeIndex]"

# Their elements are other values under another name.
_NAMES = frozenset(("tuple", "get-tuple-element", *FORWARDING)) - {"bitcast"}


def leaf_at(shape: Shape, index: ShapeIndex) -> Shape:
    """Return the shape at `index` of a tuple."""
    for number in index:
        shape = shape.tuple_shapes[number]
    return shape


def value_behind(instruction: HloInstruction, index: ShapeIndex) -> Value:
    """Return the value that stands at `index`; a bitcast makes a value of its own here, since it may change the layout."""
    while instruction.opcode in _NAMES:
        if instruction.opcode == "tuple":
            instruction, index = instruction.operands[index[0]], index[1:]
        elif instruction.opcode == "get-tuple-element":
            instruction, index = instruction.operands[0], (instruction.attrs["index"], *index)
        else:
            instruction = instruction.operands[0]
    return instruction, index


@dataclass
class LayoutPropagation:
    """The layouts of one computation: `values` of those made in it, `uses` of what instructions ask of their operands.

    `pin_value` and `pin_use` ask for a layout that stays; `run` spreads them, and settles all the others.
    """

    computation: HloComputation
    values: dict[Value, Order] = field(default_factory=dict["Value", Order])
    uses: dict[Use, Order] = field(default_factory=dict["Use", Order])
    _pinned: set[Value | Use] = field(default_factory=set["Value | Use"])
    _waiting: deque[Value | Use] = field(default_factory=deque["Value | Use"])
    _later: deque[Use] = field(default_factory=deque["Use"])
    _users: dict[Value, list[Use]] = field(default_factory=dict["Value", "list[Use]"])
    # Instructions and ranks whose operands of that rank have all been asked for.
    _asked: set[tuple[HloInstruction, int]] = field(default_factory=set[tuple[HloInstruction, int]])

    def pin_value(self, value: Value, order: Order) -> None:
        """Let a value have a layout for good."""
        self.values[value] = order
        self._pinned.add(value)
        self._waiting.append(value)

    def pin_use(self, use: Use, order: Order) -> None:
        """Let a user have its operand in a layout for good."""
        self.uses[use] = order
        self._pinned.add(use)
        self._waiting.append(use)

    def run(self) -> None:
        """Settle all values and uses."""
        order = self.computation.post_order()
        for instruction in order:
            if instruction.opcode not in _NAMES:
                for number, operand in enumerate(instruction.operands):
                    self._note_uses(instruction, number, operand)
        self._note_uses(None, 0, self.computation.root)
        self._spread()
        for instruction in order:
            if instruction.opcode in _NAMES:
                continue
            for index, leaf in instruction.shape.leaves():
                if leaf.is_array and (instruction, index) not in self.values:
                    self._set_value((instruction, index), tuple(reversed(range(leaf.rank))), first=True)
                    self._spread()

    def _note_uses(self, user: HloInstruction | None, number: int, operand: HloInstruction) -> None:
        for index, leaf in operand.shape.leaves():
            if leaf.is_array:
                self._users.setdefault(value_behind(operand, index), []).append((user, number, index))

    def _spread(self) -> None:
        while self._waiting or self._later:
            item = self._waiting.popleft() if self._waiting else self._later.popleft()
            if len(item) == 2:
                self._from_value(item)
            else:
                self._from_use(item)

    def _set_value(self, value: Value, order: Order, first: bool) -> None:
        if value not in self.values:
            self.values[value] = order
            self._push(value, first)

    def _set_use(self, use: Use, order: Order, first: bool) -> None:
        if use not in self.uses:
            self.uses[use] = order
            self._push(use, first)

    def _push(self, item: Value | Use, first: bool) -> None:
        if first:
            self._waiting.appendleft(item)
        else:
            self._waiting.append(item)

    def _from_value(self, value: Value) -> None:
        """Spread from a value to its users, and to the operands of what makes it."""
        order = self.values[value]
        for use in self._users.get(value, ()):
            user = use[0]
            if user is None or not _is_broadcast_of_arrays(user):
                self._set_use(use, order, first=False)
        instruction, index = value
        if index or instruction.opcode in _FIXED:
            return
        if _is_broadcast_of_arrays(instruction) or _is_reduce_by_rows(instruction):
            # It holds from now on, but all that is asked for otherwise spreads before it does.
            if (use := (instruction, 0, ())) not in self.uses:
                self.uses[use] = _order_by_result(instruction, order)
                self._later.append(use)
            return
        for number, operand in enumerate(instruction.operands):
            if operand.shape.is_array:
                wanted = _operand_order(instruction, operand.shape, order)
                if wanted is not None:
                    self._set_use((instruction, number, ()), wanted, first=_goes_deep(instruction))

    def _from_use(self, use: Use) -> None:
        """Spread from a use to the value that is used, to the user's other operands and its results."""
        user, number, index = use
        order = self.uses[use]
        operand = self.computation.root if user is None else user.operands[number]
        value = value_behind(operand, index)
        if not _reduces_several(value[0]):
            self._set_value(value, order, first=True)
        if user is None or index or user.opcode in _FIXED:
            return
        if (user.opcode in KEEPS_LAYOUT or user.opcode == "reduce") and (user, operand.shape.rank) not in self._asked:
            self._asked.add((user, operand.shape.rank))
            # A reduction of several arrays goes through all of them in one order.
            for other, sibling in enumerate(user.operands):
                if sibling.shape.is_array and sibling.shape.rank == operand.shape.rank:
                    self._set_use((user, other, ()), order, first=True)
        for place, leaf in user.shape.leaves():
            wanted = _result_order(user, operand.shape, leaf, order) if leaf.is_array else None
            if wanted is not None:
                self._set_value((user, place), wanted, first=_goes_deep(user))


# What they take and give is settled by themselves, whatever comes in.
_FIXED = frozenset(("bitcast", "call", "conditional", "custom-call", "fusion", "while", "async-start"))


def _goes_deep(instruction: HloInstruction) -> bool:
    """True if layouts spread through it before anything else."""
    if instruction.opcode == "reshape":
        return instruction.operands[0].shape.rank == 1
    return instruction.opcode in KEEPS_LAYOUT or instruction.opcode in ("gather", "transpose")


def _operand_order(instruction: HloInstruction, operand: Shape, order: Order) -> Order | None:
    """Return the layout that an operand best has if the result has `order`; None if it does not matter."""
    if instruction.opcode in KEEPS_LAYOUT:
        return order if operand.rank == instruction.shape.rank else None
    if operand.rank == 1:
        return (0,)
    if instruction.opcode == "reshape":
        return aligned_order(Shape.array("f32", instruction.shape.dims, order), operand.dims) if operand.element_count else None
    if instruction.opcode == "transpose":
        return tuple(instruction.attrs["dimensions"][dim] for dim in order)
    return None


def _is_broadcast_of_arrays(instruction: HloInstruction) -> bool:
    """True for a broadcast that takes its operand as the result wants it, even if that must be copied."""
    return instruction.opcode == "broadcast" and instruction.operands[0].shape.rank > 1


def _reduces_several(instruction: HloInstruction) -> bool:
    """True for a reduction of several arrays, whose results lie alike: their operands say how, not those who use one."""
    return instruction.opcode in ("reduce", "reduce-window") and instruction.shape.is_tuple


def _is_reduce_by_rows(instruction: HloInstruction) -> bool:
    """True for a reduce that asks, when its result is settled before its operand is, for an operand whose rows it reduces.

    It does if a row keeps a warp busy.
    """
    if instruction.opcode != "reduce" or not instruction.shape.is_array or instruction.shape.rank < 2:
        return False
    return instruction.operands[0].shape.element_count >= WARP_SIZE * max(instruction.shape.element_count, 1)


def _order_by_result(instruction: HloInstruction, order: Order) -> Order:
    """Return the layout of the operand: dimensions follow each other as in the result, those that are reduced come last."""
    dims: Order = instruction.attrs["dimensions"]
    if instruction.opcode == "broadcast":
        return tuple(dims.index(dim) for dim in order if dim in dims)
    kept = [dim for dim in range(instruction.operands[0].shape.rank) if dim not in dims]
    return (*sorted(dims, reverse=True), *(kept[dim] for dim in order))


def _result_order(user: HloInstruction, operand: Shape, result: Shape, order: Order) -> Order | None:
    """Return the layout that a result best has if an operand has `order`; None if it does not matter."""
    if user.opcode in KEEPS_LAYOUT:
        return order if operand.rank == result.rank else None
    if user.opcode == "reshape":
        if result.rank == 1:
            return (0,)
        return aligned_order(Shape.array("f32", operand.dims, order), result.dims) if operand.element_count else None
    if user.opcode == "transpose":
        permutation: Order = user.attrs["dimensions"]
        return tuple(permutation.index(dim) for dim in order)
    return None
