"""The control flow of a kernel: basic blocks in text order, liveness of registers, offsets of variables.

A block ends at a branch, at a guarded instruction, and before every instruction that synchronises threads (barriers, shuffles,
votes). A guarded instruction becomes a branch around a block of its own, so engines need no predication. Since threads meet only
at the start of a block, an engine makes them wait between blocks, never inside one.

Functions that the kernel calls follow its own blocks. A call ends a block, and so does a return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.backends.host.ptx.call_plan import MEETING_OPCODES
from hlo_run.backends.host.ptx.calls import Call, FlatFunction, Item, flatten
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import Function, Instruction, Label, Module, Register, Symbol, Variable
from hlo_run.errors import ParseError, Unsupported, Where

_JUMPS = frozenset(("bra", "brx", "ret", "exit"))
EFFECTS = frozenset(("ld", "ldu", "st", "atom", "red", "trap")) | MEETING_OPCODES
"""Instructions that have effects besides their result registers, or may fault."""
_CUT_OPCODES = MEETING_OPCODES | {"activemask"}


class Jump(Struct, frozen=True):
    """Go to block `target`."""

    target: int


class Branch(Struct, frozen=True):
    """Go to `taken` if the predicate `register` holds (does not hold, if `negated`), else to `otherwise`.

    With `guards`, the branch represents a guarded instruction, which is the only one in block `taken`.
    """

    register: str
    negated: bool
    taken: int
    otherwise: int
    guards: bool = False


class Switch(Struct, frozen=True):
    """Go to `targets[register]`."""

    register: str
    targets: tuple[int, ...]
    line: int


class Exit(Struct, frozen=True):
    """End the thread."""


class Invoke(Struct, frozen=True):
    """Call `function`, whose code begins at block `entry`, then go to block `following`."""

    function: str
    entry: int
    following: int


class Return(Struct, frozen=True):
    """Go on behind the call of `function`."""

    function: str


Terminator: TypeAlias = Jump | Branch | Switch | Exit | Invoke | Return


class Block(Struct):
    """Operations without jumps, then one terminator. `live_in` and `live_out` are sorted register names."""

    index: int
    operations: list[Operation]
    terminator: Terminator
    live_in: tuple[str, ...] = ()
    live_out: tuple[str, ...] = ()

    @property
    def meeting(self) -> Operation | None:
        """The first operation if threads meet at it, else None."""
        first = self.operations[0] if self.operations else None
        return first if first and first.opcode in MEETING_OPCODES else None

    @property
    def cut(self) -> Operation | None:
        """The meeting, or `activemask`: an operation at which an engine may have to gather threads. None for other blocks."""
        first = self.operations[0] if self.operations else None
        return first if first and first.opcode in _CUT_OPCODES else None

    def successors(self) -> tuple[int, ...]:
        """Return the indices of the blocks of the same function that may follow; none after an exit or a return."""
        match self.terminator:
            case Jump(target):
                return (target,)
            case Branch(_, _, taken, otherwise):
                return (taken, otherwise)
            case Switch(_, targets):
                return targets
            case Invoke(_, _, following):
                return (following,)
            case Exit() | Return():
                return ()


class FunctionBlocks(Struct, frozen=True):
    """A function that the kernel calls: its blocks from `entry` up to `end`, and the registers that calls set and read."""

    name: str
    entry: int
    end: int
    inputs: frozenset[str]
    outputs: frozenset[str]

    @property
    def blocks(self) -> range:
        """The indices of the function's blocks."""
        return range(self.entry, self.end)


class Storage(Struct, frozen=True):
    """The variables of one state space: byte offset by name, and their total size."""

    offsets: Mapping[str, int]
    size_bytes: int


class KernelGraph(Struct):
    """One kernel, ready for an engine. `functions` are the functions that it calls.

    `variables` has the variables in `.global` and `.const`. `shared` and `local` have the offsets of the others. Unsized
    `.extern .shared` arrays all have the offset behind the sized ones.
    """

    entry: Function
    blocks: list[Block]
    registers: Mapping[str, str]
    functions: Mapping[str, FunctionBlocks] = field(default_factory=dict[str, FunctionBlocks])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    shared: Storage = field(default_factory=lambda: Storage({}, 0))
    local: Storage = field(default_factory=lambda: Storage({}, 0))

    def addresses(self, parameters: Iterable[int], variables: Mapping[str, int]) -> dict[str, tuple[str, int]]:
        """Return (space, address) of every variable and parameter, given the places of the parameters and of global variables."""
        named = zip((parameter.name for parameter in self.entry.parameters), parameters, strict=True)
        found = {name: ("param", address) for name, address in named}
        found.update((name, ("global", address)) for name, address in variables.items())
        for space, storage in (("shared", self.shared), ("local", self.local)):
            found.update((name, (space, offset)) for name, offset in storage.offsets.items())
        return found


