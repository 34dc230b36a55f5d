"""The table of supported PTX instructions: one row per opcode with its modifiers and types.

`decode` turns an instruction into an `Operation`, or raises Unsupported with its name. Both engines of the Host platform use this
table and the records of `spec_table`, so an unsupported instruction is rejected in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, assert_never

from msgspec import Struct

from hlo_run.backends.host.ptx.spec_table import ATOMIC_OPERATIONS, COMPARISONS, PROPERTIES, READERS
from hlo_run.backends.host.ptx.specs import Spec
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
from hlo_run.errors import Unsupported

CARRY = "%cc"
"""The carry flag of `add.cc` and similar instructions, as a register. No PTX register can have this name."""

_INTEGERS = "s16 u16 s32 u32 s64 u64"
_WIDE_INTEGERS = "s32 u32 s64 u64"
_BITS = "b16 b32 b64"
_FLOATS = "f16 f16x2 bf16 bf16x2 f32 f32x2 f64"
_HALVES = "f16 f16x2 bf16 bf16x2"
_ALL = f"b8 s8 u8 {_BITS} {_INTEGERS} {_FLOATS}"
_ROUNDING = "rn rz rm rp"
_SPACES = "global shared shared::cta local const param param::entry param::func"
_ORDER = "weak volatile relaxed acquire release acq_rel mmio cta cluster gpu sys"
_CACHE = (
    "ca cg cs lu cv wb wt nc L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate "
    "L2::evict_last L2::evict_normal L2::evict_first L2::64B L2::128B L2::256B"
)
_COMPARISONS = " ".join(COMPARISONS)
_ATOMIC = " ".join(ATOMIC_OPERATIONS)


class Spelling(Struct, frozen=True):
    """The modifiers and types of an opcode. `type_count` is the closed range of the number of types."""

    flags: frozenset[str]
    types: frozenset[str]
    type_count: tuple[int, int]
    has_result: bool


def _row(flags: str, types: str, count: int | tuple[int, int] = 1, has_result: bool = True) -> Spelling:
    bounds = (count, count) if isinstance(count, int) else count
    return Spelling(frozenset(flags.split()), frozenset(types.split()), bounds, has_result)


SPELLINGS: dict[str, Spelling] = {
    # integers, and the floating-point forms that share their opcode
    "add": _row(f"{_ROUNDING} ftz sat cc", f"{_INTEGERS} {_FLOATS} s16x2 u16x2", (1, 2)),
    "sub": _row(f"{_ROUNDING} ftz sat cc", f"{_INTEGERS} {_FLOATS}", (1, 2)),
    "addc": _row("cc", _WIDE_INTEGERS),
    "subc": _row("cc", _WIDE_INTEGERS),
    "mul": _row(f"lo hi wide {_ROUNDING} ftz sat", f"{_INTEGERS} {_FLOATS}"),
    "mad": _row(f"lo hi wide cc {_ROUNDING} ftz sat", f"{_INTEGERS} f32 f64"),
    "madc": _row("lo hi cc", _WIDE_INTEGERS),
    "sad": _row("", _INTEGERS),
    "div": _row(f"{_ROUNDING} approx full ftz", f"{_INTEGERS} f32 f64"),
    "rem": _row("", _INTEGERS),
    "dp4a": _row("", "s32 u32", 2),
    "dp2a": _row("lo hi", "s32 u32", 2),
    "abs": _row("ftz", f"s16 s32 s64 {_FLOATS}"),
    "neg": _row("ftz", f"s16 s32 s64 {_FLOATS}"),
    "min": _row("ftz NaN relu", f"{_INTEGERS} {_FLOATS} s16x2 u16x2"),
    "max": _row("ftz NaN relu", f"{_INTEGERS} {_FLOATS} s16x2 u16x2"),
    "popc": _row("", "b32 b64"),
    "clz": _row("", "b32 b64"),
    "bfind": _row("shiftamt", _WIDE_INTEGERS),
    "brev": _row("", "b32 b64"),
    "bfe": _row("", _WIDE_INTEGERS),
    "bfi": _row("", "b32 b64"),
    "prmt": _row("f4e b4e rc8 ecl ecr rc16", "b32"),
    "and": _row("", f"{_BITS} pred"),
    "or": _row("", f"{_BITS} pred"),
    "xor": _row("", f"{_BITS} pred"),
    "not": _row("", f"{_BITS} pred"),
    "cnot": _row("", _BITS),
    "lop3": _row("", "b32"),
    "shf": _row("l r clamp wrap", "b32"),
    "shl": _row("", _BITS),
    "shr": _row("", f"{_BITS} {_INTEGERS}"),
    # floating point alone
    "fma": _row(f"{_ROUNDING} ftz sat relu", _FLOATS, (1, 2)),
    "rcp": _row(f"{_ROUNDING} approx ftz", "f32 f64"),
    "sqrt": _row(f"{_ROUNDING} approx ftz", "f32 f64"),
    "rsqrt": _row("approx ftz", "f32 f64"),
    "sin": _row("approx ftz", "f32"),
    "cos": _row("approx ftz", "f32"),
    "lg2": _row("approx ftz", "f32"),
    "ex2": _row("approx ftz", f"f32 {_HALVES}"),
    "tanh": _row("approx", f"f32 {_HALVES}"),
    "testp": _row(" ".join(PROPERTIES), "f32 f64"),
    "copysign": _row("", "f32 f64"),
    # comparison and selection
    "setp": _row(f"{_COMPARISONS} ftz and or xor", f"{_BITS} {_INTEGERS} {_FLOATS} pred"),
    "set": _row(f"{_COMPARISONS} ftz and or xor", f"{_BITS} {_INTEGERS} {_FLOATS}", 2),
    "selp": _row("", f"{_BITS} {_INTEGERS} f16 bf16 f32 f64"),
    "slct": _row("ftz", f"{_BITS} {_INTEGERS} f32 f64", 2),
    # moves and conversions
    "mov": _row("", f"{_ALL} pred b128"),
    "cvt": _row(
        f"{_ROUNDING} rna rni rzi rmi rpi ftz sat satfinite relu",
        f"s8 u8 {_INTEGERS} f16 bf16 f32 f64 f16x2 bf16x2 tf32 e4m3x2 e5m2x2 e2m1x2",
        2,
    ),
    "cvta": _row("to global shared local const", "u32 u64"),
    "isspacep": _row("global shared local const", "", 0),
    # memory
    "ld": _row(f"{_SPACES} {_ORDER} {_CACHE} v2 v4 v8", f"{_ALL} b128"),
    "ldu": _row("global v2 v4", _ALL),
    "st": _row(f"{_SPACES} {_ORDER} {_CACHE} v2 v4 v8", f"{_ALL} b128", has_result=False),
    "atom": _row(
        f"global shared shared::cta {_ORDER} noftz {_ATOMIC} v2 v4 v8",
        f"{_BITS} {_INTEGERS} {_FLOATS}",
    ),
    "red": _row(
        f"global shared shared::cta {_ORDER} noftz add inc dec min max and or xor v2 v4 v8",
        f"{_BITS} {_INTEGERS} {_FLOATS}",
        has_result=False,
    ),
    # threads of a warp or block
    "shfl": _row("sync up down bfly idx", "b32"),
    "vote": _row("sync all any uni ballot", "pred b32"),
    "match": _row("sync any all", "b32 b64"),
    "redux": _row("sync add min max and or xor", "s32 u32 b32"),
    "activemask": _row("", "b32"),
    "elect": _row("sync", "", 0),
    "bar": _row("sync warp cta red popc and or", "u32 pred", (0, 1), has_result=False),
    "barrier": _row("sync cta aligned all", "", 0, has_result=False),
    "membar": _row("cta gl sys", "", 0, has_result=False),
    "fence": _row("acq_rel sc acquire release cta cluster gpu sys", "", 0, has_result=False),
    # control
    "bra": _row("uni", "", 0, has_result=False),
    "brx": _row("idx uni", "", 0, has_result=False),
    "call": _row("uni", "", 0, has_result=False),
    "ret": _row("uni", "", 0, has_result=False),
    "exit": _row("", "", 0, has_result=False),
    "trap": _row("", "", 0, has_result=False),
    "griddepcontrol": _row("wait launch_dependents", "", 0, has_result=False),
    "nanosleep": _row("", "u32", has_result=False),
    "prefetch": _row("global L1 L2", "", 0, has_result=False),
    "pmevent": _row("mask", "", 0, has_result=False),
}

_TYPE_NAMES = frozenset(name for spelling in SPELLINGS.values() for name in spelling.types)
_READS_CARRY = frozenset(("addc", "subc", "madc"))


WRONG_OPERANDS = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What the code of an instruction raises for operands that are not its own. PTX may come from a user."""


