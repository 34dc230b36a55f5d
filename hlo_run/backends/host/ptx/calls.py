"""Copy device functions into an entry, or attach them: the result is one list of operations, labels and calls per function.

Names of a copied function get the number of its call as a prefix, those of a called function its name. All names are unique, so
one set of registers serves a thread: no function is active twice. Parameters that calls pass through `.param` space become
registers, one per offset and width: `param0+8:b32`. Recursion, indirect calls and calls of functions without a body (printf,
assertions) are Unsupported.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias, assert_never

from msgspec import Struct, field

from hlo_run.backends.host.ptx.call_plan import CallPlan, plan_calls
from hlo_run.backends.host.ptx.instruction_set import Operation, decode
from hlo_run.backends.host.ptx.operands import OperandRules
from hlo_run.backends.host.ptx.specs import Load, Move, Store
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
from hlo_run.records import replace

_Widths: TypeAlias = "dict[str, dict[int, int]]"
"""The widths in bits of the parts of parameters in `.param` space, by name and offset in bytes."""
_WAY_OUT = "run on CUDA, or on the Interpreter: --platform=Interpreter"


class Call(Struct, frozen=True):
    """A call of a function that is not copied. Moves before and after it pass the arguments and results in its registers."""

    function: str
    line: int


Item: TypeAlias = Label | Operation | Call


class CalledFunction(Struct):
    """A function that is called: its items, and the registers that its callers set and read."""

    items: list[Item] = field(default_factory=list[Item])
    inputs: set[str] = field(default_factory=set[str])
    outputs: set[str] = field(default_factory=set[str])


class FlatFunction(Struct):
    """An entry with the functions that it calls: their items, the types of all registers, variables and jump tables."""

    entry: Function
    items: list[Item] = field(default_factory=list[Item])
    called: dict[str, CalledFunction] = field(default_factory=dict[str, CalledFunction])
    registers: dict[str, str] = field(default_factory=dict[str, str])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def flatten(module: Module, entry_name: str) -> FlatFunction:
    """Return the entry `entry_name` with its functions, copied or called as `plan_calls` decides.

    Raises DeviceError if the module lacks the entry, ParseError for a wrong call, Unsupported for one that Host cannot run.
    """
    entry = module.functions.get(entry_name)
    if entry is None or entry.body is None or not entry.is_entry:
        known = ", ".join(name for name, function in module.functions.items() if function.is_entry)
        raise DeviceError(f"the PTX has no kernel '{entry_name}'", notes=(f"its kernels: {known or 'none'}",))
    for parameter in entry.parameters:
        if parameter.size_bytes != 8:
            raise Unsupported(f"parameter '{parameter.name}' of kernel '{entry.name}' is not a 64-bit pointer")
    flat = FlatFunction(entry)
    for variable in module.variables.values():
        flat.variables[variable.name] = variable
    inliner = _Inliner(module, flat, plan_calls(module, entry))
    inliner.expand(entry, _Frame(entry, ""))
    inliner.expand_called()
    inliner.check_parameters()
    return flat


class _Signature(Struct, frozen=True):
    """The arguments that calls of a function pass, and the values that it returns (None: in no fixed widths)."""

    inputs: _Widths
    outputs: _Widths | None


class _Frame(Struct):
    """A function that is being copied: the prefix of its names, and the bindings of its `.param` names."""

    function: Function
    prefix: str
    bindings: dict[str, str] = field(default_factory=dict[str, str])
    locals: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.locals = frozenset(variable.name for variable in self.function.variables if variable.space != "param")
        self.parameters = frozenset(variable.name for variable in self.function.variables if variable.space == "param")


class _Inliner:
    def __init__(self, module: Module, flat: FlatFunction, plan: CallPlan) -> None:
        self._module = module
        self._flat = flat
        self._plan = plan
        self._items = flat.items
        self._parameters = frozenset(parameter.name for parameter in flat.entry.parameters)
        self._waiting: list[Function] = []
        self._calls = 0
        self._stored: set[str] = set()
        # The width in bits of the last store to each parameter, by name and offset.
        self._widths: dict[str, dict[int, int]] = {}
        self._loaded: dict[str, Operation] = {}
        self._signatures: dict[str, _Signature] = {}

    def check_parameters(self) -> None:
        """Raise Unsupported for a parameter whose loads do not match its stores in offset and width."""
        for name, operation in self._loaded.items():
            if name not in self._stored:
                raise operation.unsupported()

    def expand_called(self) -> None:
        """Write the items of all called functions."""
        while self._waiting:
            function = self._waiting.pop()
            self._items = self._flat.called[function.name].items
            own = {formal.name: f"{function.name}:{formal.name}" for formal in (*function.parameters, *function.returns)}
            self.expand(function, _Frame(function, f"{function.name}:", own))

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
                self._items.append(Label(prefix + statement.name, statement.line))
                continue
            operation = decode(statement)
            rules.check(operation)
            self._instruction(operation, frame)
        if prefix:
            self._items.append(Label(prefix + "return", function.line))

    def _rules_of(self, function: Function) -> OperandRules:
        own = (*function.variables, *function.parameters, *function.returns)
        symbols = {*self._module.variables, *self._module.functions, *(variable.name for variable in own)}
        return OperandRules(function.registers, symbols, self._flat.entry.name)

    def _instruction(self, operation: Operation, frame: _Frame) -> None:
        instruction = operation.instruction
        if operation.opcode == "call":
            self._call(operation, frame)
            return
        if operation.opcode == "exit" and self._items is not self._flat.items:
            raise _refused("end of a thread in a function of much code", operation.line)
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
        self._check_entry_parameters(self._items[-1])

    def _append(self, instruction: Instruction) -> None:
        self._items.append(decode(instruction))

    def _check_entry_parameters(self, item: Item) -> None:
        """Raise Unsupported for an access to the kernel's parameters other than the load of a whole pointer."""
        if not isinstance(item, Operation):
            return
        match item.spec:
            case Load(space="param", size_bytes=size):
                target, address = item.operands
                assert isinstance(address, Address), "the rules have checked the operands"
                base = address.base
                is_start = isinstance(base, Symbol) and base.offset + address.offset == 0 and base.name in self._parameters
                if not is_start or size != 8 or isinstance(target, Vector):
                    raise item.unsupported()
            case Store(space="param"):
                raise item.unsupported()
            case Move():
                source = item.operands[1]
                if isinstance(source, Symbol) and source.name not in self._flat.variables:
                    raise item.unsupported()
            case _:
                pass

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
        """Copy or call the callee of `call (results), name, (arguments);`. Both lists are optional."""
        results, name, arguments = _call_parts(operation)
        callee = self._module.functions.get(name)
        line = operation.line
        if callee is None or callee.body is None:
            raise _refused(f"call of '{name}', which has no body", line)
        if callee.is_entry or name in self._plan.recursive:
            raise _refused(f"recursive call of '{name}'", line)
        if operation.instruction.guard:
            raise _refused(f"predicated call of '{name}'", line)
        if len(results) != len(callee.returns) or len(arguments) != len(callee.parameters):
            raise _refused(f"call of '{name}' with another number of arguments", line)
        passed = {
            formal.name: frame.bindings.get(actual.name, frame.prefix + actual.name)
            for formal, actual in zip((*callee.returns, *callee.parameters), (*results, *arguments), strict=True)
            if formal.space == "param" and isinstance(actual, Symbol)
        }
        if name in self._plan.called and self._takes(callee, passed):
            prefix, bindings = f"{name}:", dict[str, str]()
        else:
            self._calls += 1
            prefix, bindings = f"{self._calls}:{name}:", passed
        inner = _Frame(callee, prefix, bindings)
        self._copy_registers(callee.parameters, arguments, frame, inner, line, inward=True)
        if bindings is passed:
            self.expand(callee, inner)
        else:
            signature = self._signatures[name]
            assert signature.outputs is not None, "a function that is called has clear results"
            self._pass(signature.inputs, passed, callee, line, inward=True)
            self._items.append(Call(name, line))
            self._pass(signature.outputs, passed, callee, line, inward=False)
        self._copy_registers(callee.returns, results, frame, inner, line, inward=False)

    def _takes(self, callee: Function, passed: Mapping[str, str]) -> bool:
        """True if a called function can take the arguments: every call must store the same offsets in the same widths.

        The first call decides, and reserves the function's registers.
        """
        given = {name: dict(sorted(self._widths.get(outer, {}).items())) for name, outer in passed.items()}
        inputs = {formal.name: given.get(formal.name, {}) for formal in callee.parameters}
        known = self._signatures.get(callee.name)
        if known is not None:
            return known.inputs == inputs and known.outputs is not None
        self._signatures[callee.name] = signature = _Signature(inputs, _returned_widths(callee))
        if signature.outputs is None:
            return False
        self._waiting.append(callee)
        self._flat.called[callee.name] = called = CalledFunction()
        sides = ((callee.parameters, inputs, called.inputs), (callee.returns, signature.outputs, called.outputs))
        for formals, widths, names in sides:
            names.update(f"{callee.name}:{formal.name}" for formal in formals if formal.space == "reg")
            for formal, offset, width in _pieces(widths):
                names.add(self._parameter(f"{callee.name}:{formal}", offset, width))
        return True

    def _parameter(self, name: str, offset: int, width: int) -> str:
        """Return the register for a part of a passed parameter that is stored."""
        widths = self._widths.setdefault(name, {})
        for other in [other for other in widths if offset < other < offset + _bytes(width)]:
            del widths[other]
        widths[offset] = width
        register = f"{name}+{offset}:b{width}"
        self._flat.registers[register] = f"b{width}"
        self._stored.add(register)
        return register

    def _pass(self, widths: _Widths, passed: Mapping[str, str], callee: Function, line: int, *, inward: bool) -> None:
        """Move arguments or results that are passed in `.param` space, between the registers of caller and callee."""
        for formal, offset, width in _pieces(widths):
            if formal in passed:
                outer = Register(self._parameter(passed[formal], offset, width))
                inner = Register(self._parameter(f"{callee.name}:{formal}", offset, width))
                operands = (inner, outer) if inward else (outer, inner)
                self._append(Instruction("mov", (f"b{width}",), operands, None, line))

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
            stored_bits = self._widths.get(bound, {}).get(offset, bits) if is_load else bits
            move = f"b{max(bits, stored_bits)}"
            register = Register(f"{bound}+{offset}:{move}")
            self._flat.registers[register.name] = move
            if is_load:
                self._loaded.setdefault(register.name, operation)
            else:
                self._parameter(bound, offset, bits)
            outer = self._rename(element, frame)
            operands = (outer, register) if is_load else (register, outer)
            spelling = self._copy(*operands, 8 * TYPE_BYTES[operation.type], move)
            outer_bits = self._register_bits(outer, bits)
            if is_load and operation.type.startswith("s") and 8 * TYPE_BYTES[operation.type] < outer_bits:
                spelling = "cvt", (f"s{outer_bits}", operation.type)  # sign-extend to the register's width
            self._append(Instruction(*spelling, operands, guard, operation.line))

    def _parts(self, bound: str, offset: int, bits: int) -> tuple[Register, ...]:
        """Return the registers of the two or four narrower stores that a load of `bits` bits joins; empty if there are none."""
        stored = self._widths.get(bound, {})
        width = stored.get(offset, bits)
        if width not in (bits // 2, bits // 4):
            return ()
        places = range(offset, offset + bits // 8, width // 8)
        if any(stored.get(place) != width for place in places):
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


def _pieces(widths: _Widths) -> list[tuple[str, int, int]]:
    """Return (parameter, offset, width) of all parts."""
    return [(name, offset, width) for name, parts in widths.items() for offset, width in parts.items()]


def _returned_widths(function: Function) -> _Widths | None:
    """Return the widths in bits that a function stores to its results; None if two stores to a result overlap in part."""
    widths: _Widths = {formal.name: {} for formal in function.returns}
    for statement in function.body or ():
        if not isinstance(statement, Instruction) or statement.opcode != "st" or len(statement.operands) != 2:
            continue
        address, value = statement.operands
        if not isinstance(address, Address) or not isinstance(address.base, Symbol) or address.base.name not in widths:
            continue
        size = TYPE_BYTES.get(statement.modifiers[-1], 4)
        for number in range(len(value.elements) if isinstance(value, Vector) else 1):
            offset, width = address.offset + number * size, max(16, 8 * size)
            if widths[address.base.name].setdefault(offset, width) != width:
                return None
    return None if any(_overlap(parts) for parts in widths.values()) else widths


def _overlap(parts: Mapping[int, int]) -> bool:
    ordered = sorted(parts.items())
    return any(first + _bytes(width) > second for (first, width), (second, _) in pairwise(ordered))


def _bytes(width: int) -> int:
    """Return the least size of a part. A single byte also has a register of 16 bits."""
    return width // 8 if width > 16 else 1


def _refused(what: str, line: int) -> Unsupported:
    return Unsupported(f"{what} (line {line} of the PTX)", hint=_WAY_OUT)


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
