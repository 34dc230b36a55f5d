"""Chooses the layout of every array of a computation so that few arrays must be copied to another layout.

A layout spreads from a constraint: to users of the value, to the operands of its instruction, through transposes and reshapes
so that they move no bytes, from results to the operands of broadcasts, and of reduces so that they reduce rows. Values that no
constraint reaches get the default layout. This is the engine of XLA's `LayoutAssignment`: the last constraint spreads first
and as far as possible (`_waiting` is a stack). Wishes yield to demands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.analysis.bitcast_kind import aligned_order
from hlo_run.analysis.defining_value import ShapeIndex
from hlo_run.analysis.tiling.reduction_description import WARP_SIZE
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW, KEEPS_LAYOUT
from hlo_run.hlo.values.shape import Shape

Order: TypeAlias = tuple[int, ...]
Value: TypeAlias = "tuple[HloInstruction, ShapeIndex]"
# User, operand number and shape index in the operand. A user of None is the computation's result.
Use: TypeAlias = "tuple[HloInstruction | None, int, ShapeIndex]"
# An item to spread: a value, or all arrays of an operand (its use at `()`).
_Item: TypeAlias = "Value | Use"

# Their elements are other values under another name.
NAMES = frozenset(("tuple", "get-tuple-element", "opt-barrier", "add-dependency"))
# The number of times that a wish may replace a wish. The bound ensures that propagation ends.
_MAX_CHANGES = 2


def leaf_at(shape: Shape, index: ShapeIndex) -> Shape:
    """Return the shape at `index` of a tuple."""
    for number in index:
        shape = shape.tuple_shapes[number]
    return shape


def value_behind(instruction: HloInstruction, index: ShapeIndex) -> Value:
    """Return the value at `index`. A bitcast defines a new value here, since it may change the layout."""
    while instruction.opcode in NAMES:
        if instruction.opcode == "tuple":
            instruction, index = instruction.operands[index[0]], index[1:]
        elif instruction.opcode == "get-tuple-element":
            instruction, index = instruction.operands[0], (instruction.tuple_index, *index)
        else:
            instruction = instruction.operands[0]
    return instruction, index


class _State(Struct):
    """The strength of a layout. A `weak` one yields to any other wish. `changes` counts the wishes that replaced wishes."""

    pinned: bool = False
    demanded: bool = False
    deep: bool = True
    weak: bool = False
    changes: int = 0


class LayoutPropagation(Struct):
    """The layouts of one computation: `values` of its values, `uses` of its instructions' operands.

    `pin_value`, `pin_use` and `pin_result` add constraints, which never change. `run` spreads them, the last one first, and
    settles all other layouts.
    """

    computation: HloComputation
    values: dict[Value, Order] = field(default_factory=dict["Value", Order])
    uses: dict[Use, Order] = field(default_factory=dict["Use", Order])
    _states: dict[Value | Use, _State] = field(default_factory=dict["Value | Use", _State])
    _waiting: deque[_Item] = field(default_factory=deque["_Item"])
    # The items added since the last one was taken, and whether each spreads before or after all waiting items.
    _added: list[tuple[_Item, bool]] = field(default_factory=list["tuple[_Item, bool]"])
    _users: dict[Value, list[tuple[HloInstruction, int]]] = field(
        default_factory=dict["Value", "list[tuple[HloInstruction, int]]"]
    )

    # Wishes that were passed to all operands of an instruction, and the largest operand of each concatenate.
    _asked: set[tuple[HloInstruction, Order, bool]] = field(default_factory=set[tuple[HloInstruction, Order, bool]])
    _largest: dict[HloInstruction, int] = field(default_factory=dict["HloInstruction", int])

    def pin_value(self, value: Value, order: Order) -> None:
        """Fix the layout of a value."""
        self.values[value] = order
        self._states[value] = _State(pinned=True, demanded=True)
        self._added.append((value, True))

    def pin_use(self, user: HloInstruction, number: int, orders: dict[ShapeIndex, Order]) -> None:
        """Fix the layouts of the arrays of an operand of `user`."""
        self._pin(user, number, orders)

    def pin_result(self, orders: dict[ShapeIndex, Order]) -> None:
        """Fix the layouts of the computation's result."""
        self._pin(None, 0, orders)

    def _pin(self, user: HloInstruction | None, number: int, orders: dict[ShapeIndex, Order]) -> None:
        for index, order in orders.items():
            self.uses[user, number, index] = order
            self._states[user, number, index] = _State(pinned=True, demanded=True)
        self._added.append(((user, number, ()), True))

    def run(self) -> None:
        """Settle the layouts of all values and uses."""
        order = self.computation.post_order()
        for instruction in order:
            if instruction.opcode not in NAMES:
                for number, operand in enumerate(instruction.operands):
                    if operand.shape.is_array:
                        self._users.setdefault(value_behind(operand, ()), []).append((instruction, number))
        self._spread()
        for instruction in order:
            if instruction.opcode in NAMES:
                continue
            for index, leaf in instruction.shape.leaves():
                if leaf.is_array and (instruction, index) not in self.values:
                    self._ask_value((instruction, index), tuple(reversed(range(leaf.rank))))
                    self._spread()

    def _spread(self) -> None:
        self._take_added()
        while self._waiting:
            item = self._waiting.popleft()
            if len(item) == 2:
                self._from_value(item)
            else:
                self._from_operand(item[0], item[1])
            self._take_added()

    def _take_added(self) -> None:
        for item, first in self._added:
            if first:
                self._waiting.appendleft(item)
            else:
                self._waiting.append(item)
        self._added.clear()

    def _add(self, item: _Item, state: _State) -> None:
        """Queue a layout. Items that go deep are taken in the order of requests, the others before them, strong ones first."""
        if state.deep:
            self._added.append((item, True))
            return
        place = len(self._added)
        while place and self._is_weaker(self._added[place - 1][0], state):
            place -= 1
        self._added.insert(place, (item, False))

    def _is_weaker(self, item: _Item, than: _State) -> bool:
        return self._states[item].weak and not than.weak if item in self._states else False

    def _ask_value(self, value: Value, order: Order, wish: _State | None = None) -> None:
        """Set the layout of a value, unless it has another one that the wish cannot replace."""
        new = wish or _State()
        old = self._states.get(value)
        if old is None:
            self._states[value] = old = new
        elif self.values[value] == order:
            held = (old.demanded, old.deep, old.weak)
            old.demanded, old.deep, old.weak = old.demanded or new.demanded, old.deep or new.deep, old.weak and new.weak
            if held == (old.demanded, old.deep, old.weak):
                return
        else:
            if old.pinned or not (new.demanded or self._yields(value, old, new)):
                return
            old.demanded, old.deep, old.weak, old.changes = new.demanded, new.deep, new.weak, old.changes + 1
        self.values[value] = order
        self._add(value, old)

    def _yields(self, value: Value, old: _State, new: _State) -> bool:
        return old.weak and not new.weak and old.changes < _MAX_CHANGES and value[0].shape.is_array

    def _ask_use(self, user: HloInstruction, number: int, order: Order, wish: _State) -> None:
        """Set the layout of an operand for a user, unless it has another one of at least the same strength."""
        use = (user, number, ())
        if not wish.demanded and _minds_less(user, number):
            wish.deep, wish.weak = False, True
        old = self._states.get(use)
        if old is not None and (old.pinned or self.uses[use] == order or not wish.demanded or (wish.weak and not old.weak)):
            return
        self.uses[use], self._states[use] = order, wish
        self._add(use, wish)

    def _from_value(self, value: Value) -> None:
        """Spread from a value to its instruction's operands and to its users."""
        order = self.values[value]
        instruction, index = value
        if not index and instruction.opcode not in _FIXED and instruction.shape.is_array and instruction.shape.rank > 1:
            for number, operand in enumerate(instruction.operands):
                if operand.shape.is_array and operand.shape.rank > 1:
                    self._from_result_to_operand(instruction, number, order)
        weak = self._states[value].weak
        for user, number in self._users.get(value, ()):
            self._ask_use(user, number, order, _State(weak=weak))
        self._from_carried_value(value)

    def _from_carried_value(self, value: Value) -> None:
        """Spread from the value that a loop's body returns to the parameter that has it in the next iteration."""
        instruction, index = value
        root, callers = self.computation.root, self.computation.callers
        if root.opcode == "tuple" and root in instruction.users and len(callers) == 1 and callers[0].opcode == "while":
            place = root.operands.index(instruction)
            self._ask_value((self.computation.parameters[0], (place, *index)), self.values[value])

    def _from_result_to_operand(self, instruction: HloInstruction, number: int, order: Order) -> None:
        operand = instruction.operands[number].shape
        if instruction.opcode in KEEPS_LAYOUT:
            if operand.rank == instruction.shape.rank:
                self._ask_use(instruction, number, order, _State(demanded=True))
        elif instruction.opcode == "broadcast":
            self._ask_use(instruction, number, _order_by_result(instruction, order), _State(demanded=True, deep=False))
        elif (wanted := _operand_order(instruction, operand, order)) is not None:
            self._ask_use(instruction, number, wanted, _State(deep=_goes_deep(instruction)))

    def _from_operand(self, user: HloInstruction | None, number: int) -> None:
        """Spread from an operand to the values in it, and to the user's other operands and results."""
        operand = self.computation.root if user is None else user.operands[number]
        # `uses` omits arrays of dynamic sizes, which may have any layout.
        leaves = [index for index, _ in operand.shape.leaves() if (user, number, index) in self.uses]
        if operand.shape.is_array and operand.shape.rank < 2 and user is not None:
            return
        weak = self._states[user, number, leaves[0]].weak if leaves else False
        for index in leaves:
            value = value_behind(operand, index)
            if not _reduces_several(value[0]):
                self._ask_value(value, self.uses[user, number, index], _State(weak=weak))
        if user is None or not leaves or not operand.shape.is_array or user.opcode in _FIXED:
            return
        order = self.uses[user, number, ()]
        if user.opcode in KEEPS_LAYOUT or user.opcode == "reduce":
            self._from_operand_to_siblings(user, operand, order, weak)
            return
        for place, leaf in user.shape.leaves():
            wanted = _result_order(user, operand.shape, leaf, order) if leaf.is_array and leaf.rank > 1 else None
            if wanted is not None:
                demanded = user.opcode == "transpose"
                self._ask_value((user, place), wanted, _State(demanded=demanded, deep=_goes_deep(user), weak=weak))

    def _from_operand_to_siblings(self, user: HloInstruction, operand: HloInstruction, order: Order, weak: bool) -> None:
        """Give operands and results of the same rank the same layout."""
        if user.opcode == "concatenate":
            # The largest operand decides.
            dim: int = user.dimensions[0]
            if user not in self._largest:
                self._largest[user] = max(other.shape.dims[dim] for other in user.operands)
            if operand.shape.dims[dim] < self._largest[user]:
                return
        # Avoids quadratic work if each of many operands passes the same wish to all others.
        if (user, order, weak) in self._asked:
            return
        self._asked.add((user, order, weak))
        for other, sibling in enumerate(user.operands):
            if sibling is not operand and sibling.shape.is_array and sibling.shape.rank == operand.shape.rank:
                self._ask_use(user, other, order, _State(demanded=True, weak=weak))
        for place, leaf in user.shape.leaves():
            if leaf.is_array and leaf.rank == operand.shape.rank:
                self._ask_value((user, place), order, _State(demanded=True, weak=weak))