class Operation(Struct, frozen=True):
    """A decoded instruction: opcode, modifiers other than types, types in order, and the record of what it does."""

    opcode: str
    flags: frozenset[str]
    types: tuple[str, ...]
    spec: Spec
    instruction: Instruction

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The instruction's operands."""
        return self.instruction.operands

    @property
    def line(self) -> int:
        """The instruction's line in the PTX text."""
        return self.instruction.line

    @property
    def type(self) -> str:
        """The first type. For `cvt`, `set` and `slct` it is the type of the result."""
        return self.types[0]

    def choice(self, *names: str) -> str:
        """Return the first of `names` that is a flag of this instruction, or ""."""
        return next((name for name in names if name in self.flags), "")

    def unsupported(self) -> Unsupported:
        """Return (not raise) the error for this instruction."""
        return _unsupported(self.instruction)

    @property
    def has_result(self) -> bool:
        """True if the first operand is a destination."""
        return SPELLINGS[self.opcode].has_result or (self.opcode == "bar" and "red" in self.flags)

    def writes(self) -> tuple[str, ...]:
        """Return the registers that this instruction sets, including the carry flag."""
        names: list[str] = []
        if self.has_result:
            _collect(self.operands[0], names)
        if "cc" in self.flags:
            names.append(CARRY)
        return tuple(names)

    def reads(self) -> tuple[str, ...]:
        """Return the registers that this instruction reads, without its guard."""
        names: list[str] = []
        for operand in self.operands[1:] if self.has_result else self.operands:
            _collect(operand, names)
        if self.opcode in _READS_CARRY:
            names.append(CARRY)
        return tuple(names)


