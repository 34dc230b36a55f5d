"""The HLO graph: modules, computations and instructions, with use lists and edits in place."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hlo_run.errors import Where
from hlo_run.hlo.attributes.stack_frames import StackFrames
from hlo_run.hlo.call_order import CallOrder
from hlo_run.hlo.instruction_attributes import Attributes, TypedAttributes
from hlo_run.hlo.module_attributes import CallingConvention, HeaderAttributes, HeaderValue
from hlo_run.hlo.names import NameUniquer
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.print_options import DEFAULT, PrintOptions, text_of
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.wide_operands import WideOperands

if TYPE_CHECKING:
    from hlo_run.artifact.division import DividedEntry

# A tuple may have thousands of operands, and passes replace them one by one.
_MANY_OPERANDS = 100
_MANY_USERS = 100


class HloInstruction(TypedAttributes):
    """One instruction. `HloComputation.add` puts it into a computation.

    `attrs` holds parsed attributes, among them `parameter_number` of a parameter and `literal` of a constant (a numpy array in
    logical order; a tuple of such for tuple constants). `called` maps an attribute name (`calls`, `to_apply`, `condition`, ..) to
    the computations it names. `where` is its place in the source text. `users` lists every distinct user in XLA's order.
    """

    __slots__ = (
        "_called",
        "_callees",
        "_operands",
        "_shape",
        "_user_places",
        "_wide",
        "attrs",
        "control_predecessors",
        "name",
        "opcode",
        "parent",
        "users",
        "where",
    )

    def __init__(
        self,
        name: str,
        opcode: Opcode,
        shape: Shape,
        operands: Iterable[HloInstruction] = (),
        attrs: dict[str, AttributeValue] | None = None,
        called: dict[str, tuple[HloComputation, ...]] | None = None,
        where: Where | None = None,
    ) -> None:
        self.name = name
        self.opcode: Opcode = opcode
        self._shape = shape
        self.attrs = Attributes(self, attrs or {})
        self.where = where
        self.parent: HloComputation | None = None
        self.users: list[HloInstruction] = []
        # The place of each user, for an instruction that once had many.
        self._user_places: dict[HloInstruction, int] | None = None
        self.control_predecessors: list[HloInstruction] = []
        # None while `_wide` has newer operands.
        self._operands: tuple[HloInstruction, ...] | None = ()
        self._wide: WideOperands[HloInstruction] | None = None
        self._called: dict[str, tuple[HloComputation, ...]] = {}
        self._callees: tuple[HloComputation, ...] = ()
        self.operands = tuple(operands)
        self.called = called or {}

    @property
    def shape(self) -> Shape:
        """The shape of the result. To assign one counts as an edit of the module."""
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        """Set the shape."""
        self._shape = shape
        self.touch()

    @property
    def operands(self) -> tuple[HloInstruction, ...]:
        """The operands in order. Assign a new tuple to change them, which updates the use lists."""
        operands = self._operands
        if operands is None:
            assert self._wide is not None, "one of the two is set"
            operands = self._operands = tuple(self._wide.operands)
        return operands

    @operands.setter
    def operands(self, operands: tuple[HloInstruction, ...]) -> None:
        """Set the operands, and update the users of the old and the new ones."""
        given = self.operands
        if not given:
            for operand in operands if len(operands) == 1 else dict.fromkeys(operands):
                operand._add_user(self)
        elif not operands:
            for old in given if len(given) == 1 else dict.fromkeys(given):
                old._remove_user(self)
        else:
            # Dicts, because a root tuple may have thousands of operands.
            before, after = dict.fromkeys(given), dict.fromkeys(operands)
            for old in before:
                if old not in after:
                    old._remove_user(self)
            for operand in after:
                if operand not in before:
                    operand._add_user(self)
        self._operands, self._wide = operands, None
        self.touch()

    def replace_operand(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace the operand `old`, another instruction than `new`, at all its positions; faster than to assign `operands`."""
        if self._wide is None and len(self.operands) > _MANY_OPERANDS:
            self._wide = WideOperands(self.operands)
        if self._wide is not None:
            is_user = self._wide.replace(old, new)
            self._operands = None
        else:
            is_user = any(operand is new for operand in self.operands)
            self._operands = tuple([new if operand is old else operand for operand in self.operands])
        if not is_user:
            new._add_user(self)
        old._remove_user(self)
        self.touch()

    def _add_user(self, user: HloInstruction) -> None:
        if self._user_places is not None:
            self._user_places[user] = len(self.users)
        self.users.append(user)

    def _remove_user(self, user: HloInstruction) -> None:
        """Let the last user take the place of one that goes, as in XLA: passes that ask users take the first that fits."""
        users = self.users
        if len(users) > _MANY_USERS and self._user_places is None:
            self._user_places = {other: place for place, other in enumerate(users)}
        place = users.index(user) if self._user_places is None else self._user_places.pop(user)
        last = users.pop()
        if last is not user:
            users[place] = last
            if self._user_places is not None:
                self._user_places[last] = place

    def order_users(self, order: Iterable[HloInstruction | None]) -> None:
        """List the users in this order, those that are not in it last. A copy has the order of its original, as in XLA."""
        places = {user: place for place, user in reversed([*enumerate(order)])}
        self.users.sort(key=lambda user: places.get(user, len(places)))
        self._user_places = None

    @property
    def called(self) -> dict[str, tuple[HloComputation, ...]]:
        """Called computations by attribute name. Assign a new dict to change them, which updates `callers`."""
        return self._called

    @called.setter
    def called(self, called: dict[str, tuple[HloComputation, ...]]) -> None:
        """Set the called computations, and update the callers of the old and the new ones."""
        if not called and not self._called:  # of most instructions
            self.touch()
            return
        for computation in dict.fromkeys(self._callees):
            computation.callers.remove(self)
        self._called = called
        self._callees = tuple([c for group in called.values() for c in group])
        for computation in dict.fromkeys(self._callees):
            computation.callers.append(self)
        self.order_calls()
        self.touch()

    def order_calls(self) -> None:
        """Keep the module's order of calls, for an instruction that is in a computation or comes into one."""
        if self._called and self.parent is not None and self.parent.module is not None:
            # In XLA's order: a loop's body before its condition.
            called = self.called_computations
            for computation in called[::-1] if self.opcode == "while" else called:
                self.parent.module.call_order.call(self.parent, computation)

    @property
    def called_computations(self) -> tuple[HloComputation, ...]:
        """All called computations, in the order of the attributes; one that is called twice occurs twice."""
        return self._callees

    @property
    def fused_computation(self) -> HloComputation:
        """The body of a fusion."""
        return self._called["calls"][0]

    @property
    def to_apply(self) -> HloComputation:
        """The computation of a call, or the computation that a reduce, sort, scatter or other instruction applies to elements."""
        return self._called["to_apply"][0]

    @property
    def while_condition(self) -> HloComputation:
        """The computation of a while that returns whether it goes on."""
        return self._called["condition"][0]

    @property
    def while_body(self) -> HloComputation:
        """The computation of one iteration of a while."""
        return self._called["body"][0]

    @property
    def is_root(self) -> bool:
        """True for the root of the instruction's computation."""
        return self.parent is not None and self.parent.root is self

    def touch(self) -> None:
        """Count an edit of the module that holds this instruction."""
        if self.opcode == "parameter" and self.parent is not None:
            self.parent.forget_parameters()
        if self.parent is not None and self.parent.module is not None:
            self.parent.module.version += 1
            self.parent.edited_at = self.parent.module.version

    def __repr__(self) -> str:
        return f"%{self.name} = {self._shape} {self.opcode}({', '.join('%' + o.name for o in self.operands)})"

    def __str__(self) -> str:
        return text_of(self)


