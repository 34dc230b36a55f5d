"""Unroll short counted loops: the counter becomes constants, and addresses become a thread's base plus a constant.

    loop: mul.wide.u32 %rd1, %r1, 4;  ..             mul.wide.u32 %rd1.0, 0, 4;  ..
          add.s32 %r1, %r1, 1;                  =>   mul.wide.u32 %rd1.1, 1, 4;  ..
          setp.ne.s32 %p1, %r1, 8;                   ..
          @%p1 bra loop;                             mov.b32 %r1, 8;

LLVM vectorises only innermost loops. A loop inside a thread would keep the loop over threads from being vectorised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from hlo_run.backends.host.ptx.control_flow import Block, Branch, Jump, KernelGraph, single_definitions
from hlo_run.backends.host.ptx.instruction_set import Operation, decode
from hlo_run.backends.host.ptx.specs import Compare, is_integer
from hlo_run.backends.host.ptx.syntax import (
    Address,
    Float,
    Instruction,
    Integer,
    Negated,
    Operand,
    OperandList,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)
from hlo_run.records import replace
from hlo_run.walks import walk

_MOST_TURNS = 64
_MOST_OPERATIONS = 1500
# LLVM's time grows faster than the code. One loop that stays keeps the loop over threads from being vectorised: then all stay.
_MOST_OF_A_KERNEL = 6000
_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {"add": int.__add__, "sub": int.__sub__}


def unroll(graph: KernelGraph) -> KernelGraph:
    """Return the kernel with its short single-block loops unrolled; the same graph if it has none or much code."""
    loops = {block.index: values for block in graph.blocks if (values := _turns(graph, block)) is not None}
    written = sum(len(graph.blocks[index].operations) * (len(turns) - 1) for index, turns in loops.items())
    if not loops or written > _MOST_OF_A_KERNEL:
        return graph
    registers = dict(graph.registers)
    blocks = [_written_out(block, loops[block.index], registers) if block.index in loops else block for block in graph.blocks]
    return replace(graph, blocks=blocks, registers=registers)


# ---- trip count -------------------------------------------------------------------------------------------------------


def _turns(graph: KernelGraph, block: Block) -> list[dict[str, int]] | None:
    """Return the known register values before each turn and after the last; None if the block is not a short counted loop."""
    branch = block.terminator
    if not isinstance(branch, Branch) or branch.guards or block.cut is not None or block.index not in block.successors():
        return None
    if branch.taken == branch.otherwise or any("cc" in op.flags for op in block.operations):
        return None
    goes_on = (branch.taken == block.index) != branch.negated
    known = _starts(graph, block)
    turns = [dict(known)]
    while len(turns) <= _MOST_TURNS and len(turns) * len(block.operations) <= _MOST_OPERATIONS:
        for operation in block.operations:
            _step(operation, known, graph.registers)
        if branch.register not in known:
            return None
        turns.append(dict(known))
        if bool(known[branch.register]) != goes_on:
            return turns
    return None


def _starts(graph: KernelGraph, loop: Block) -> dict[str, int]:
    """Return the constant initial values of the loop's registers, on every path into the loop."""
    written = {name for operation in loop.operations for name in operation.writes()} | set(loop.live_in)
    outside = [block for block in graph.blocks if block.index != loop.index]
    single = single_definitions(replace(graph, blocks=outside))
    constants: dict[str, int] = {}
    for block in outside:
        for operation in block.operations:
            found = _constant_move(operation)
            if found is None or found[0] not in written or single.get(found[0]) is not operation:
                continue
            if not _avoids(graph, block.index, loop):
                constants[found[0]] = _fitted(found[1], graph.registers[found[0]])
    return constants


def _constant_move(operation: Operation) -> tuple[str, int] | None:
    if operation.opcode != "mov" or operation.instruction.guard:
        return None
    target, source = operation.operands
    return (target.name, source.value) if isinstance(target, Register) and isinstance(source, Integer) else None


def _avoids(graph: KernelGraph, block: int, loop: Block) -> bool:
    """True if a path from a function's start or from the loop itself leads to the loop without passing `block`."""
    entries = (function.entry for function in graph.functions.values())
    starts = {0, *entries, *loop.successors()} - {loop.index, block}

    def successors(index: int) -> list[int]:
        return [target for target in graph.blocks[index].successors() if target != block]

    return loop.index in walk(starts, successors)


