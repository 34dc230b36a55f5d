"""Errors and hints of the parser for words that are not valid names, opcodes or types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hlo_run.errors import ParseError
from hlo_run.hlo.attributes.lexer import RESERVED, Lexer
from hlo_run.hlo.names import legal_name
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.values.dtype import DTYPES


def name_hint(lexer: Lexer) -> str:
    """Return the hint for a token that is not the expected instruction name."""
    if lexer.kind == "attr":
        return "put a blank before the '=' that follows an instruction's name"
    if lexer.value in RESERVED:
        return f"'{lexer.value}' is a word of the grammar; write %{legal_name(lexer.value)}"
    return "an instruction is written like 'name = f32[2] add(a, b)'"


def unknown_opcode(lexer: Lexer) -> ParseError:
    """Return the error for a word that is not an opcode."""
    if lexer.kind == "ident" and lexer.text[lexer.pos : lexer.pos + 1] == "[":
        if lexer.value in DTYPES:
            return lexer.error("cannot read the shape that begins here", hint="a shape is written like f32[2,3]{1,0}")
        hint = did_you_mean(lexer.value, DTYPES) or f"element types: {', '.join(DTYPES)}"
        return lexer.error(f"unknown element type '{lexer.value}'", hint=hint)
    return lexer.error(
        f"expects opcode but sees: {lexer.value or lexer.seen()}, error: Unknown opcode: {lexer.value}",
        hint=did_you_mean(lexer.value, OPCODES),
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with the member of `known` that is most similar to `word`, or "" if none is similar."""
    close = difflib.get_close_matches(word[:80], list(known)[:5000], n=1)
    return f"did you mean '{close[0]}'?" if close else ""
