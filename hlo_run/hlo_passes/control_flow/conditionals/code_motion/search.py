"""Finds the instructions that can cross the border of a conditional together, and weighs the move."""

from __future__ import annotations

from collections import deque

from hlo_run.analysis.value_keys import ValueKeys
from hlo_run.hlo.edit import copy_instruction, has_side_effect
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.control_flow.conditionals.code_motion.boundary import Boundary, moves_at_all, reuse, without_constants
from hlo_run.records import replace

# How many blocks of 512 bytes each moved instruction may add to what lives across the border.
_GROWTH = 5000
_BLOCK_BYTES = 512
# A longer way is not followed; the estimate is then that nothing is gained.
_LONGEST_WAY = 1000
_TRANSFERS: frozenset[Opcode] = frozenset(("send", "recv", "send-done", "recv-done"))


def _without_layout(leaf: Shape) -> Shape:
    return replace(leaf, layout=None)


class Queue:
    """Boundaries to visit in turn, each once."""

    def __init__(self, first: Boundary) -> None:
        self._waiting = deque([first])
        self._seen: set[Boundary] = set()

    def add(self, boundary: Boundary) -> None:
        """Add a boundary at the end."""
        self._waiting.append(boundary)

    def take(self) -> Boundary | None:
        """Return the next boundary, None if all are visited."""
        while self._waiting:
            boundary = self._waiting.popleft()
            if boundary not in self._seen:
                self._seen.add(boundary)
                return boundary
        return None