def _step(operation: Operation, known: dict[str, int], registers: Mapping[str, str]) -> None:
    """Update the known values by one operation."""
    value = _result(operation, known)
    for name in operation.writes():
        known.pop(name, None)
        if value is not None:
            known[name] = _fitted(value, registers[name])


def _result(operation: Operation, known: Mapping[str, int]) -> int | None:
    opcode = operation.opcode
    if opcode not in ("mov", "setp", *_ARITHMETIC) or not isinstance(operation.operands[0], Register):
        return None
    sources = [_constant(source, known) for source in operation.operands[1:]]
    kind = operation.types[0]
    if None in sources or not (kind == "pred" or is_integer(kind)):
        return None
    values = [_read_as(source, kind) for source in sources if source is not None]
    if opcode == "mov":
        return values[0]
    if len(values) != 2 or operation.flags & {"sat", "cc", "and", "or", "xor"}:
        return None
    if isinstance(operation.spec, Compare):
        return int(_RELATIONS[operation.spec.relation](*values))
    return _ARITHMETIC[opcode](*values)


def _constant(source: Operand, known: Mapping[str, int]) -> int | None:
    match source:
        case Integer():
            return source.value
        case Register():
            return known.get(source.name)
        case SpecialRegister() | Float() | Symbol() | Address() | Vector() | Negated() | Pair() | Sink() | OperandList():
            return None
        case _:
            assert_never(source)


def _read_as(value: int, kind: str) -> int:
    if kind == "pred":
        return value & 1
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def _fitted(value: int, kind: str) -> int:
    return value & 1 if kind == "pred" else value & ((1 << int(kind.lstrip("bsuf"))) - 1)


# ---- the unrolled loop ------------------------------------------------------------------------------------------------


def _written_out(block: Block, turns: list[dict[str, int]], registers: dict[str, str]) -> Block:
    """Return the block with one copy of its operations per turn. `registers` gets the new names of all turns but the last."""
    branch = block.terminator
    assert isinstance(branch, Branch), "a loop ends in a branch"
    names: dict[str, str] = {}
    operations: list[Operation] = []
    last = len(turns) - 2
    for turn in range(last + 1):
        if turn == 0:
            for name, value in turns[0].items():
                operations.append(_move(block, name, _fresh(name, turn - 1, registers), value, registers))
                names[name] = f"{name}.{turn - 1}"
        known = dict(turns[turn])
        for operation in block.operations:
            _step(operation, known, registers)
            operands = list(operation.operands)
            first = int(operation.has_result)
            operands[first:] = [_renamed(operand, names) for operand in operands[first:]]
            for name in operation.writes():
                names[name] = name if turn == last else _fresh(name, turn, registers)
            operands[:first] = [_renamed(operand, names) for operand in operands[:first]]
            (target, *_) = operation.writes() or ("",)
            if target in known and operation.opcode != "mov":
                operations.append(_move(block, target, names[target], known[target], registers))
            else:
                operations.append(replace(operation, instruction=replace(operation.instruction, operands=tuple(operands))))
    target = branch.otherwise if branch.taken == block.index else branch.taken
    return replace(block, operations=operations, terminator=Jump(target))


def _fresh(name: str, turn: int, registers: dict[str, str]) -> str:
    fresh = f"{name}.{turn}"
    registers[fresh] = registers[name]
    return fresh


def _move(block: Block, name: str, target: str, value: int, registers: Mapping[str, str]) -> Operation:
    kind = registers[name]
    line = block.operations[0].line
    return decode(Instruction("mov", (kind,), (Register(target), Integer(value)), None, line))


def _renamed(operand: Operand, names: Mapping[str, str]) -> Operand:
    match operand:
        case Register():
            return Register(names.get(operand.name, operand.name))
        case Negated():
            return Negated(Register(names.get(operand.register.name, operand.register.name)))
        case Address(base=Register(name), offset=offset):
            return Address(Register(names.get(name, name)), offset)
        case Vector():
            return Vector(tuple(_renamed(element, names) for element in operand.elements))
        case OperandList():
            return OperandList(tuple(_renamed(element, names) for element in operand.elements))
        case Pair():
            return Pair(_renamed(operand.first, names), _renamed(operand.second, names))
        case SpecialRegister() | Integer() | Float() | Symbol() | Address() | Sink():
            return operand
        case _:
            assert_never(operand)