class HloComputation:
    """A named list of instructions with a root; `instructions` keeps the order of creation (text order).

    `edited_at` is the module's version after the last edit of an instruction here.
    """

    def __init__(self, name: str, where: Where | None = None) -> None:
        self.name = name
        self.where = where
        self.module: HloModule | None = None
        self.instructions: list[HloInstruction] = []
        self.callers: list[HloInstruction] = []
        self.execution_thread = "main"
        self.backend_config = ""
        self.edited_at = 0
        self._root: HloInstruction | None = None
        self._parameters: list[HloInstruction] | None = None
        self._kept_order: tuple[tuple[int, int], list[HloInstruction]] | None = None
        self._by_opcode: tuple[tuple[int, int], dict[str, list[tuple[int, HloInstruction]]]] | None = None

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value the computation returns; it must be set."""
        assert self._root is not None, f"computation {self.name} has no root yet"
        return self._root

    @root.setter
    def root(self, instruction: HloInstruction) -> None:
        """Set the root."""
        self._root = instruction
        instruction.touch()

    @property
    def has_root(self) -> bool:
        """True once the root is set."""
        return self._root is not None

    @property
    def parameters(self) -> list[HloInstruction]:
        """The parameters ordered by number."""
        if self._parameters is None:
            found = [i for i in self.instructions if i.opcode == "parameter"]
            self._parameters = sorted(found, key=lambda i: i.parameter_number)
        return list(self._parameters)

    def forget_parameters(self) -> None:
        """Drop the cached list of parameters: one was added, removed or renumbered."""
        self._parameters = None

    @property
    def is_fusion(self) -> bool:
        """True if a fusion calls it."""
        return any(caller.opcode == "fusion" for caller in self.callers)

    @property
    def is_entry(self) -> bool:
        """True for the entry of the computation's module."""
        return self.module is not None and self.module.entry is self

    def add(self, instruction: HloInstruction, is_root: bool = False, before: HloInstruction | None = None) -> HloInstruction:
        """Add `instruction` at the end, or before another, and return it; its name is made unique in the module.

        If the computation is scheduled, it is added to the schedule at the same place.
        """
        instruction.parent = self
        if self.module is not None:
            instruction.name = self.module.unique_instruction_name(instruction.name)
        place = len(self.instructions) if before is None else self.instructions.index(before)
        self.instructions.insert(place, instruction)
        order = self._schedule
        if order is not None:
            order.insert(len(order) if before is None else order.index(before), instruction)
        if is_root:
            self._root = instruction
        instruction.order_calls()
        instruction.touch()
        return instruction

    def add_named(self, instruction: HloInstruction) -> HloInstruction:
        """Add an instruction at the end of an unscheduled computation, whose name the module has given already."""
        instruction.parent = self
        self.instructions.append(instruction)
        instruction.order_calls()
        instruction.touch()
        return instruction

    def remove(self, instruction: HloInstruction) -> None:
        """Remove an instruction without users that is not the root, from the schedule too."""
        assert not instruction.users, f"{instruction.name} is still used"
        assert instruction is not self._root, f"{instruction.name} is the root"
        instruction.touch()
        instruction.operands = ()
        instruction.called = {}
        self.instructions.remove(instruction)
        if self._schedule is not None:
            self._schedule.remove(instruction)
        instruction.parent = None

    def remove_all(self, instructions: Container[HloInstruction]) -> None:
        """Remove instructions that only each other use, without the root, in one pass over the computation."""
        gone = [i for i in self.instructions if i in instructions]
        for instruction in gone:
            assert instruction is not self._root, f"{instruction.name} is the root"
            instruction.touch()
            instruction.operands = ()
            instruction.called = {}
        for instruction in gone:
            assert not instruction.users, f"{instruction.name} is still used"
            instruction.parent = None
        self.instructions = [i for i in self.instructions if i not in instructions]
        if self._schedule is not None:
            self._schedule[:] = [i for i in self._schedule if i not in instructions]

    def substitute(self, pairs: dict[HloInstruction, HloInstruction]) -> None:
        """Replace old instructions without users by new ones, already named, at the same positions; one pass for all."""
        for old, new in pairs.items():
            assert not old.users, f"{old.name} is still used"
            new.parent, old.operands, old.called, old.parent = self, (), {}, None
            new.order_calls()
            new.touch()
        self.instructions = [pairs.get(i, i) for i in self.instructions]
        if self._schedule is not None:
            self._schedule[:] = [pairs.get(i, i) for i in self._schedule]

    @property
    def _schedule(self) -> list[HloInstruction] | None:
        schedule = self.module.schedule if self.module is not None else None
        return schedule.get(self) if schedule is not None else None

    def by_opcode(self) -> dict[str, list[tuple[int, HloInstruction]]]:
        """Return the instructions of each opcode with their places. It is kept until the next edit, and not to be changed."""
        state = self.edited_at, len(self.instructions)
        if self._by_opcode is not None and self._by_opcode[0] == state:
            return self._by_opcode[1]
        found: dict[str, list[tuple[int, HloInstruction]]] = {}
        for place, instruction in enumerate(self.instructions):
            found.setdefault(instruction.opcode, []).append((place, instruction))
        self._by_opcode = state, found
        return found

    def post_order(self) -> list[HloInstruction]:
        """Return all instructions, operands (and control predecessors) before users, as XLA's `MakeInstructionPostOrder`.

        Starts from each instruction without users in order of creation. Control predecessors come before operands, the last of
        them first. The order of a computation without control predecessors is kept until the next edit, since passes ask often.
        """
        may_keep = self.module is not None and not any(i.control_predecessors for i in self.instructions)
        if may_keep and self._kept_order is not None and self._kept_order[0] == (self.edited_at, len(self.instructions)):
            return list(self._kept_order[1])
        done: set[HloInstruction] = set()
        order: list[HloInstruction] = []
        for start in self.instructions:
            if start.users:
                continue
            stack = [start]
            while stack:
                top = stack[-1]
                if top in done:
                    stack.pop()
                    continue
                before = (*reversed(top.control_predecessors), *top.operands) if top.control_predecessors else top.operands
                waiting = [i for i in before if i not in done]
                if waiting:
                    # Reversed, because the last one pushed is visited first.
                    waiting.reverse()
                    stack += waiting
                else:
                    stack.pop()
                    done.add(top)
                    order.append(top)
        self._kept_order = ((self.edited_at, len(self.instructions)), list(order)) if may_keep else None
        return order

    def visit_order(self) -> list[HloInstruction]:
        """Return all instructions, operands (then control predecessors) before users, as XLA's `HloComputation::Accept`.

        Starts from each unused instruction in order of creation; the root is the last start.
        """
        ordered = {p for i in self.instructions for p in i.control_predecessors}
        order: dict[HloInstruction, None] = {}
        for start in (*[i for i in self.instructions if not i.users and i is not self._root and i not in ordered], self.root):
            stack = [start]
            while stack:
                top = stack[-1]
                before = (*top.operands, *top.control_predecessors) if top.control_predecessors else top.operands
                waiting = [i for i in before if i not in order] if top not in order else []
                if waiting:
                    waiting.reverse()
                    stack += waiting
                else:
                    order.setdefault(stack.pop())
        return list(order)

    def __repr__(self) -> str:
        return f"HloComputation({self.name})"

    def __str__(self) -> str:
        return text_of(self)


