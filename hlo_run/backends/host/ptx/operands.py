"""Check the operands of instructions: their number, their kinds, and the widths of registers.

The rules are those of the PTX ISA (the section of each instruction, and "Operand Size Exceeding Instruction-Type Size" for loads,
stores and conversions). Both engines rely on them, so a wrong operand is an error in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Float,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)
from hlo_run.errors import HloRunError, ParseError, Where

# Spaces whose addresses fit into 32 bits.
_SHORT_SPACES = frozenset(("shared", "local", "param"))
# The operands of an opcode, one letter each. Results: d of the first type, w of twice its width if the instruction is `.wide`,
# u of 32 bits, p a predicate, t one or two predicates, s a 32-bit result and perhaps a predicate. Sources: a of the first type,
# b of the last, c like w, i of 32 bits, l of 64 bits, q a predicate, n a literal byte, m an address, x a label or table.
_PATTERNS: Mapping[str, str] = {
    opcode: pattern
    for pattern, opcodes in {
        "dba": "add sub",
        "daa": "addc subc div rem min max and or xor copysign",
        "waa": "mul",
        "waac": "mad madc",
        "dbba": "fma",
        "daaa": "sad",
        "da": "abs neg not cnot brev rcp sqrt rsqrt sin cos lg2 ex2 tanh cvta",
        "ua": "popc clz bfind",
        "daii": "bfe",
        "daaii": "bfi",
        "uiii": "dp4a dp2a prmt shf",
        "uiiin": "lop3",
        "dai": "shl shr redux",
        "pa": "testp",
        "daaq": "selp",
        "daab": "slct",
        "pl": "isspacep",
        "saiii": "shfl",
        "u": "activemask",
        "i": "nanosleep",
        "x": "bra",
        "ix": "brx",
        "": "ret exit trap",
    }.items()
    for opcode in opcodes.split()
}
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_WORD, _LONG, _PREDICATE = 32, 64, 1
_REGISTER_BITS = frozenset((1, 8, 16, 32, 64))
_FLOAT_IMMEDIATES = frozenset(("f32", "f64", "b32", "b64", "u32", "u64"))


def type_bits(type_name: str) -> int:
    """Return the width of a type in bits; 1 for predicates."""
    return _PREDICATE if type_name == "pred" else 8 * TYPE_BYTES[type_name]


def _wanted(op: Operation, letter: str) -> tuple[int, str]:
    """Return (bits, type) of an operand of the pattern."""
    if letter in "dawcb":
        name = op.types[-1] if letter == "b" else op.types[0]
        twice = 2 if letter in "wc" and "wide" in op.flags else 1
        return twice * type_bits(name), name
    return {"l": (_LONG, "b64"), "p": (_PREDICATE, "pred"), "q": (_PREDICATE, "pred")}.get(letter, (_WORD, "b32"))


class OperandRules(Struct, frozen=True):
    """The declarations that instructions of one function refer to.

    `registers` maps registers to types. `symbols` are the names of its variables and parameters, and those of the module.
    """

    registers: Mapping[str, str]
    symbols: Collection[str]
    kernel: str

    def check(self, op: Operation) -> None:
        """Raise ParseError for operands that the instruction cannot have, Unsupported for some that Host does not know."""
        guard = op.instruction.guard
        if guard is not None and self._bits(guard.register) != _PREDICATE:
            raise self._error(op, f"the guard '{guard.register.name}' is not a predicate")
        special = _SPECIAL.get(op.opcode)
        if special is not None:
            special(self, op)
        elif op.opcode in _PATTERNS:
            self.match(op, _PATTERNS[op.opcode])

    def match(self, op: Operation, pattern: str) -> None:
        """Check all operands by the letters of a pattern."""
        self.count(op, len(pattern))
        for letter, operand in zip(pattern, op.operands, strict=True):
            if letter in "dwup":
                self.target(op, operand, _wanted(op, letter)[0])
            elif letter in "ts":
                self._pair(op, operand, _PREDICATE if letter == "t" else _WORD)
            elif letter == "m":
                self.address(op, operand)
            elif letter == "n":
                if not isinstance(operand, Integer) or not 0 <= operand.value <= 0xFF:
                    raise self._error(op, "its last operand must be a number from 0 to 255")
            elif letter == "x":
                if not isinstance(operand, Symbol):
                    raise self._error(op, "a jump needs a label")
            else:
                self.source(op, operand, *_wanted(op, letter))

    def count(self, op: Operation, *counts: int) -> None:
        """Check the number of operands."""
        if len(op.operands) not in counts:
            raise self._error(op, f"it needs {' or '.join(map(str, counts))} operands, not {len(op.operands)}")

    def target(self, op: Operation, operand: Operand, bits: int, wider: bool = False) -> None:
        """Check a result: a register of these bits (or, with `wider`, of more), or `_`."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise self._error(op, "its result must be a register")
        self._fits(op, operand, bits, wider)

    def _pair(self, op: Operation, operand: Operand, bits: int) -> None:
        if isinstance(operand, Pair):
            self.target(op, operand.first, bits)
            self.target(op, operand.second, _PREDICATE)
        else:
            self.target(op, operand, bits)

    def source(self, op: Operation, operand: Operand, bits: int, type_name: str, wider: bool = False) -> None:
        """Check a value of a type: a register of these bits (or, with `wider`, of more), an immediate or an address."""
        match operand:
            case Register():
                self._fits(op, operand, bits, wider)
            case Negated() if bits == _PREDICATE:
                self._fits(op, operand.register, bits)
            case SpecialRegister():
                width = _LONG if operand.name in ("%clock64", "%globaltimer") else _WORD
                if width != bits and not (wider and width > bits):
                    raise self._error(op, f"'{operand.name}' has {width} bits, the instruction needs {bits}")
            case Integer():
                pass
            case Float() if type_name in _FLOAT_IMMEDIATES:
                pass
            case Symbol() if bits in (_WORD, _LONG) and type_name[0] in "bsu":
                self._known(op, operand)
            case _:
                raise self._error(op, f"one of its operands cannot be a value of type .{type_name}")

    def address(self, op: Operation, operand: Operand) -> None:
        """Check `[base+offset]`."""
        if not isinstance(operand, Address):
            raise self._error(op, "it needs an address in brackets")
        if isinstance(operand.base, Symbol):
            self._known(op, operand.base)
        elif isinstance(operand.base, Register):
            is_short = any(flag.partition("::")[0] in _SHORT_SPACES for flag in op.flags)
            if self._bits(operand.base) not in ((_WORD, _LONG) if is_short else (_LONG,)):
                bits = "32 or 64" if is_short else "64"
                raise self._error(op, f"the address register '{operand.base.name}' must have {bits} bits")

    def elements(self, op: Operation, operand: Operand) -> tuple[Operand, ...]:
        """Return the elements of an operand that is a vector if the instruction is `.v2`, `.v4` or `.v8`."""
        lanes = next((count for name, count in _VECTORS.items() if name in op.flags), 0)
        if lanes == 0 and not isinstance(operand, Vector):
            return (operand,)
        if lanes and isinstance(operand, Sink):
            return (operand,) * lanes
        if not isinstance(operand, Vector) or len(operand.elements) != max(lanes, 1):
            raise self._error(op, f"it needs {lanes} elements in braces" if lanes else "it takes no elements in braces")
        return operand.elements

    def _fits(self, op: Operation, register: Register, bits: int, wider: bool = False) -> None:
        width = self._bits(register)
        if width not in _REGISTER_BITS:
            raise op.unsupported()
        is_predicate = width == _PREDICATE or bits == _PREDICATE
        if width != bits and (is_predicate or not wider or width < bits):
            raise self._error(op, f"register '{register.name}' has {width} bits, the instruction needs {bits}")

    def _bits(self, register: Register) -> int:
        return type_bits(self.registers[register.name])

    def _known(self, op: Operation, symbol: Symbol) -> None:
        if symbol.name not in self.symbols:
            raise self._error(op, f"'{symbol.name}' is not a variable")

    def _error(self, op: Operation, what: str) -> HloRunError:
        place = Where(f"{self.kernel}.ptx", op.line, 1)
        return ParseError(f"PTX instruction '{op.instruction.spelling}': {what}", place)


