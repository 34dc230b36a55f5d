"""A fast path of the parser: read an instruction as XLA prints it with one regular expression match.

Other forms and errors are left to the token reader, which also knows the place of every error. Both accept the same
language: this path reads no text that the token reader refuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from hlo_run.errors import HloRunError
from hlo_run.hlo.attributes.lexer import RESERVED, Lexer
from hlo_run.hlo.attributes.shape_text import array_shape
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.definition import OpcodeDefinition
from hlo_run.hlo.opcodes.table import definition_of
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.hlo.values.shape import Shape

_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]*+"
_ARRAY = rf"(?:{'|'.join(sorted(DTYPES, key=len, reverse=True))})" r"\[[\d,]*+\](?:\{[\d,]++(?::[^{}/\s]++)?\})?"
_HEAD = re.compile(rf"(ROOT )?(%?)({_NAME}) = ({_ARRAY}) ([a-z][a-z\-]*+)\(", re.ASCII)
_OPERAND = rf"%?{_NAME}"
_OPERANDS = re.compile(rf"({_OPERAND}(?:, (?:/\*index=\d++\*/)?{_OPERAND})*+)?\)", re.ASCII)
_INDEX = re.compile(r"/\*index=\d+\*/")


class Head(Struct, frozen=True):
    """`ROOT %name = SHAPE opcode(`: `start` is the position of the name, `end` the one after the parenthesis."""

    is_root: bool
    name: str
    start: int
    end: int
    shape: Shape
    opcode: OpcodeDefinition


def read_head(lexer: Lexer) -> Head | None:
    """Return the instruction's head at the current token, or None if it has another form; the lexer does not move."""
    found = _HEAD.match(lexer.text, lexer.start)
    if found is None:
        return None
    root, percent, name, shape, word = found.groups()
    opcode = definition_of(word)
    if opcode is None or (not percent and name in RESERVED):
        return None
    try:
        return Head(root is not None, name, found.start(2), found.end(), array_shape(shape), opcode)
    except HloRunError:
        return None


def read_operands(lexer: Lexer, begin: int, names: Mapping[str, HloInstruction]) -> tuple[list[HloInstruction], int] | None:
    """Return the operands `%a, %b)` at `begin` and the position after them; None for another form or an unknown name."""
    found = _OPERANDS.match(lexer.text, begin)
    if found is None:
        return None
    written = found[1]
    if not written:
        return [], found.end()
    operands: list[HloInstruction] = []
    for word in (_INDEX.sub("", written) if "/" in written else written).split(", "):
        name = word[1:] if word[0] == "%" else word
        operand = names.get(name)
        if operand is None or (name in RESERVED and word[0] != "%"):
            return None
        operands.append(operand)
    return operands, found.end()