# Their layouts are settled elsewhere, regardless of their operands' layouts.
_FIXED = CONTROL_FLOW | {"bitcast", "custom-call", "fusion"}


def _goes_deep(instruction: HloInstruction) -> bool:
    """True if a layout of this instruction spreads before others."""
    if instruction.opcode == "reshape":
        source = instruction.operands[0].shape
        return source.rank == 1 or _without_ones(source) == _without_ones(instruction.shape)
    return instruction.opcode in ("gather", "scatter", "transpose")


def _reduces_several(instruction: HloInstruction) -> bool:
    """True for a reduction of several arrays. Its operands, not users of one result, decide the layout of all results."""
    return instruction.opcode in ("reduce", "reduce-window") and instruction.shape.is_tuple


def _without_ones(shape: Shape) -> Sequence[int]:
    return [size for size in shape.dims if size != 1]


def _minds_less(user: HloInstruction, number: int) -> bool:
    """True for operands that are small parts of the result, and for reshapes of slices."""
    if user.opcode == "dynamic-update-slice":
        return number > 0
    return user.opcode == "reshape" and user.operands[0].opcode == "dynamic-slice"


def _operand_order(instruction: HloInstruction, operand: Shape, order: Order) -> Order | None:
    """Return the best layout of an operand if the result has `order`; None if it does not matter."""
    match instruction.opcode:
        case "reshape":
            return _reshaped(Shape.array("f32", instruction.shape.dims, order), operand)
        case "transpose":
            return tuple(instruction.dimensions[dim] for dim in order)
        case "reduce" if _is_by_rows(instruction):
            return _order_by_result(instruction, order)
        case _:
            return None