def _load(rules: OperandRules, op: Operation) -> None:
    rules.count(op, 2)
    rules.address(op, op.operands[1])
    for element in rules.elements(op, op.operands[0]):
        rules.target(op, element, type_bits(op.type), wider=True)


def _store(rules: OperandRules, op: Operation) -> None:
    rules.count(op, 2)
    rules.address(op, op.operands[0])
    for element in rules.elements(op, op.operands[1]):
        rules.source(op, element, type_bits(op.type), op.type, wider=True)


def _atomic(rules: OperandRules, op: Operation) -> None:
    results = op.operands[:1] if op.opcode == "atom" else ()
    sources = 2 if "cas" in op.flags else 1
    rules.count(op, len(results) + 1 + sources)
    for result in results:
        for element in rules.elements(op, result):
            rules.target(op, element, type_bits(op.type))
    rules.address(op, op.operands[len(results)])
    for source in op.operands[len(results) + 1 :]:
        for element in rules.elements(op, source):
            rules.source(op, element, type_bits(op.type), op.type)


def _move(rules: OperandRules, op: Operation) -> None:
    rules.count(op, 2)
    target, source = op.operands
    bits = type_bits(op.type)
    for operand in (target, source):
        if isinstance(operand, Vector):
            part = bits // max(1, len(operand.elements))
            if op.type[0] != "b" or part * len(operand.elements) != bits or part not in (8, 16, 32, 64):
                raise op.unsupported()
            for element in operand.elements:
                if operand is target:
                    rules.target(op, element, part, wider=part == 8)
                else:
                    rules.source(op, element, part, f"b{part}", wider=part == 8)
        elif operand is target:
            rules.target(op, operand, bits)
        elif isinstance(target, Vector) and not isinstance(operand, Register):
            raise op.unsupported()
        else:
            rules.source(op, operand, bits, op.type)
    if isinstance(target, Vector) and isinstance(source, Vector):
        raise op.unsupported()


