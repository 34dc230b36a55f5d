"""The control flow of a kernel: basic blocks in text order, liveness of registers, offsets of variables.

A block ends at a branch, at a guarded instruction, and before every instruction that synchronises threads (barriers, shuffles,
votes). A guarded instruction becomes a branch around a block of its own, so engines need no predication. Since threads meet only
at the start of a block, an engine makes them wait between blocks, never inside one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.backends.host.ptx.inline_calls import FlatFunction, flatten
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import Function, Instruction, Label, Module, Register, Symbol, Variable
from hlo_run.errors import ParseError, Unsupported, Where

_JUMPS = frozenset(("bra", "brx", "ret", "exit"))
MEETING_OPCODES = frozenset(("bar", "barrier", "shfl", "vote", "match", "redux", "elect"))
"""Instructions that the threads of a warp or block execute together."""
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
    """The thread ends."""


Terminator: TypeAlias = Jump | Branch | Switch | Exit


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
        """Return the indices of the blocks that may follow; none after an exit."""
        match self.terminator:
            case Jump(target):
                return (target,)
            case Branch(_, _, taken, otherwise):
                return (taken, otherwise)
            case Switch(_, targets):
                return targets
            case Exit():
                return ()


class Storage(Struct, frozen=True):
    """The variables of one state space: byte offset by name, and their total size."""

    offsets: Mapping[str, int]
    size_bytes: int


class KernelGraph(Struct):
    """One kernel, ready for an engine.

    `variables` has the variables in `.global` and `.const`. `shared` and `local` have the offsets of the others. Unsized
    `.extern .shared` arrays all have the offset behind the sized ones.
    """

    entry: Function
    blocks: list[Block]
    registers: Mapping[str, str]
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    shared: Storage = field(default_factory=lambda: Storage({}, 0))
    local: Storage = field(default_factory=lambda: Storage({}, 0))


def build_graph(module: Module, entry_name: str) -> KernelGraph:
    """Return the graph of the kernel `entry_name`.

    Raises DeviceError if the module lacks the kernel, ParseError for invalid PTX, Unsupported for PTX that Host cannot run.
    """
    try:
        flat = flatten(module, entry_name)
    except Unsupported as error:
        raise Unsupported(error.message, error.where, error.hint, (*error.notes, f"in kernel '{entry_name}'")) from error
    blocks = _Blocks(flat).build()
    _add_liveness(blocks)
    graph = KernelGraph(flat.entry, blocks, flat.registers)
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
    jump: Operation | None = None
    skips_next: Operation | None = None


class _Blocks:
    def __init__(self, flat: FlatFunction) -> None:
        self._flat = flat
        self._drafts: list[_Draft] = [_Draft()]
        self._labels: dict[str, int] = {}

    def build(self) -> list[Block]:
        used = self._used_labels()
        for item in self._flat.items:
            if isinstance(item, Label):
                self._label(item, item.name in used)
            else:
                self._operation(item)
        blocks = [Block(index, draft.operations, self._terminator(index, draft)) for index, draft in enumerate(self._drafts)]
        # A kernel that runs past its end exits.
        blocks.append(Block(len(blocks), [], Exit()))
        return blocks

    def _where(self, line: int) -> Where:
        return Where(f"{self._flat.entry.name}.ptx", line, 1)

    def _used_labels(self) -> set[str]:
        """Return the labels that are jump targets. Other labels need not end a block."""
        used = {name for names in self._flat.branch_targets.values() for name in names}
        for item in self._flat.items:
            if isinstance(item, Operation) and item.opcode == "bra" and item.operands and isinstance(item.operands[0], Symbol):
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
        if jump.opcode == "brx":
            return self._switch(jump)
        if jump.opcode == "bra" and not jump.operands:
            raise jump.unsupported()
        target = len(self._drafts) if jump.opcode != "bra" else self._target(jump.operands[0], jump.instruction)
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


def _add_liveness(blocks: list[Block]) -> None:
    """Set live_in and live_out of every block: backward data-flow iteration with sets as bits of integers."""
    numbers: dict[str, int] = {}
    names: list[str] = []

    def bit(name: str) -> int:
        if name not in numbers:
            numbers[name] = len(names)
            names.append(name)
        return 1 << numbers[name]

    uses = [0] * len(blocks)
    kills = [0] * len(blocks)
    for block in blocks:
        used = killed = 0
        for name, is_write in _accesses(block):
            if is_write:
                killed |= bit(name)
            elif not killed & bit(name):
                used |= bit(name)
        uses[block.index], kills[block.index] = used, killed
    live_in = list(uses)
    live_out = [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            index = block.index
            out = 0
            for successor in block.successors():
                out |= live_in[successor]
            live_out[index] = out
            new = uses[index] | (out & ~kills[index])
            changed = changed or new != live_in[index]
            live_in[index] = new
    for block in blocks:
        block.live_in = tuple(sorted(_members(live_in[block.index], names)))
        block.live_out = tuple(sorted(_members(live_out[block.index], names)))


def _accesses(block: Block) -> Iterator[tuple[str, bool]]:
    """Yield (register, is it a write) in the order of execution."""
    for operation in block.operations:
        for name in operation.reads():
            yield name, False
        for name in operation.writes():
            yield name, True
    if isinstance(block.terminator, Branch | Switch):
        yield block.terminator.register, False


def _members(bits: int, names: list[str]) -> Iterator[str]:
    while bits:
        low = bits & -bits
        yield names[low.bit_length() - 1]
        bits ^= low


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