def _is_by_rows(reduce: HloInstruction) -> bool:
    """True for a reduce that prefers to reduce contiguous rows, which are long enough to occupy a warp."""
    source = reduce.operands[0].shape
    return source.element_count >= WARP_SIZE * max(reduce.shape.element_count, 1)


def _order_by_result(instruction: HloInstruction, order: Order) -> Order:
    """Return the operand's layout with kept dimensions in the order of the result and reduced dimensions innermost."""
    dims: Order = instruction.dimensions
    if instruction.opcode == "broadcast":
        return tuple(dims.index(dim) for dim in order if dim in dims)
    kept = [dim for dim in range(instruction.operands[0].shape.rank) if dim not in dims]
    return (*sorted(dims, reverse=True), *(kept[dim] for dim in order))


def _result_order(user: HloInstruction, operand: Shape, result: Shape, order: Order) -> Order | None:
    """Return the best layout of a result if an operand has `order`; None if it does not matter."""
    match user.opcode:
        case "reshape":
            return _reshaped(Shape.array("f32", operand.dims, order), result)
        case "transpose":
            permutation: Order = user.dimensions
            return tuple(permutation.index(dim) for dim in order)
        case _:
            return None


def _reshaped(source: Shape, target: Shape) -> Order | None:
    """Return the layout in which `target` is a bitcast of `source`. None without one, or if both have one dimension above 1."""
    if not source.element_count or len(_without_ones(source)) == len(_without_ones(target)) == 1:
        return None
    return aligned_order(source, target.dims)