def _convert(rules: OperandRules, op: Operation) -> None:
    to, origin = op.types
    sources = 2 if to.endswith("x2") and origin == "f32" else 1
    rules.count(op, 1 + sources)
    rules.target(op, op.operands[0], type_bits(to), wider=to[0] in "su")
    for source in op.operands[1:]:
        rules.source(op, source, type_bits(origin), origin, wider=origin[0] in "su")


def _compare(rules: OperandRules, op: Operation) -> None:
    third = "q" if op.choice("and", "or", "xor") else ""
    rules.match(op, ("taa" if op.opcode == "setp" else "dbb") + third)
    # Packed values give a predicate each.
    if op.opcode == "setp" and op.type.endswith("x2") and not isinstance(op.operands[0], Pair):
        raise op.unsupported()


def _vote(rules: OperandRules, op: Operation) -> None:
    rules.match(op, "uqi" if "ballot" in op.flags else "pqi")


def _match(rules: OperandRules, op: Operation) -> None:
    rules.match(op, "sai")
    if "any" in op.flags and isinstance(op.operands[0], Pair):
        raise op.unsupported()


def _elect(rules: OperandRules, op: Operation) -> None:
    rules.match(op, "si")
    if not isinstance(op.operands[0], Pair):
        raise op.unsupported()


def _barrier(rules: OperandRules, op: Operation) -> None:
    if "warp" in op.flags:
        rules.match(op, "i")
    elif "red" in op.flags:
        rules.count(op, 3, 4)
        rules.match(op, ("u" if "popc" in op.flags else "p") + "i" * (len(op.operands) - 2) + "q")
    else:
        rules.count(op, 0, 1, 2)
        rules.match(op, "i" * len(op.operands))


_SPECIAL: Mapping[str, Callable[[OperandRules, Operation], None]] = {
    **dict.fromkeys(("ld", "ldu"), _load),
    "st": _store,
    **dict.fromkeys(("atom", "red"), _atomic),
    "mov": _move,
    "cvt": _convert,
    **dict.fromkeys(("setp", "set"), _compare),
    "vote": _vote,
    "match": _match,
    "elect": _elect,
    **dict.fromkeys(("bar", "barrier"), _barrier),
}