class HloModule(HeaderAttributes):
    """A module: computations in order of definition, the entry, header attributes as parsed.

    `attrs` holds the header's attributes by name (`is_scheduled`, `entry_computation_layout`, ..). `schedule` maps a
    computation to its instruction order once scheduled. `version` grows with every edit. `has_header` is False for a text
    without `HloModule`, `has_entry` for one that marks no computation `ENTRY`. With `has_default_entry_layout` arguments and
    result have descending layouts, whatever parameters and root have, unless the header has an `entry_computation_layout`.
    `convention` is that of the function the module was made from, if any. `divided` says how arguments and result are divided,
    once the module is that of one partition. `is_propagated` is True once the shardings are final. `settled` is the state of
    `hlo/unchanged.py`, `facts` of `analysis/facts.py`.
    """

    def __init__(
        self, name: str, attrs: dict[str, HeaderValue] | None = None, has_header: bool = True, has_entry: bool = True
    ) -> None:
        self.name = name
        self.computations: list[HloComputation] = []
        self.entry_computation: HloComputation | None = None
        self.attrs: dict[str, HeaderValue] = {} if attrs is None else attrs
        self.schedule: dict[HloComputation, list[HloInstruction]] | None = None
        self.version = 0
        self.has_header = has_header
        self.has_entry = has_entry
        self.has_default_entry_layout = False
        self.convention: CallingConvention[HloModule] | None = None
        self.divided: DividedEntry | None = None
        self.is_propagated = False
        self.settled: dict[tuple[Hashable, HloComputation], int] = {}
        self.facts: dict[Callable[[HloModule], Any], tuple[int, Any]] = {}
        self._walked: tuple[int, list[HloComputation]] = (-1, [])
        self.instruction_names = NameUniquer()
        self.call_order = CallOrder()
        self.computation_names = NameUniquer()

    @property
    def entry(self) -> HloComputation:
        """The entry computation; it must be set."""
        assert self.entry_computation is not None, "the module has no entry yet"
        return self.entry_computation

    @property
    def instructions(self) -> Iterator[HloInstruction]:
        """Every instruction of every computation. It iterates over snapshots, so the module may be edited meanwhile."""
        for computation in list(self.computations):
            yield from list(computation.instructions)

    def instructions_of(self, *opcodes: Opcode) -> list[HloInstruction]:
        """Return every instruction with one of these opcodes outside of fusion bodies, callees before callers, as XLA walks them.

        Uses an index of each computation that is rebuilt after its edit, so a pass that finds nothing costs next to nothing.
        """
        if self._walked[0] != self.version:
            ordered = sorted(self.computations, key=self.call_order.place, reverse=True)
            self._walked = self.version, [computation for computation in ordered if not computation.is_fusion]
        result: list[HloInstruction] = []
        for computation in self._walked[1]:
            index = computation.by_opcode()
            lists = [index[opcode] for opcode in opcodes if opcode in index]
            if len(lists) == 1:
                result += [instruction for _, instruction in lists[0]]
            elif lists:
                result += [instruction for _, instruction in sorted([pair for each in lists for pair in each], key=itemgetter(0))]
        return result

    def in_post_order(self, *opcodes: Opcode) -> list[HloInstruction]:
        """Return the instructions of `instructions_of` in the post-order of each computation, callees before callers."""
        computations = dict.fromkeys(i.parent for i in self.instructions_of(*opcodes))
        return [i for c in computations if c is not None for i in c.post_order() if i.opcode in opcodes]

    def add_computation(self, computation: HloComputation, is_entry: bool = False) -> HloComputation:
        """Add a computation with all its instructions; names are made unique by XLA's rule (`name`, `name.1`, ..)."""
        computation.name = self.computation_names.unique(computation.name)
        for instruction in computation.instructions:
            instruction.name = self.unique_instruction_name(instruction.name)
        return self.add_named_computation(computation, is_entry)

    def add_named_computation(self, computation: HloComputation, is_entry: bool = False) -> HloComputation:
        """Add a computation as `add_computation` does, whose names this module has given already."""
        computation.module = self
        self.computations.append(computation)
        self.call_order.add(computation)
        if is_entry:
            self.entry_computation = computation
        self.version += 1
        computation.edited_at = self.version
        return computation

    def replace(self, old: HloInstruction, new: HloInstruction, keeps_frontend_attributes: bool = True) -> None:
        """Replace `old` by `new` in all its users and as the root; `new` inherits the source location of `old` if it has none.

        As in XLA's `ReplaceInstruction`, `new` inherits metadata, a sharding and (if `keeps_frontend_attributes`) frontend
        attributes that it lacks, and the name if both have the same opcode. `old` stays, without users.
        """
        self.replace_uses(old, new)
        before, after = old.metadata, new.metadata
        if isinstance(before, OpMetadata) and before.op_name and not (isinstance(after, OpMetadata) and after.op_name):
            new.attrs["metadata"] = before
        for name in ("frontend_attributes", "sharding") if keeps_frontend_attributes else ("sharding",):
            if name in old.attrs and name not in new.attrs:
                new.attrs[name] = old.attrs[name]
        is_same_call = old.opcode != "custom-call" or old.custom_call_target == new.custom_call_target
        if new is not old and old.opcode == new.opcode and is_same_call:
            new.name = old.name

    def replace_uses(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace `old` by `new` in all its users and as the root; `new` inherits the source location of `old` if it has none."""
        assert old.parent is not None
        for user in list(old.users) if new is not old else ():
            user.replace_operand(old, new)
        if old.parent.root is old:
            old.parent.root = new
        new.where = new.where or old.where

    def clone(self) -> HloModule:
        """Return a copy of the module with the same names; literals and attribute values are shared, except the stack frames."""
        computations = {old: HloComputation(old.name, old.where) for old in self.computations}
        instructions: dict[HloInstruction, HloInstruction] = {}
        for source, computation in computations.items():
            computation.execution_thread, computation.backend_config = source.execution_thread, source.backend_config
            for old in source.instructions:
                new = HloInstruction(old.name, old.opcode, old.shape, (), dict(old.attrs), None, old.where)
                instructions[old] = computation.add(new, is_root=source.has_root and old is source.root)
        for old, new in instructions.items():
            new.operands = tuple([instructions[operand] for operand in old.operands])
            new.called = {key: tuple(computations[c] for c in group) for key, group in old.called.items()}
            new.control_predecessors = [instructions[p] for p in old.control_predecessors]
        for old, new in instructions.items():
            new.order_users(instructions[user] for user in old.users)
        attributes = {name: value.copy() if isinstance(value, StackFrames) else value for name, value in self.attrs.items()}
        copy = HloModule(self.name, attrs=attributes, has_header=self.has_header, has_entry=self.has_entry)
        copy.has_default_entry_layout = self.has_default_entry_layout
        copy.convention = self.convention
        copy.divided, copy.is_propagated = self.divided, self.is_propagated
        for old_computation, computation in computations.items():
            copy.add_computation(computation, is_entry=old_computation is self.entry_computation)
        copy.call_order.follow(self.call_order, computations)
        if self.schedule is not None:
            copy.schedule = {computations[c]: [instructions[i] for i in order] for c, order in self.schedule.items()}
        return copy

    def to_string(self, options: PrintOptions = DEFAULT) -> str:
        """Return the module as HLO text, by default the text of XLA's `HloModule::ToString`."""
        return text_of(self, options)

    def __str__(self) -> str:
        return self.to_string()

    def remove_computation(self, computation: HloComputation) -> None:
        """Remove a computation that has no callers. Its instructions leave the `callers` of the computations that they call."""
        assert not computation.callers, f"{computation.name} is still called"
        for instruction in computation.instructions:
            instruction.called = {}
        self.computations.remove(computation)
        self.call_order.remove(computation)
        (self.schedule or {}).pop(computation, None)
        computation.module = None
        self.version += 1

    def unique_instruction_name(self, name: str) -> str:
        """Return `name`, or the first free `name.N`, and take it."""
        return self.instruction_names.unique(name)

    def unique_computation_name(self, name: str) -> str:
        """Return `name`, or the first free `name.N`, and take it."""
        return self.computation_names.unique(name)
