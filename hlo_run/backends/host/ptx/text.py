"""The lexical level of the PTX reader: text without comments, positions for errors, numbers and operands."""

from __future__ import annotations

import bisect
import re
import struct
from collections.abc import Callable

from hlo_run.backends.host.ptx.syntax import (
    Address,
    Float,
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
from hlo_run.errors import ParseError, Where

_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.S)
_NOT_NEWLINE = re.compile(r"[^\n]")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$", re.ASCII)
_BITS = re.compile(r"0[fF]([0-9a-fA-F]{8})$|0[dD]([0-9a-fA-F]{16})$")
# Longer ones exceed 64 bits, and Python refuses to convert some thousand digits.
_MOST_DIGITS = 100
_WORD = 1 << 64
_DECIMAL = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$", re.ASCII)
_TOKEN = re.compile(r"\s*(-?\d[\w.]*(?:(?<=[eE])[-+]\d+)?|[\w$%][\w$%.]*|[-+{}()\[\],!|])", re.ASCII)

SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + [f"%{name}.{axis}" for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid") for axis in "xyz"]
    + ["%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"]
    + ["%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%clock", "%clock64", "%clock_hi"]
    + [f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")]
    + ["%globaltimer", "%globaltimer_lo", "%globaltimer_hi", "%dynamic_smem_size", "%total_smem_size"]
)


class Source:
    """A PTX text whose comments are replaced by spaces, so that offsets, lines and columns do not change."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines = text.split("\n")
        self.text = _COMMENT.sub(_blank_comment, text)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def line(self, offset: int) -> int:
        """Return the line of `offset`, counted from 1."""
        return bisect.bisect_right(self._starts, offset)

    def error(self, message: str, offset: int) -> ParseError:
        """Return (not raise) the error at `offset`."""
        line = min(self.line(offset), len(self._lines))
        column = offset - self._starts[line - 1] + 1
        return ParseError(message, Where(self.file, line, column, self._lines[line - 1]))


def _blank_comment(match: re.Match[str]) -> str:
    found = match.group()
    return found if found[0] == '"' else _NOT_NEWLINE.sub(" ", found)


def parse_number(text: str) -> Integer | Float | None:
    """Return the immediate of `text`; None if it is not a number, or an integer beyond 64 bits."""
    if text == "WARP_SZ":
        return Integer(32)
    if bits := _BITS.match(text):
        single, double = bits.groups()
        return Float(int(single, 16), 32) if single else Float(int(double, 16), 64)
    if len(text) > _MOST_DIGITS:
        return None
    if _INTEGER.match(text):
        digits = text.rstrip("U")
        is_octal = re.match(r"-?0[0-7]+$", digits) is not None
        value = int(digits, 8 if is_octal else 0)
        return Integer(value) if -_WORD < value < _WORD else None
    if _DECIMAL.match(text):
        return Float(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    return None


class OperandParser:
    """Parses operand lists. `lookup` returns the unique name of a register in scope, or None."""

    def __init__(self, source: Source, lookup: Callable[[str], str | None]) -> None:
        self._source = source
        self._lookup = lookup
        self._simple: dict[str, Operand] = {}
        self._tokens: list[str] = []
        self._offset = 0

    def scope_changed(self) -> None:
        """Discard cached operands. Call this after a scope was opened or closed, or a register declared."""
        self._simple.clear()

    def parse(self, text: str, offset: int) -> tuple[Operand, ...]:
        """Return the operands of a comma-separated list at `offset`."""
        self._offset = offset
        if not text or text.isspace():
            return ()
        known = self._simple
        operands: list[Operand] = []
        for part in text.split(","):
            operand = known.get(part)
            if operand is None:
                if any(char in text for char in "[{(|!+"):
                    return self._parse_structured(text)
                operand = known[part] = self._atom(part.strip())
            operands.append(operand)
        return tuple(operands)

    def _parse_structured(self, text: str) -> tuple[Operand, ...]:
        self._tokens = _TOKEN.findall(text)
        if sum(map(len, self._tokens)) != len(re.sub(r"\s", "", text)):
            raise self._source.error("cannot read the operands", self._offset)
        self._tokens.reverse()
        operands = self._list("")
        return tuple(operands)

    def _list(self, closing: str) -> list[Operand]:
        """Read operands up to `closing`, or to the end if it is empty. `()` is an empty list."""
        operands: list[Operand] = []
        if self._peek() == closing:
            self._next()
            return operands
        while True:
            if closing and self._peek() in ("{", "("):
                raise self._source.error(f"'{self._peek()}' in a list: lists do not nest", self._offset)
            operands.append(self._operand())
            token = self._next()
            if token == closing:
                return operands
            if token != ",":
                raise self._source.error(f"expected ',' or '{closing or ';'}' in the operands, found '{token}'", self._offset)

    def _peek(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def _next(self) -> str:
        return self._tokens.pop() if self._tokens else ""

    def _operand(self) -> Operand:
        token = self._next()
        match token:
            case "{":
                return Vector(tuple(self._list("}")))
            case "(":
                return OperandList(tuple(self._list(")")))
            case "[":
                return self._address()
            case "!":
                negated = self._atom(self._next())
                if not isinstance(negated, Register):
                    raise self._source.error("'!' needs a predicate register", self._offset)
                return Negated(negated)
            case _:
                return self._after_atom(self._atom(token))

    def _after_atom(self, atom: Operand) -> Operand:
        if self._peek() == "|":
            self._next()
            return Pair(atom, self._atom(self._next()))
        if isinstance(atom, Symbol) and self._peek() in ("+", "-"):
            return Symbol(atom.name, self._displacement())
        return atom

    def _address(self) -> Address:
        base = self._atom(self._next())
        if not isinstance(base, Register | Symbol | Integer):
            raise self._source.error("an address must be a register, a variable or a number, plus a constant", self._offset)
        offset = self._displacement()
        if self._next() != "]":
            raise self._source.error("expected ']' after the address", self._offset)
        return Address(base, offset)

    def _displacement(self) -> int:
        """Read any sequence of `+8`, `-8`, `+-8`, and return its sum, wrapped to 64 bits with a sign.

        A sign may be its own token or part of the number.
        """
        total = 0
        while self._peek() not in ("]", ",", "", ")", "}"):
            sign = 1
            while self._peek() in ("+", "-"):
                sign = -sign if self._next() == "-" else sign
            value = parse_number(self._next())
            if not isinstance(value, Integer):
                raise self._source.error("the offset of an address must be an integer of 64 bits", self._offset)
            total += sign * value.value
        return (total + _WORD // 2) % _WORD - _WORD // 2

    def _atom(self, text: str) -> Operand:
        if text == "-":
            text += self._next()
        if text == "_":
            return Sink()
        if register := self._lookup(text):
            return Register(register)
        if text in SPECIAL_REGISTERS:
            return SpecialRegister(text)
        if number := parse_number(text):
            return number
        if re.fullmatch(r"[A-Za-z_$][\w$]*", text):
            return Symbol(text)
        what = "undeclared register" if text.startswith("%") else "not an operand:"
        raise self._source.error(f"{what} '{text}'", self._offset)