class Search:
    """One search from a boundary: the moving instructions, in the order of the visits, and the stops.

    `visits` counts visits of instructions that stay; the searches of a conditional share it.
    """

    def __init__(self, conditional: HloInstruction, sees_layouts: bool, visits: dict[HloInstruction, int]) -> None:
        self.moved: list[Boundary] = []
        self.stops: list[Boundary] = []
        self._growth = 0
        self._conditional = conditional
        self._branches = conditional.called_computations
        self._sees_layouts = sees_layouts
        self._keys = ValueKeys(sees_layouts)
        self._visits = visits
        self._feeds_out = any(value.opcode == "outfeed" for branch in self._branches for value in branch.instructions)
        parent = conditional.parent
        assert parent is not None, "the conditional is in a computation"
        self._root = parent.root
        inside = [value for branch in self._branches for value in branch.instructions]
        around = [*parent.instructions, *inside]
        self._ordered = {p for value in around for p in value.control_predecessors}

    def run(self, start: Boundary) -> None:
        """Search from a boundary. From the conditional itself, the stops are its branches' roots, its users and its operands."""
        conditional = self._conditional
        if start.first is not conditional:
            self._grow(start)
            return
        self.stops.append(Boundary(tuple(branch.root for branch in self._branches), "inside"))
        parent = conditional.parent
        assert parent is not None, "the conditional is in a computation"
        places = {value: place for place, value in enumerate(parent.instructions)}
        self.stops += [Boundary((user,), "user") for user in sorted(conditional.users, key=lambda user: places[user])]
        self.stops += [Boundary((operand,), "operand") for operand in conditional.operands[1:]]

    def forget(self) -> None:
        """Let later searches visit the stops as if this one had not."""
        for stop in self.stops:
            self._visits.pop(stop.first, None)

    # ---- what moves -------------------------------------------------------------------------------------------------

    def _grow(self, start: Boundary) -> None:
        queue = Queue(start)
        while (boundary := queue.take()) is not None:
            value = boundary.first
            may_move = boundary.place != "inside" or self._are_identical(boundary)
            if may_move and self._is_safe(boundary) and self._is_worth(boundary):
                self.moved.append(boundary)
                self._growth -= self._blocks(value)
                for number in range(boundary.next_count):
                    following = boundary.next(number)
                    queue.add(following)
                    self._growth += self._blocks(following.first)
            elif self._repeats(boundary):
                self.moved.append(boundary)
                self._growth -= self._blocks(value) - self._blocks(value.operands[0])
            else:
                self._visits[value] = 1
                self.stops.append(boundary)

    def _are_identical(self, boundary: Boundary) -> bool:
        """True if the branches' instructions do the same with operands of the same shapes."""
        keys = {self._key(value) for value in boundary.values}
        return len(keys) == 1

    def _key(self, value: HloInstruction) -> object:
        operands = tuple(
            operand.shape if self._sees_layouts else operand.shape.map_leaves(_without_layout) for operand in value.operands
        )
        if value.opcode != "all-reduce" or value.channel_id is None:
            return self._keys.of(value, operands)
        without_channel = copy_instruction(value, ())
        without_channel.attrs.pop("channel_id")
        key = self._keys.of(without_channel, operands)
        without_channel.called = {}  # no caller of its reducer
        return key

    def _is_safe(self, boundary: Boundary) -> bool:
        """True if all that depends on the boundary moves, too."""
        value = boundary.first
        count = len(value.users) if boundary.goes_by_operands else without_constants(value.operands)
        if count <= 1:
            is_choice = boundary.place == "operand" and value is self._conditional.operands[0]
            return not (is_choice and value.users[0] is self._conditional)
        if value not in self._visits:
            self._visits[value] = 1
            self.stops.append(boundary)
        elif len(boundary.values) == 1 or boundary in self.stops:
            self._visits[value] += 1
            if self._visits[value] == count:
                del self._visits[value]
                if boundary in self.stops:
                    self.stops.remove(boundary)
                return True
        return False

    def _is_worth(self, boundary: Boundary) -> bool:
        value, place = boundary.first, boundary.place
        if any(one.control_predecessors or one in self._ordered for one in boundary.values):
            return False
        if value.opcode == "broadcast" and place == "inside":
            below = boundary.next(0)
            if len({one.opcode for one in below.values}) > 1 or not self._are_identical(below):
                return False
        if value.opcode == "broadcast" and place == "user":
            return False
        if value.opcode == "tuple" and value is self._root:
            return False
        if place == "operand" and (
            (value.opcode == "tuple" and "sharding" in value.attrs)
            or len(value.users) > 1
            or has_side_effect(value)
            or value.opcode == "get-tuple-element"
        ):
            return False
        if place != "inside" and (value.opcode in COLLECTIVE or value.opcode in _TRANSFERS):
            return False
        return value.opcode != "parameter" and moves_at_all(value)

    def _repeats(self, boundary: Boundary) -> bool:
        """True for a broadcast among the operands that the last moved instruction uses: each branch gets its own."""
        if boundary.place != "operand" or boundary.first.opcode != "broadcast" or len(self.moved) < 2:
            return False
        last = self.moved[-1].first
        return last.opcode != "tuple" and last in boundary.first.users and not boundary.first.control_predecessors

    def _blocks(self, value: HloInstruction) -> int:
        """Return the memory of a value that counts: of reductions and what they read, and of all values beside an outfeed."""
        if value.shape.is_tuple or not value.shape.is_array:
            return 0
        if not self._feeds_out and value.opcode != "reduce" and all(user.opcode != "reduce" for user in value.users):
            return 0
        return value.shape.size_bytes // _BLOCK_BYTES

    # ---- what the move gains ------------------------------------------------------------------------------------------

    def benefit(self) -> int:
        """Return the gain of the move; less than 0 if the move should not be done."""
        gain = self._gain()
        if gain >= 0 and self._growth > 0 and self._growth // len(self.moved) > _GROWTH:
            return -1
        return gain

    def _gain(self) -> int:
        place, first = self.moved[0].place, self.moved[0].first
        if place != "user" and all(boundary.first.opcode == "tuple" for boundary in self.moved):
            return -1
        if len(self.moved) == 1 and place == "user" and first.opcode == "get-tuple-element":
            return -1
        root = self._branches[0].root
        values = [boundary.first for boundary in self.moved if boundary.first is not root]
        before = sum(self._before(value) for value in values)
        after = sum(self._after(value, 0 if place == "operand" else -1) for value in values)
        folded = sum(self._folded_copies(value) for value in values) if place == "user" else 0
        if not before and not after and not folded:
            return -1
        match place:
            case "inside":
                return after - before
            case "user":
                return before - after - 1 + folded
            case "operand":
                return int(after > 0)

    def _before(self, user: HloInstruction) -> int:
        """Return the reuses between a moved instruction and operands that stay."""
        total = 0
        for operand in user.operands:
            if operand not in self._visits and operand is not self._conditional:
                continue
            if user.opcode != "get-tuple-element":
                total += reuse(operand, user)
                continue
            source = operand
            if operand.opcode == "conditional" and operand.called_computations[0].root.opcode == "tuple":
                source = operand.called_computations[0].root.operands[user.tuple_index]
            if user.users:
                total += reuse(source, user.users[0])
        return total

    def _after(self, value: HloInstruction, index: int) -> int:
        """Return the reuses between a moved instruction and its only user, if that stays.

        Of an operand of the conditional, `index` is the element of the branches' parameter that it becomes: it is worth moving if
        not all branches use it.
        """
        for _ in range(_LONGEST_WAY):
            if value.opcode == "constant" or not value.users or (index < 0 and len(value.users) > 1):
                return 0
            user = value.users[0]
            if index >= 0:
                if user is self._conditional:
                    return 10 if self._uses_of_element(value, index) < len(self._branches) else 0
                if user.opcode == "conditional":
                    return 0
                index = user.operands.index(value) if user.opcode == "tuple" else index
                value = user
                continue
            if user is self._branches[0].root:
                return self._through_root(value, user.operands.index(value))
            return reuse(value, user) if user in self._visits else 0
        return 0

    def _through_root(self, value: HloInstruction, index: int) -> int:
        for element in self._conditional.users:
            if element.opcode == "get-tuple-element" and element.tuple_index == index and element.users:
                return reuse(value, element.users[0])
        return 0

    def _uses_of_element(self, argument: HloInstruction, index: int) -> int:
        """Return the number of branches that read an element of their argument, or all of it."""
        count = 0
        for branch, operand in zip(self._branches, self._conditional.operands[1:], strict=True):
            parameter = branch.parameters[0]
            if operand is not argument:
                continue
            is_whole = parameter is branch.root or (not parameter.shape.is_tuple and parameter.users)
            count += bool(is_whole) or any(
                user.opcode == "get-tuple-element" and user.tuple_index == index for user in parameter.users
            )
        return count

    def _folded_copies(self, value: HloInstruction) -> int:
        """Return the gain of a copy that meets copies in the branches."""
        if value.opcode != "copy" or value.operands[0].opcode != "get-tuple-element":
            return 0
        element = value.operands[0]
        if element.operands[0] is not self._conditional:
            return 0
        roots = [branch.root for branch in self._branches if branch.root.opcode == "tuple"]
        results = [root.operands[element.tuple_index] for root in roots]
        return 10 * sum(result.opcode == "copy" and result.operands[0].shape == value.shape for result in results)
