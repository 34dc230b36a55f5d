"""Inline all device functions of an entry: the result is one flat list of operations and labels.

Names of an inlined function get the number of its call as a prefix. Parameters that calls pass through `.param` space become
registers, one per offset and width: `param0+8:b32`. Recursion, indirect calls and calls of functions without a body (printf,
assertions) are Unsupported.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from typing import TypeAlias, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from hlo_run.backends.host.ptx.instruction_set import Operation, decode
from hlo_run.backends.host.ptx.operands import OperandRules
from hlo_run.backends.host.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Float,
    Function,
    Guard,
    Instruction,
    Integer,
    Label,
    Module,
    Negated,
    Operand,
    OperandList,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Variable,
    Vector,
)
from hlo_run.errors import DeviceError, Unsupported

Item: TypeAlias = Label | Operation
_MAX_ITEMS = 500_000


class FlatFunction(Struct):
    """An entry without calls: its items, the types of all registers, its variables and jump tables."""

    entry: Function
    items: list[Item] = field(default_factory=list[Item])
    registers: dict[str, str] = field(default_factory=dict[str, str])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def flatten(module: Module, entry_name: str) -> FlatFunction:
    """Return the entry `entry_name` with calls inlined.

    Raises DeviceError if the module lacks the entry, ParseError for a wrong call, Unsupported for one that cannot be inlined.
    """
    entry = module.functions.get(entry_name)
    if entry is None or entry.body is None or not entry.is_entry:
        known = ", ".join(name for name, function in module.functions.items() if function.is_entry)
        raise DeviceError(f"the PTX has no kernel '{entry_name}'", notes=(f"its kernels: {known or 'none'}",))
    flat = FlatFunction(entry)
    for variable in module.variables.values():
        flat.variables[variable.name] = variable
    inliner = _Inliner(module, flat)
    inliner.expand(entry, _Frame(entry, ""))
    inliner.check_parameters()
    return flat


class _Frame(Struct):
    """A function that is being copied: the prefix of its names, and the bindings of its `.param` names."""

    function: Function
    prefix: str
    bindings: dict[str, str] = field(default_factory=dict[str, str])
    locals: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    callers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.locals = frozenset(variable.name for variable in self.function.variables if variable.space != "param")
        self.parameters = frozenset(variable.name for variable in self.function.variables if variable.space == "param")


class _Inliner:
    def __init__(self, module: Module, flat: FlatFunction) -> None:
        self._module = module
        self._flat = flat
        self._calls = 0
        self._stored: set[str] = set()
        # The width in bits of the last store to each (parameter, offset).
        self._widths: dict[tuple[str, int], int] = {}
        self._loaded: dict[str, Operation] = {}

    def check_parameters(self) -> None:
        """Raise Unsupported for a parameter whose loads do not match its stores in offset and width."""
        for name, operation in self._loaded.items():
            if name not in self._stored:
                raise operation.unsupported()

    def expand(self, function: Function, frame: _Frame) -> None:
        """Append the body of `function` with the names of `frame`."""
        assert function.body is not None, "only functions with a body are expanded"
        flat, prefix = self._flat, frame.prefix
        for name, type_name in function.registers.items():
            flat.registers[prefix + name] = type_name
        for variable in function.variables:
            if variable.space != "param":
                full_name = f"{function.name}:{variable.name}"
                flat.variables[full_name] = replace(variable, name=full_name)
        for name, targets in function.branch_targets.items():
            flat.branch_targets[prefix + name] = tuple(prefix + target for target in targets)
        rules = self._rules_of(function)
        for statement in function.body:
            if isinstance(statement, Label):
                flat.items.append(Label(prefix + statement.name, statement.line))
                continue
            operation = decode(statement)
            rules.check(operation)
            self._instruction(operation, frame)
        if prefix:
            flat.items.append(Label(prefix + "return", function.line))
        if len(flat.items) > _MAX_ITEMS:
            raise Unsupported(f"kernel '{flat.entry.name}' has more than {_MAX_ITEMS} instructions after inlining its calls")

    def _rules_of(self, function: Function) -> OperandRules:
        own = (*function.variables, *function.parameters, *function.returns)
        symbols = {*self._module.variables, *self._module.functions, *(variable.name for variable in own)}
        return OperandRules(function.registers, symbols, self._flat.entry.name)

    def _instruction(self, operation: Operation, frame: _Frame) -> None:
        instruction = operation.instruction
        if operation.opcode == "call":
            self._call(operation, frame)
            return
        if operation.opcode == "ret" and frame.prefix:
            guard = self._guard(instruction.guard, frame)
            target = Symbol(frame.prefix + "return")
            self._append(Instruction("bra", (), (target,), guard, instruction.line))
            return
        if bound := self._bound_parameter(operation, frame):
            self._move_parameter(operation, bound, frame)
            return
        operands = tuple(self._rename(operand, frame) for operand in instruction.operands)
        self._append(replace(instruction, operands=operands, guard=self._guard(instruction.guard, frame)))

    def _append(self, instruction: Instruction) -> None:
        self._flat.items.append(decode(instruction))

    def _guard(self, guard: Guard | None, frame: _Frame) -> Guard | None:
        return guard and Guard(Register(frame.prefix + guard.register.name), guard.negated)

    def _rename(self, operand: Operand, frame: _Frame) -> Operand:
        """Return `operand` with its names in the flat function."""
        prefix = frame.prefix
        match operand:
            case Register():
                return Register(prefix + operand.name) if prefix else operand
            case Negated():
                return Negated(Register(prefix + operand.register.name))
            case Symbol():
                return self._rename_symbol(operand, frame)
            case Address():
                return Address(self._rename_base(operand.base, frame), operand.offset)
            case Vector():
                return Vector(tuple(self._rename(element, frame) for element in operand.elements))
            case OperandList():
                return OperandList(tuple(self._rename(element, frame) for element in operand.elements))
            case Pair():
                return Pair(self._rename(operand.first, frame), self._rename(operand.second, frame))
            case SpecialRegister() | Integer() | Float() | Sink():
                return operand
            case _:
                assert_never(operand)

    def _rename_base(self, base: Register | Symbol | Integer, frame: _Frame) -> Register | Symbol | Integer:
        match base:
            case Register():
                return Register(frame.prefix + base.name)
            case Symbol():
                return self._rename_symbol(base, frame)
            case Integer():
                return base

    def _rename_symbol(self, symbol: Symbol, frame: _Frame) -> Symbol:
        if symbol.name in frame.locals:
            return Symbol(f"{frame.function.name}:{symbol.name}", symbol.offset)
        if symbol.name in self._flat.variables or symbol.name in self._module.functions:
            return symbol
        return Symbol(frame.prefix + symbol.name, symbol.offset) if frame.prefix else symbol

    # ---- calls --------------------------------------------------------------------------------------------------

    def _call(self, operation: Operation, frame: _Frame) -> None:
        """Inline `call (results), name, (arguments);`. Both lists are optional."""
        results, name, arguments = _call_parts(operation)
        callee = self._module.functions.get(name)
        line = operation.line
        if callee is None or callee.body is None:
            raise Unsupported(f"call of '{name}', which has no body (line {line} of the PTX)")
        if callee.is_entry or name == frame.function.name or name in frame.callers:
            raise Unsupported(f"recursive call of '{name}' (line {line} of the PTX)")
        if operation.instruction.guard:
            raise Unsupported(f"predicated call of '{name}' (line {line} of the PTX)")
        formals = (*callee.returns, *callee.parameters)
        if len(results) != len(callee.returns) or len(arguments) != len(callee.parameters):
            raise Unsupported(f"call of '{name}' with another number of arguments (line {line} of the PTX)")
        self._calls += 1
        inner = _Frame(callee, f"{self._calls}:{name}:", callers=(*frame.callers, frame.function.name))
        for formal, actual in zip(formals, (*results, *arguments), strict=True):
            if formal.space == "param" and isinstance(actual, Symbol):
                inner.bindings[formal.name] = frame.bindings.get(actual.name, frame.prefix + actual.name)
        self._copy_registers(callee.parameters, arguments, frame, inner, line, inward=True)
        self.expand(callee, inner)
        self._copy_registers(callee.returns, results, frame, inner, line, inward=False)

    def _copy_registers(
        self, formals: Iterable[Variable], actuals: Iterable[Operand], frame: _Frame, inner: _Frame, line: int, *, inward: bool
    ) -> None:
        """Move the arguments or results that are passed in registers, into or out of the callee."""
        for formal, actual in zip(formals, actuals, strict=True):
            if formal.space != "reg":
                continue
            outer, own = self._rename(actual, frame), Register(inner.prefix + formal.name)
            operands = (own, outer) if inward else (outer, own)
            move = Instruction("mov", (_bits_type(formal.type),), operands, None, line)
            registers = ChainMap({own.name: formal.type}, self._flat.registers)
            OperandRules(registers, self._flat.variables, self._flat.entry.name).check(decode(move))
            self._append(move)

    def _bound_parameter(self, operation: Operation, frame: _Frame) -> str:
        """Return the flat name of the parameter that a `ld.param`/`st.param` accesses; empty for an entry's parameter."""
        if not operation.flags & {"param", "param::func"}:
            return ""
        address = next((operand for operand in operation.operands if isinstance(operand, Address)), None)
        if address is None or not isinstance(address.base, Symbol):
            raise operation.unsupported()
        name = address.base.name
        if name in frame.bindings:
            return frame.bindings[name]
        return frame.prefix + name if name in frame.parameters else ""

    def _move_parameter(self, operation: Operation, bound: str, frame: _Frame) -> None:
        """Replace an access of a passed parameter by moves from or to its registers."""
        is_load = operation.opcode == "ld"
        address, value = operation.operands if not is_load else reversed(operation.operands)
        assert isinstance(address, Address), "a parameter access has an address"
        elements = value.elements if isinstance(value, Vector) else (value,)
        for number, element in enumerate(elements):
            offset = address.offset + number * TYPE_BYTES[operation.type]
            bits = max(16, 8 * TYPE_BYTES[operation.type])
            guard = self._guard(operation.instruction.guard, frame)
            if is_load and (parts := self._parts(bound, offset, 8 * TYPE_BYTES[operation.type])):
                operands = (self._rename(element, frame), Vector(parts))
                self._append(Instruction("mov", (f"b{bits}",), operands, guard, operation.line))
                continue
            stored_bits = self._widths.get((bound, offset), bits) if is_load else bits
            move = f"b{max(bits, stored_bits)}"
            register = Register(f"{bound}+{offset}:{move}")
            self._flat.registers[register.name] = move
            if is_load:
                self._loaded.setdefault(register.name, operation)
            else:
                self._stored.add(register.name)
                self._widths[bound, offset] = bits
            outer = self._rename(element, frame)
            operands = (outer, register) if is_load else (register, outer)
            spelling = self._copy(*operands, 8 * TYPE_BYTES[operation.type], move)
            outer_bits = self._register_bits(outer, bits)
            if is_load and operation.type.startswith("s") and 8 * TYPE_BYTES[operation.type] < outer_bits:
                spelling = "cvt", (f"s{outer_bits}", operation.type)  # sign-extend to the register's width
            self._append(Instruction(*spelling, operands, guard, operation.line))

    def _parts(self, bound: str, offset: int, bits: int) -> tuple[Register, ...]:
        """Return the registers of the two or four narrower stores that a load of `bits` bits joins; empty if there are none."""
        width = self._widths.get((bound, offset), bits)
        if width not in (bits // 2, bits // 4):
            return ()
        places = range(offset, offset + bits // 8, width // 8)
        if any(self._widths.get((bound, place)) != width for place in places):
            return ()
        return tuple(Register(f"{bound}+{place}:b{width}") for place in places)

    def _copy(self, target: Operand, source: Operand, bits: int, move: str) -> tuple[str, tuple[str, ...]]:
        """Return the instruction that copies the low bits. A register may be wider than the value that it loads or stores."""
        target_bits, source_bits = (self._register_bits(operand, int(move[1:])) for operand in (target, source))
        if not isinstance(source, Register) or (target_bits == source_bits and bits >= source_bits):
            return "mov", (f"b{target_bits}",)
        return "cvt", (f"u{target_bits}", f"u{min(bits, source_bits)}")

    def _register_bits(self, operand: Operand, default: int) -> int:
        if not isinstance(operand, Register):
            return default
        return 8 * TYPE_BYTES[self._flat.registers[operand.name]]


def _call_parts(operation: Operation) -> tuple[tuple[Operand, ...], str, tuple[Operand, ...]]:
    rest = list(operation.operands)
    results: tuple[Operand, ...] = ()
    if rest and isinstance(rest[0], OperandList):
        results = rest[0].elements
        del rest[0]
    if not rest or not isinstance(rest[0], Symbol) or len(rest) > 2:
        raise operation.unsupported()
    if len(rest) == 1:
        return results, rest[0].name, ()
    if not isinstance(rest[1], OperandList):
        raise operation.unsupported()
    return results, rest[0].name, rest[1].elements


def _bits_type(type_name: str) -> str:
    return "pred" if type_name == "pred" else f"b{8 * TYPE_BYTES[type_name]}"
