"""The work of an instruction, as its spelling says: one typed record per family of instructions.

`spec_table` makes the records, and refuses the spellings that the Host platform does not know. Each engine has one row per
record, so both know the same instructions. The operands stay in `Operation`; `operands` checks them against the spelling.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from hlo_run.backends.host.ptx.syntax import TYPE_BYTES

# ---- integers -------------------------------------------------------------------------------------------------------


class Sum(Struct, frozen=True):
    """`add`, `sub`, `addc`, `subc`. A packed type has two 16-bit integers."""

    type: str
    subtracts: bool
    saturates: bool
    carry_in: bool
    carry_out: bool

    @property
    def is_packed(self) -> bool:
        """True for two integers in one register."""
        return self.type.endswith("x2")


class Product(Struct, frozen=True):
    """`mul`, `mad`, `madc`: the `lo`, `hi` or `wide` product, with or without an addend."""

    type: str
    part: str
    adds: bool
    saturates: bool
    carry_in: bool
    carry_out: bool


class Quotient(Struct, frozen=True):
    """`div` and `rem`."""

    type: str
    is_remainder: bool


class Difference(Struct, frozen=True):
    """`sad`: the absolute difference plus an addend."""

    type: str


class Extreme(Struct, frozen=True):
    """`min` and `max`, also of packed 16-bit integers. `relu` clamps below at 0."""

    operation: str
    type: str
    relu: bool

    @property
    def is_packed(self) -> bool:
        """True for two integers in one register."""
        return self.type.endswith("x2")


class Unary(Struct, frozen=True):
    """`abs`, `neg`, `not`, `cnot`, `brev`; `popc` and `clz`, which have a 32-bit result."""

    operation: str
    type: str


class Logic(Struct, frozen=True):
    """`and`, `or`, `xor`."""

    operation: str
    type: str


class Shift(Struct, frozen=True):
    """`shl` and `shr`. Amounts are unsigned and not taken modulo the width."""

    type: str
    is_left: bool


class FunnelShift(Struct, frozen=True):
    """`shf`: shift two registers as one. `wraps`: the amount counts modulo 32."""

    is_left: bool
    wraps: bool


class DotBytes(Struct, frozen=True):
    """`dp4a` (`width` 8) and `dp2a` (16): the first operand's items of `width` bits times the second's bytes from `start` on."""

    width: int
    start: int
    signed: tuple[bool, bool]


class FindHighest(Struct, frozen=True):
    """`bfind`: the place of the highest bit that differs from the sign, or the distance to shift it to the top."""

    type: str
    as_shift: bool


class ExtractBits(Struct, frozen=True):
    """`bfe`."""

    type: str


class InsertBits(Struct, frozen=True):
    """`bfi`."""

    type: str


class PermuteBytes(Struct, frozen=True):
    """`prmt`, with the name of its mode or ""."""

    mode: str


class Lookup3(Struct, frozen=True):
    """`lop3`."""


# ---- floating point -------------------------------------------------------------------------------------------------


class FloatArithmetic(Struct, frozen=True):
    """Arithmetic in one format, on one value or (`lanes` is 2) on each half of a register. `mad` is an `fma`.

    `wide_from` is the format of all operands but the last if it is narrower: `add.f32.f16`. `rounding` is "" for the nearest.
    `is_quick`: `div.approx`, or `rcp` and `rsqrt` of the upper word of an f64. `keeps_nan`: `.NaN` of min and max.
    """

    operation: str
    format: str
    lanes: int
    wide_from: str
    rounding: str
    is_quick: bool
    keeps_nan: bool
    flushes: bool
    saturates: bool
    relu: bool


class TestProperty(Struct, frozen=True):
    """`testp`."""

    property: str
    format: str


class CopySign(Struct, frozen=True):
    """`copysign`: the first source gives the sign."""

    format: str


# ---- comparison and selection ---------------------------------------------------------------------------------------


class Compare(Struct, frozen=True):
    """`setp`: set a predicate, and perhaps its opposite. On packed types, set one per half.

    `relation` is eq, ne, lt, le, gt, ge, num or nan. An `unordered` relation also holds if an operand is a NaN. `logic` combines
    the result with a predicate operand: and, or, xor, or "".
    """

    relation: str
    unordered: bool
    type: str
    lanes: int
    flushes: bool
    logic: str


class CompareTo(Struct, frozen=True):
    """`set`: compare as `test` says; the result is all bits set (`u32`), or 1.0 (`f32`), or 0."""

    test: Compare
    result: str


class Select(Struct, frozen=True):
    """`selp`."""

    type: str


class SelectBySign(Struct, frozen=True):
    """`slct`: select by the sign of a value of type `sign`."""

    type: str
    sign: str
    flushes: bool


# ---- moves and conversions ------------------------------------------------------------------------------------------


class Move(Struct, frozen=True):
    """`mov`. With a vector as operand it splits or joins a register."""

    type: str


class ConvertAddress(Struct, frozen=True):
    """`cvta`, between generic addresses and addresses of a space. `is_inward` is `.to`: from generic."""

    space: str
    is_inward: bool
    type: str


class IsInSpace(Struct, frozen=True):
    """`isspacep`."""

    space: str


class ConvertInteger(Struct, frozen=True):
    """`cvt` between integers."""

    to: str
    origin: str
    saturates: bool


class FloatToInteger(Struct, frozen=True):
    """`cvt` to an integer. `rounding` is rni, rzi, rmi or rpi."""

    to: str
    origin: str
    rounding: str
    flushes: bool


class IntegerToFloat(Struct, frozen=True):
    """`cvt` from an integer. `rounding` is rn, rz, rm or rp."""

    to: str
    origin: str
    rounding: str
    saturates: bool


class ConvertFloat(Struct, frozen=True):
    """`cvt` between single floats. `integral` rounds to an integer of the same format first; `is_copy`: all bits stay."""

    to: str
    origin: str
    rounding: str
    integral: str
    is_copy: bool
    flushes: bool
    saturates: bool
    relu: bool


class PackHalves(Struct, frozen=True):
    """`cvt` of two f32 to f16x2 or bf16x2. The first source is the upper half."""

    to: str
    rounding: str
    relu: bool


class PackSmall(Struct, frozen=True):
    """`cvt` of two f32, or of an f16x2, to a pair of 8-bit or 4-bit floats, clamped to the largest value."""

    to: str
    origin: str


class UnpackSmall(Struct, frozen=True):
    """`cvt` of a pair of 8-bit or 4-bit floats to f16x2."""

    origin: str


class RoundToTf32(Struct, frozen=True):
    """`cvt.rna.tf32.f32`."""


# ---- memory ---------------------------------------------------------------------------------------------------------


class Load(Struct, frozen=True):
    """`ld` and `ldu`. `space` is global, const, shared, local, param, or "" for a generic address.

    `item` is the integer type with the bits of `type`. `is_ordered`: other threads' accesses are ordered with this one.
    `is_constant`: nothing writes this memory while the kernel runs.
    """

    space: str
    type: str
    item: str
    size_bytes: int
    is_ordered: bool
    is_constant: bool


class Store(Struct, frozen=True):
    """`st`. It has the fields of `Load`."""

    space: str
    type: str
    size_bytes: int
    is_ordered: bool


class Update(Struct, frozen=True):
    """`atom` and `red`. `returns`: the first operand gets the old value."""

    operation: str
    space: str
    type: str
    size_bytes: int
    returns: bool


# ---- threads --------------------------------------------------------------------------------------------------------


class Shuffle(Struct, frozen=True):
    """`shfl.sync`: up, down, bfly or idx."""

    mode: str


class Vote(Struct, frozen=True):
    """`vote.sync`: all, any, uni or ballot."""

    mode: str


class Match(Struct, frozen=True):
    """`match`: find lanes with the same value. `all` gives a mask only if the values of all lanes are equal."""

    mode: str
    bits: int


class ReduceWarp(Struct, frozen=True):
    """`redux`."""

    operation: str
    is_signed: bool


class Elect(Struct, frozen=True):
    """`elect`."""


class ActiveMask(Struct, frozen=True):
    """`activemask`."""


class Barrier(Struct, frozen=True):
    """`bar` and `barrier`, of a warp or a block. `reduction` is popc, and, or, or "" for none."""

    is_warp: bool
    reduction: str


class Trap(Struct, frozen=True):
    """`trap`."""


class NoEffect(Struct, frozen=True):
    """Fences, prefetches and the like: memory is always coherent here, kernels run in order, and clocks do not advance."""


class Control(Struct, frozen=True):
    """Jumps, calls and returns. `control_flow` handles them; engines see no such operation."""


Spec: TypeAlias = (
    Sum
    | Product
    | Quotient
    | Difference
    | Extreme
    | Unary
    | Logic
    | Shift
    | FunnelShift
    | DotBytes
    | FindHighest
    | ExtractBits
    | InsertBits
    | PermuteBytes
    | Lookup3
    | FloatArithmetic
    | TestProperty
    | CopySign
    | Compare
    | CompareTo
    | Select
    | SelectBySign
    | Move
    | ConvertAddress
    | IsInSpace
    | ConvertInteger
    | FloatToInteger
    | IntegerToFloat
    | ConvertFloat
    | PackHalves
    | PackSmall
    | UnpackSmall
    | RoundToTf32
    | Load
    | Store
    | Update
    | Shuffle
    | Vote
    | Match
    | ReduceWarp
    | Elect
    | ActiveMask
    | Barrier
    | Trap
    | NoEffect
    | Control
)


def is_integer(type_name: str) -> bool:
    """True for s8 .. u64 and b8 .. b64, not for packed pairs, floats and predicates."""
    return type_name[0] in "sub" and type_name[1:].isdigit()


def item_type(type_name: str) -> str:
    """Return the integer type that has the bits of a value of the type."""
    return type_name if type_name[0] in "su" and type_name[1:].isdigit() else f"u{8 * TYPE_BYTES[type_name]}"
