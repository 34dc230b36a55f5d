"""Chooses the layout of every array of a computation so that few arrays must be copied to another layout.

A layout spreads from a constraint: to users of the value, to the operands of its instruction, through transposes and reshapes
so that they move no bytes, from results to the operands of broadcasts, and of reduces so that they reduce rows. Values that no
constraint reaches get the default layout. This is the engine of XLA's `LayoutAssignment`: the last constraint spreads first
and as far as possible (`_waiting` is a stack). Wishes yield to demands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.analysis.bitcast_kind import aligned_order
from hlo_run.analysis.layout.linked_loops import NAMES, CarriedArray, Value, carried_arrays, linked_loops, value_behind
from hlo_run.analysis.tiling.reduction_description import WARP_SIZE
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW, KEEPS_LAYOUT
from hlo_run.hlo.values.shape import Shape, ShapeIndex

Order: TypeAlias = tuple[int, ...]
# User, operand number and shape index in the operand. A user of None is the computation's result.
Use: TypeAlias = "tuple[HloInstruction | None, int, ShapeIndex]"
# An item to spread: a value, or all arrays of an operand (its use at `()`).
_Item: TypeAlias = "Value | Use"

# The number of changes after which a wish replaces nothing. The bound ensures that propagation ends.
_MAX_CHANGES = 2
# Operands that mind less lower the priority down to this one.
_LOWEST_PRIORITY = -2


def leaf_at(shape: Shape, index: ShapeIndex) -> Shape:
    """Return the shape at `index` of a tuple."""
    for number in index:
        shape = shape.tuple_shapes[number]
    return shape


class _State(Struct):
    """The strength of a layout: a wish (not `mandatory`) replaces only a wish or a demand of lower priority.

    A `deep` layout spreads before all others. `changes` counts the layouts that this one replaced.
    """

    mandatory: bool
    deep: bool
    priority: int
    changes: int = 0


class LayoutPropagation(Struct):
    """The layouts of a computation and of its loops' bodies and conditions, which all are `members`, callees first.

    `values` are the layouts of values, `uses` those of operands, `carried` those of the arrays that a loop carries. `pin_value`,
    `pin_use`, `pin_instruction` and `pin_result` add constraints; a later one replaces an earlier one. `run` spreads them, the
    last one first, and settles all other layouts. An operand of several arrays has one constraint.
    """

    members: list[HloComputation]
    values: dict[Value, Order] = field(default_factory=dict["Value", Order])
    uses: dict[Use, Order] = field(default_factory=dict["Use", Order])
    carried: dict[HloInstruction, dict[ShapeIndex, Order]] = field(
        default_factory=dict["HloInstruction", "dict[ShapeIndex, Order]"]
    )
    _states: dict[_Item, _State] = field(default_factory=dict["_Item", _State])
    _waiting: deque[_Item] = field(default_factory=deque["_Item"])
    # The items added since the last one was taken, their priorities, and whether each spreads before or after all waiting items.
    _added: list[tuple[_Item, int, bool]] = field(default_factory=list["tuple[_Item, int, bool]"])
    # The arrays that are another name of a value.
    _names: dict[Value, list[HloInstruction]] = field(default_factory=dict["Value", "list[HloInstruction]"])

    # What each loop carries, by the place of the loop, the loops of a value, and the loops with a value that got a layout.
    _loops: list[list[CarriedArray]] = field(default_factory=list["list[CarriedArray]"])
    _loops_of: dict[Value, set[int]] = field(default_factory=dict["Value", "set[int]"])
    _unequal: set[int] = field(default_factory=set[int])

    # The last layout that was passed to all operands of an instruction, and the largest operand of each concatenate.
    _asked: dict[HloInstruction, tuple[Order, int]] = field(default_factory=dict["HloInstruction", tuple[Order, int]])
    _largest: dict[HloInstruction, int] = field(default_factory=dict["HloInstruction", int])

    def pin_value(self, value: Value, order: Order) -> None:
        """Demand a layout of a value."""
        self._ask_value(value, order, mandatory=True)

    def pin_use(self, user: HloInstruction, number: int, orders: dict[ShapeIndex, Order]) -> None:
        """Demand layouts of the arrays of an operand of `user`."""
        self._pin((user, number, ()), orders)

    def pin_instruction(self, instruction: HloInstruction, order: Order) -> None:
        """Demand a layout of an array, and of the operands of the same rank if the instruction keeps layouts."""
        self.pin_value((instruction, ()), order)
        if instruction.opcode in KEEPS_LAYOUT:
            for number, operand in enumerate(instruction.operands):
                if operand.shape.is_array and operand.shape.rank == instruction.shape.rank:
                    self._ask_use(instruction, number, order, mandatory=True)

    def pin_result(self, orders: dict[ShapeIndex, Order]) -> None:
        """Demand layouts of the computation's result."""
        self._pin((None, 0, ()), orders)

    def _pin(self, use: Use, orders: dict[ShapeIndex, Order]) -> None:
        user, number, _ = use
        if use in self._states and all(self.uses.get((user, number, index)) == order for index, order in orders.items()):
            return
        for index, order in orders.items():
            self.uses[user, number, index] = order
        self._states[use] = _State(mandatory=True, deep=True, priority=0)
        self._add(use, self._states[use])

    def run(self) -> None:
        """Settle the layouts of all values and uses."""
        for instruction in (instruction for member in self.members for instruction in member.instructions):
            if instruction.shape.is_array:
                self._names.setdefault(value_behind(instruction, ()), []).append(instruction)
        loops = list(linked_loops(self.members))
        self._loops = [carried_arrays(loop) for loop in loops]
        for place, arrays in enumerate(self._loops):
            for value in (value for array in arrays for value in array.values):
                self._loops_of.setdefault(value, set()).add(place)
        self._unequal.update(range(len(loops)))
        self._spread()
        for instruction in (instruction for member in self.members for instruction in member.post_order()):
            if instruction.opcode in NAMES:
                continue
            for index, leaf in instruction.shape.leaves():
                if leaf.is_array and (instruction, index) not in self.values:
                    default = tuple(reversed(range(leaf.rank)))
                    self._ask_value((instruction, index), leaf.minor_to_major if instruction.opcode == "constant" else default)
                    self._spread()

        for loop, arrays in zip(loops, self._loops, strict=True):
            self.carried[loop] = {array.result[1]: self.values[array.parameter] for array in arrays}
            for array in arrays:
                order = self.values[array.parameter]
                self.values[array.in_condition] = self.values[array.result] = order
                self.uses[loop, 0, array.result[1]] = order

    def _spread(self) -> None:
        """Spread all layouts; when nothing is left, give names of one array in a loop one layout, and spread those."""
        self._spread_waiting()
        while self._unequal:
            place = min(self._unequal)
            if self._equal(self._loops[place]):
                self._spread_waiting()
            else:
                self._unequal.remove(place)

    def _equal(self, arrays: list[CarriedArray]) -> bool:
        """Give names of arrays without a layout the layout of another name: of the loop's result, or if it has none, of any.

        If the result has none to give, names other than the initial value take the layout of the body's parameter, even if they
        have another one.
        """
        taken = [array for array in arrays if self._take_over(array, array.result)]
        return bool(taken or [array for array in arrays if self._settle(array)])

    def _settle(self, array: CarriedArray) -> bool:
        names = (array.parameter, array.returned, array.initial, array.in_condition)
        known = next((name for name in names if name in self.values), None)
        return known is not None and (self._take_over(array, known) | self._agree_with_parameter(array))

    def _take_over(self, array: CarriedArray, known: Value) -> bool:
        """Give names without a layout the layout of `known`, if it has one. Return True if there are any."""
        unknown = [name for name in array.values if name not in self.values] if known in self.values else []
        for name in unknown:
            self._ask_value(name, self.values[known], priority=self._states[known].priority)
        return bool(unknown)

    def _agree_with_parameter(self, array: CarriedArray) -> bool:
        """Demand the layout of the body's parameter of what the body returns, of the condition's parameter and of the result."""
        order = self.values[array.parameter]
        others = [
            name
            for name in (array.in_condition, array.returned, array.result)
            if self.values[name] != order and self._states[name].changes < _MAX_CHANGES
        ]
        for name in others:
            priority = self._states[name].priority + 1
            self._ask_value(name, order, mandatory=True, priority=priority)
            for user, number in self._users(name):
                self._ask_use(user, number, order, mandatory=True, priority=priority)
        return bool(others)

    def _users(self, value: Value) -> Iterator[tuple[HloInstruction, int]]:
        """Yield the instructions that compute with a value, and the numbers of their operands."""
        for name in self._names.get(value, ()):
            for user in name.users:
                if user.opcode not in NAMES:
                    yield from ((user, number) for number, operand in enumerate(user.operands) if operand is name)

    def _spread_waiting(self) -> None:
        self._take_added()
        while self._waiting:
            item = self._waiting.popleft()
            if len(item) == 2:
                self._from_value(item)
            else:
                self._from_operand(item[0], item[1])
            self._take_added()

    def _take_added(self) -> None:
        for item, _, first in self._added:
            if first:
                self._waiting.appendleft(item)
            else:
                self._waiting.append(item)
        self._added.clear()

    def _add(self, item: _Item, state: _State) -> None:
        """Queue a layout. Deep ones are taken in the order of requests, the others behind them by priority."""
        place = len(self._added)
        while not state.deep and place and state.priority > self._added[place - 1][1]:
            place -= 1
        self._added.insert(place, (item, state.priority, state.deep))

    def _ask_value(self, value: Value, order: Order, mandatory: bool = False, deep: bool = True, priority: int = 0) -> None:
        """Set the layout of a value, unless it has another one that a wish cannot replace."""
        old = self._states.get(value)
        if old is None:
            self._states[value] = old = _State(mandatory, deep, priority)
            self._unequal |= self._loops_of.get(value, set())
        elif self.values[value] == order:
            new = _State(old.mandatory or mandatory, old.deep or deep, max(old.priority, priority), old.changes)
            if old == new:
                return
            self._states[value] = old = new
        else:
            is_strong = priority > old.priority and old.changes < _MAX_CHANGES and value[0].shape.is_array
            if not mandatory and not is_strong:
                return
            self._states[value] = old = _State(mandatory, deep, priority, old.changes + 1)
            self._asked.pop(value[0], None)
        self.values[value] = order
        if len(order) > 1:
            self._add(value, old)

    def _ask_use(
        self, user: HloInstruction, number: int, order: Order, mandatory: bool = False, deep: bool = True, priority: int = 0
    ) -> None:
        """Set the layout of an operand for a user, unless it has another one of higher priority; a wish replaces nothing."""
        if not mandatory and _minds_less(user, number, priority):
            deep, priority = False, priority - 1
        use = (user, number, ())
        old = self._states.get(use)
        if old is not None:
            if not mandatory or self.uses[use] == order or old.priority > priority:
                return
            self._asked.pop(user, None)
        self.uses[use], self._states[use] = order, _State(mandatory, deep, priority)
        self._add(use, self._states[use])

    def _from_value(self, value: Value) -> None:
        """Spread from a value to its instruction's operands and to its users."""
        order = self.values[value]
        instruction, index = value
        priority = self._states[value].priority
        if instruction.opcode == "all-reduce":
            self._ask_use(instruction, index[0] if index else 0, order, mandatory=True, priority=priority)
        elif instruction.opcode not in _FIXED:
            for number, operand in enumerate(instruction.operands):
                if operand.shape.is_array and operand.shape.rank > 1:
                    self._from_result_to_operand(instruction, index, number, order)
        for user, number in self._users(value):
            self._ask_use(user, number, order, priority=priority)
        self._from_carried_value(value)

    def _from_carried_value(self, value: Value) -> None:
        """Spread from the value that a loop's body returns to the parameter that has it in the next iteration."""
        instruction, index = value
        computation = instruction.parent
        assert computation is not None, "the value is in a computation"
        root, callers = computation.root, computation.callers
        if root.opcode == "tuple" and root in instruction.users and len(callers) == 1 and callers[0].opcode == "while":
            place = root.operands.index(instruction)
            self._ask_value((computation.parameters[0], (place, *index)), self.values[value])

    def _from_result_to_operand(self, instruction: HloInstruction, index: ShapeIndex, number: int, order: Order) -> None:
        operand = instruction.operands[number].shape
        if instruction.opcode in KEEPS_LAYOUT:
            if operand.rank == len(order):
                self._ask_use(instruction, number, order, mandatory=True)
        elif instruction.opcode == "broadcast":
            self._ask_use(instruction, number, _order_by_result(instruction, order), mandatory=True, deep=False)
        elif not index and (wanted := _operand_order(instruction, operand, order)) is not None:
            self._ask_use(instruction, number, wanted, deep=_goes_deep(instruction))

    def _from_operand(self, user: HloInstruction | None, number: int) -> None:
        """Spread from an operand to the values in it, and to the user's other operands and results."""
        operand = self.members[-1].root if user is None else user.operands[number]
        if operand.shape.is_array and operand.shape.rank < 2:
            return
        priority = self._states[user, number, ()].priority
        # `uses` omits arrays of dynamic sizes, which may have any layout.
        leaves = [index for index, _ in operand.shape.leaves() if (user, number, index) in self.uses]
        for index in leaves:
            value = value_behind(operand, index)
            if value[0].opcode != "reduce" or not value[0].shape.is_tuple:
                self._ask_value(value, self.uses[user, number, index], priority=priority)
        if user is None or not leaves or not operand.shape.is_array or user.opcode in _FIXED:
            return
        order = self.uses[user, number, ()]
        if user.opcode == "all-reduce":
            self._ask_value((user, (number,) if len(user.operands) > 1 else ()), order, mandatory=True)
        if user.opcode in KEEPS_LAYOUT or user.opcode == "reduce":
            self._from_operand_to_siblings(user, operand, order, priority)
            return
        for place, leaf in user.shape.leaves():
            wanted = _result_order(user, operand.shape, leaf, order) if leaf.is_array and leaf.rank > 1 else None
            if wanted is not None:
                mandatory = user.opcode == "transpose"
                self._ask_value((user, place), wanted, mandatory, _goes_deep(user), priority)

    def _from_operand_to_siblings(self, user: HloInstruction, operand: HloInstruction, order: Order, priority: int) -> None:
        """Give operands and results of the same rank the same layout."""
        if user.opcode == "concatenate":
            # The largest operand decides.
            dim: int = user.dimensions[0]
            if user not in self._largest:
                self._largest[user] = max(other.shape.dims[dim] for other in user.operands)
            if operand.shape.dims[dim] < self._largest[user]:
                return
        # Avoids quadratic work if each of many operands passes the same layout to all others.
        if self._asked.get(user) == (order, priority):
            return
        for other, sibling in enumerate(user.operands):
            if sibling is not operand and sibling.shape.is_array and sibling.shape.rank == operand.shape.rank:
                self._ask_use(user, other, order, mandatory=True, priority=priority)
        for place, leaf in user.shape.leaves():
            if leaf.is_array and leaf.rank == operand.shape.rank:
                self._ask_value((user, place), order, mandatory=True, priority=priority)
        self._asked[user] = order, priority


# Their layouts are settled elsewhere, regardless of their operands' layouts.
_FIXED = CONTROL_FLOW | opcode_set("bitcast custom-call fusion")


def _goes_deep(instruction: HloInstruction) -> bool:
    """True if a layout of this instruction spreads before others."""
    if instruction.opcode == "reshape":
        source = instruction.operands[0].shape
        return source.rank == 1 or _without_ones(source) == _without_ones(instruction.shape)
    return instruction.opcode in ("gather", "scatter", "transpose")


def _without_ones(shape: Shape) -> Sequence[int]:
    return [size for size in shape.dims if size != 1]


def _minds_less(user: HloInstruction, number: int, priority: int) -> bool:
    """True for operands that are small parts of the result, and for reshapes of slices."""
    if user.opcode == "dynamic-update-slice":
        return number > 0 and priority > _LOWEST_PRIORITY
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
    return aligned_order(source, target.dims, target.minor_to_major)