def build_graph(module: Module, entry_name: str) -> KernelGraph:
    """Return the graph of the kernel `entry_name`.

    Raises DeviceError if the module lacks the kernel, ParseError for invalid PTX, Unsupported for PTX that Host cannot run.
    """
    try:
        flat = flatten(module, entry_name)
    except Unsupported as error:
        raise Unsupported(error.message, error.where, error.hint, (*error.notes, f"in kernel '{entry_name}'")) from error
    writer = _Blocks(flat)
    blocks = writer.build()
    add_liveness(blocks, writer.functions)
    graph = KernelGraph(flat.entry, blocks, flat.registers, writer.functions)
    graph.variables = {name: item for name, item in flat.variables.items() if item.space in ("global", "const")}
    graph.shared = _place(flat, "shared")
    graph.local = _place(flat, "local")
    return graph


def _place(flat: FlatFunction, space: str) -> Storage:
    """Lay out the variables of `space` in text order, unsized ones last."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in sorted((item for item in flat.variables.values() if item.space == space), key=lambda item: item.count == 0):
        start = -(-end // variable.alignment) * variable.alignment
        offsets[variable.name] = start
        end = start + variable.size_bytes
    return Storage(offsets, end)


class _Draft(Struct):
    """A block whose jumps still name labels. Without `jump` the block falls through."""

    operations: list[Operation] = field(default_factory=list[Operation])
    jump: Operation | Call | Terminator | None = None
    skips_next: Operation | None = None


class _Blocks:
    def __init__(self, flat: FlatFunction) -> None:
        self._flat = flat
        self._drafts: list[_Draft] = [_Draft()]
        self._labels: dict[str, int] = {}
        self.functions: dict[str, FunctionBlocks] = {}

    def build(self) -> list[Block]:
        used = self._used_labels()
        self._add(self._flat.items, used)
        # A kernel that runs past its end exits.
        self._exit = len(self._drafts)
        self._drafts.append(_Draft(jump=Exit()))
        for name, function in self._flat.called.items():
            entry = len(self._drafts)
            self._drafts.append(_Draft())
            self._add(function.items, used)
            self._drafts[-1].jump = Return(name)
            end = len(self._drafts)
            self.functions[name] = FunctionBlocks(name, entry, end, frozenset(function.inputs), frozenset(function.outputs))
        return [Block(index, draft.operations, self._terminator(index, draft)) for index, draft in enumerate(self._drafts)]

    def _add(self, items: Iterable[Item], used: set[str]) -> None:
        for item in items:
            match item:
                case Label():
                    self._label(item, item.name in used)
                case Call():
                    self._drafts[-1].jump = item
                    self._drafts.append(_Draft())
                case Operation():
                    self._operation(item)

    def _where(self, line: int) -> Where:
        return Where(f"{self._flat.entry.name}.ptx", line, 1)

    def _used_labels(self) -> set[str]:
        """Return the labels that are jump targets. Other labels need not end a block."""
        used = {name for names in self._flat.branch_targets.values() for name in names}
        for items in (self._flat.items, *(function.items for function in self._flat.called.values())):
            for item in items:
                if (
                    isinstance(item, Operation)
                    and item.opcode == "bra"
                    and item.operands
                    and isinstance(item.operands[0], Symbol)
                ):
                    used.add(item.operands[0].name)
        return used

    def _label(self, label: Label, is_used: bool) -> None:
        if label.name in self._labels:
            raise ParseError(f"label '{label.name}' is defined twice", self._where(label.line))
        if is_used and self._drafts[-1].operations:
            self._drafts.append(_Draft())
        self._labels[label.name] = len(self._drafts) - 1

    def _operation(self, operation: Operation) -> None:
        guard = operation.instruction.guard
        if operation.opcode in _JUMPS:
            self._drafts[-1].jump = operation
            self._drafts.append(_Draft())
        elif guard is not None:
            self._drafts[-1].skips_next = operation
            self._drafts += [_Draft([operation]), _Draft()]
        else:
            if operation.opcode in _CUT_OPCODES and self._drafts[-1].operations:
                self._drafts.append(_Draft())
            self._drafts[-1].operations.append(operation)

    def _terminator(self, index: int, draft: _Draft) -> Terminator:
        if draft.skips_next:
            guard = draft.skips_next.instruction.guard
            assert guard is not None, "only guarded instructions are skipped"
            return Branch(guard.register.name, guard.negated, index + 1, index + 2, guards=True)
        jump = draft.jump
        if jump is None:
            return Jump(index + 1)
        if isinstance(jump, Call):
            return Invoke(jump.function, self.functions[jump.function].entry, index + 1)
        if not isinstance(jump, Operation):
            return jump
        if jump.opcode == "brx":
            return self._switch(jump)
        if jump.opcode == "bra" and not jump.operands:
            raise jump.unsupported()
        target = self._exit if jump.opcode != "bra" else self._target(jump.operands[0], jump.instruction)
        guard = jump.instruction.guard
        if guard is not None:
            return Branch(guard.register.name, guard.negated, target, index + 1)
        return Exit() if jump.opcode != "bra" else Jump(target)

    def _switch(self, jump: Operation) -> Switch:
        index, table = jump.operands
        if jump.instruction.guard or not isinstance(index, Register) or not isinstance(table, Symbol):
            raise jump.unsupported()
        names = self._flat.branch_targets.get(table.name)
        if names is None:
            raise Unsupported(f"unknown branch targets '{table.name}' (line {jump.line} of the PTX)")
        return Switch(index.name, tuple(self._target(Symbol(name), jump.instruction) for name in names), jump.line)

    def _target(self, operand: object, instruction: Instruction) -> int:
        if not isinstance(operand, Symbol) or operand.name not in self._labels:
            name = operand.name if isinstance(operand, Symbol) else operand
            raise ParseError(f"jump to '{name}', which is not a label", self._where(instruction.line))
        return self._labels[operand.name]


def add_liveness(blocks: list[Block], functions: Mapping[str, FunctionBlocks]) -> None:
    """Set live_in and live_out of every block, function by function."""
    ends = [*sorted(function.entry for function in functions.values()), len(blocks)]
    for start, end in pairwise([0, *ends]):
        _Liveness(blocks[start:end], functions).solve()


class _Liveness:
    """Backward data-flow iteration with sets as bits of integers. Only registers that a block may read from another have bits."""

    def __init__(self, blocks: list[Block], functions: Mapping[str, FunctionBlocks]) -> None:
        self._blocks = blocks
        self._functions = functions
        self._first = blocks[0].index
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._members: dict[int, tuple[str, ...]] = {}

    def solve(self) -> None:
        blocks, first = self._blocks, self._first
        accesses = [_used_and_killed(block) for block in blocks]
        at_end = [self._read_behind(block) for block in blocks]
        self._names = sorted(set[str]().union(*(used for used, _ in accesses), *at_end))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        uses = [self._bits(used) for used, _ in accesses]
        keeps = [~self._bits(killed) for _, killed in accesses]
        ends = [self._bits(names) for names in at_end]
        passes = [~self._bits(self._set_by_call(block)) for block in blocks]
        live_in = list(uses)
        live_out = [0] * len(blocks)
        changed = True
        while changed:
            changed = False
            for number in range(len(blocks) - 1, -1, -1):
                out = 0
                for successor in blocks[number].successors():
                    out |= live_in[successor - first]
                live_out[number] = out = out & passes[number] | ends[number]
                new = uses[number] | (out & keeps[number])
                changed = changed or new != live_in[number]
                live_in[number] = new
        for block, before, after in zip(blocks, live_in, live_out, strict=True):
            block.live_in, block.live_out = self._members_of(before), self._members_of(after)

    def _read_behind(self, block: Block) -> frozenset[str]:
        """Return the registers that a called function or the caller reads."""
        match block.terminator:
            case Invoke(function):
                return self._functions[function].inputs
            case Return(function):
                return self._functions[function].outputs
            case Jump() | Branch() | Switch() | Exit():
                return frozenset()

    def _set_by_call(self, block: Block) -> frozenset[str]:
        return self._functions[block.terminator.function].outputs if isinstance(block.terminator, Invoke) else frozenset()

    def _bits(self, names: Iterable[str]) -> int:
        bits = 0
        for name in names:
            if name in self._numbers:
                bits |= 1 << self._numbers[name]
        return bits

    def _members_of(self, bits: int) -> tuple[str, ...]:
        found = self._members.get(bits)
        if found is None:
            digits = f"{bits:b}"[::-1]
            places: list[int] = []
            place = digits.find("1")
            while place >= 0:
                places.append(place)
                place = digits.find("1", place + 1)
            found = self._members[bits] = tuple(self._names[place] for place in places)
        return found


def _used_and_killed(block: Block) -> tuple[set[str], set[str]]:
    """Return the registers that the block reads before it sets them, and those that it sets."""
    used, killed = set[str](), set[str]()
    for name, is_write in _accesses(block):
        if is_write:
            killed.add(name)
        elif name not in killed:
            used.add(name)
    return used, killed


def _accesses(block: Block) -> Iterator[tuple[str, bool]]:
    """Yield (register, is it a write) in the order of execution."""
    for operation in block.operations:
        for name in operation.reads():
            yield name, False
        for name in operation.writes():
            yield name, True
    if isinstance(block.terminator, Branch | Switch):
        yield block.terminator.register, False


def used_results(block: Block) -> list[bool]:
    """Return, per operation of a block, whether a register that it sets is read before it is set again."""
    live = set(block.live_out)
    if isinstance(block.terminator, Branch | Switch):
        live.add(block.terminator.register)
    used: list[bool] = []
    for operation in reversed(block.operations):
        written = operation.writes()
        is_used = not written or any(name in live for name in written)
        used.append(is_used)
        if is_used or operation.opcode in EFFECTS:
            live.difference_update(written)
            live.update(operation.reads())
    return used[::-1]


def single_definitions(graph: KernelGraph) -> dict[str, Operation]:
    """Return the registers that exactly one operation sets, with that operation."""
    definitions: dict[str, Operation] = {}
    several: set[str] = set()
    for block in graph.blocks:
        for operation in block.operations:
            for name in operation.writes():
                if name in definitions:
                    several.add(name)
                definitions[name] = operation
    return {name: operation for name, operation in definitions.items() if name not in several}
