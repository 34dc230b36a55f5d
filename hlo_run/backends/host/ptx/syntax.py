"""The parsed form of PTX text: plain records that both engines share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

TYPE_BYTES: dict[str, int] = {
    **dict.fromkeys(("b8", "s8", "u8", "e4m3", "e5m2", "e2m1x2"), 1),
    **dict.fromkeys(("b16", "s16", "u16", "f16", "bf16", "e4m3x2", "e5m2x2"), 2),
    **dict.fromkeys(("b32", "s32", "u32", "f32", "f16x2", "bf16x2", "s16x2", "u16x2", "tf32"), 4),
    **dict.fromkeys(("b64", "s64", "u64", "f64", "f32x2"), 8),
    "b128": 16,
}
"""Bytes of a value of each fundamental type. `pred` has no size."""


class Register(Struct, frozen=True):
    """A declared register. A name that an inner `{ }` declares again gets a suffix, so names are unique."""

    name: str


class SpecialRegister(Struct, frozen=True):
    """A predefined register: `%tid.x`, `%laneid`, ..."""

    name: str


class Integer(Struct, frozen=True):
    """An integer immediate with its sign in the text."""

    value: int


class Float(Struct, frozen=True):
    """A floating-point immediate as its bits: `0f3F800000` has width 32; `0d...` and decimal spellings 64."""

    bits: int
    width: int


class Symbol(Struct, frozen=True):
    """The address of a variable plus `offset` bytes, or the name of a label or function."""

    name: str
    offset: int = 0


class Address(Struct, frozen=True):
    """`[base+offset]`."""

    base: Register | Symbol | Integer
    offset: int = 0


class Vector(Struct, frozen=True):
    """`{a, b, ...}`: the lowest address or lowest bits come first."""

    elements: tuple[Operand, ...]


class Negated(Struct, frozen=True):
    """`!%p` as a source operand."""

    register: Register


class Pair(Struct, frozen=True):
    """`a|b`: two destinations."""

    first: Operand
    second: Operand


class Sink(Struct, frozen=True):
    """`_`: the result is discarded."""


class OperandList(Struct, frozen=True):
    """`(a, b)`: the arguments or results of a call."""

    elements: tuple[Operand, ...]


Operand: TypeAlias = (
    Register | SpecialRegister | Integer | Float | Symbol | Address | Vector | Negated | Pair | Sink | OperandList
)


class Guard(Struct, frozen=True):
    """`@%p` or `@!%p`."""

    register: Register
    negated: bool


class Instruction(Struct, frozen=True):
    """One instruction: `fma.rn.f32` has opcode `fma` and modifiers `("rn", "f32")`. Lines count from 1.

    `used_bytes` is a mask of the used bytes of a load (bit 0: the lowest address), None if all are used. LLVM may widen
    an aligned load over unused bytes, also over a part of an item, and marks the used bytes in a pragma.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    used_bytes: int | None = None

    def used_pieces(self, item_bytes: int, count: int) -> list[list[tuple[int, int]]] | None:
        """Return the used bytes of each item as aligned pieces (first byte in the item, size); None if all are used."""
        mask = self.used_bytes
        if mask is None or not ~mask & ((1 << item_bytes * count) - 1):
            return None
        return [_pieces(mask >> number * item_bytes, item_bytes) for number in range(count)]

    @property
    def spelling(self) -> str:
        """The instruction's name in the text: `fma.rn.f32`."""
        return ".".join((self.opcode, *self.modifiers))


def _pieces(mask: int, size_bytes: int, first: int = 0) -> list[tuple[int, int]]:
    """Halve a piece until all its bytes are used, or none."""
    part = mask >> first & (1 << size_bytes) - 1
    if not part:
        return []
    if part == (1 << size_bytes) - 1:
        return [(first, size_bytes)]
    half = size_bytes // 2
    return _pieces(mask, half, first) + _pieces(mask, half, first + half)


class Label(Struct, frozen=True):
    """A label before the next statement."""

    name: str
    line: int


Statement: TypeAlias = Label | Instruction


class Relocation(Struct, frozen=True):
    """Eight bytes at `offset` of an initialiser that hold the address of `symbol` plus `addend`."""

    offset: int
    symbol: str
    addend: int


class Variable(Struct, frozen=True):
    """A declared variable or formal parameter.

    `count` is the number of elements of `type` (1 for scalars, 0 for an unsized `[]`). `initializer` has `size_bytes` bytes;
    it is None if the text has no initialiser.
    """

    name: str
    space: str
    type: str
    count: int
    alignment: int
    line: int
    initializer: bytes | None = None
    relocations: tuple[Relocation, ...] = ()
    is_extern: bool = False

    @property
    def size_bytes(self) -> int:
        """The size in bytes; 0 for an unsized `[]`."""
        return self.count * TYPE_BYTES[self.type]


class Function(Struct, frozen=True):
    """An `.entry` or `.func`.

    `registers` maps every declared register to its type. `variables` are those of the body (`.shared`, `.local`, `.param`).
    `branch_targets` are the label lists of `brx.idx`. `body` is None for a declaration. `reqntid` and `maxntid` are () if
    the text does not have them.
    """

    name: str
    is_entry: bool
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    registers: Mapping[str, str]
    variables: tuple[Variable, ...]
    branch_targets: Mapping[str, tuple[str, ...]]
    body: tuple[Statement, ...] | None
    reqntid: tuple[int, ...]
    maxntid: tuple[int, ...]
    line: int


class Module(Struct, frozen=True):
    """One PTX module. Variables and functions are by name, in text order."""

    version: tuple[int, int]
    target: str
    address_bits: int
    variables: Mapping[str, Variable]
    functions: Mapping[str, Function]
