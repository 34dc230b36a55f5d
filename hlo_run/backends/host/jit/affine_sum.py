"""Affine sums: a register's value as multiples of symbols, with bounds. Also bounds of other integer operations."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.backends.host.ptx.instruction_set import Operation

Interval = tuple[int, int]


class Affine(Struct, frozen=True):
    """`constant` + sum of coefficient x symbol, in the closed interval [`low`, `high`]. The register holds it exactly."""

    terms: tuple[tuple[str, int], ...]
    constant: int
    low: int
    high: int

    def multiple_of(self, size: int) -> bool:
        """True if the value is a multiple of `size` for all threads."""
        return self.constant % size == 0 and all(coefficient % size == 0 for _, coefficient in self.terms)


def monotonic(operation: Operation, a: Affine, b: Affine) -> Interval | None:
    """Return bounds of an operation that is monotonic on values that are not negative; None for other operations."""
    match operation.opcode:
        case "mul" if "hi" in operation.flags:
            bits = int(operation.type[1:])
            return a.low * b.low >> bits, a.high * b.high >> bits
        case "shr" if not b.terms and b.constant < 64:
            return a.low >> b.constant, a.high >> b.constant
        case "or" | "xor":
            return 0, (1 << max(a.high.bit_length(), b.high.bit_length())) - 1
        case "min":
            return min(a.low, b.low), min(a.high, b.high)
        case "max":
            return max(a.low, b.low), max(a.high, b.high)
        case "selp":
            return min(a.low, b.low), max(a.high, b.high)
        case _:
            return None


def constant(value: int) -> Affine:
    """Return the affine sum that is a constant."""
    return Affine((), value, value, value)


def fits(a: Affine, width: int) -> bool:
    """True if a register of this width holds the value, as a signed or as an unsigned number."""
    return (a.low >= 0 and a.high < 1 << width) or (a.low >= -(1 << (width - 1)) and a.high < 1 << (width - 1))


def fits_type(a: Affine, type_name: str) -> bool:
    """True if all values are in the range of an integer type (`b32` is unsigned)."""
    width = int(type_name[1:])
    if type_name[0] == "s":
        return a.low >= -(1 << (width - 1)) and a.high < 1 << (width - 1)
    return a.low >= 0 and a.high < 1 << width