def decode(instruction: Instruction) -> Operation:
    """Return the decoded instruction. Raises Unsupported if its opcode, modifiers and types are not in the tables."""
    read = _read(instruction.opcode, instruction.modifiers)
    if read is None:
        raise _unsupported(instruction)
    return Operation(instruction.opcode, *read, instruction)


W = TypeVar("W")
S = TypeVar("S", bound=Spec)


def row(kind: type[S], write: Callable[[W, Operation, S], None]) -> tuple[type[Struct], Callable[[W, Operation], None]]:
    """Return a row of an engine's table: the record's type, and the function that writes the code of such an operation."""

    def write_operation(writer: W, operation: Operation) -> None:
        spec = operation.spec
        assert isinstance(spec, kind), "the table is indexed by the record's type"
        write(writer, operation, spec)

    return kind, write_operation


# A kernel has far fewer spellings than instructions.
@lru_cache(maxsize=4096)
def _read(opcode: str, modifiers: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...], Spec] | None:
    """Return the flags, the types and the record of a spelling; None if it is not known."""
    spelling = SPELLINGS.get(opcode)
    if spelling is None:
        return None
    types = tuple(modifier for modifier in modifiers if modifier in _TYPE_NAMES)
    flags = frozenset(modifier for modifier in modifiers if modifier not in _TYPE_NAMES)
    least, most = spelling.type_count
    if not (spelling.flags.issuperset(flags) and spelling.types.issuperset(types) and least <= len(types) <= most):
        return None
    spec = READERS[opcode](opcode, flags, types)
    return None if spec is None else (flags, types, spec)


def _unsupported(instruction: Instruction) -> Unsupported:
    return Unsupported(
        f"PTX instruction '{instruction.spelling}' (line {instruction.line} of the PTX) is not known to the Host platform",
        hint="run on CUDA, or compile with an emitter that does not use the instruction",
    )


def _collect(operand: Operand, names: list[str]) -> None:
    """Append the registers in `operand`."""
    match operand:
        case Register():
            names.append(operand.name)
        case Negated():
            names.append(operand.register.name)
        case Address():
            _collect(operand.base, names)
        case Vector() | OperandList():
            for element in operand.elements:
                _collect(element, names)
        case Pair():
            _collect(operand.first, names)
            _collect(operand.second, names)
        case SpecialRegister() | Integer() | Float() | Symbol() | Sink():
            pass
        case _:
            assert_never(operand)
