"""The type of opcodes: its members are the rows of the table, and the sources name no opcode that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hlo_run
from hlo_run.errors import ParseError
from hlo_run.hlo.opcodes.names import OPCODE_NAMES, opcode_of, opcode_set, opcodes_in
from hlo_run.hlo.opcodes.table import OPCODES, definition_of
from hlo_run.hlo.opcodes.traits import OPERATION_OF
from hlo_run.hlo.text.parser import parse_module

_PACKAGE = Path(hlo_run.__file__).parent
# A type checker reports `opcode == "ad"`. It does not report ("add", "ad") after `in`, since one of the two may be equal.
_MEMBERS = re.compile(r"\bopcodes?\s+(?:not\s+)?in\s+[({]([^(){}]*)[)}]")
_WORD = re.compile(r'"([^"]*)"')


def test_the_type_has_the_rows_of_the_table() -> None:
    assert OPCODES.keys() == OPCODE_NAMES


def test_text_is_an_opcode_only_if_the_table_has_it() -> None:
    assert opcode_of("add") == "add"
    assert opcode_of("optimization-barrier") is None
    assert definition_of("sparse-dot") is None
    assert opcodes_in("all-reduce+nothing+add") == ("all-reduce", "add")
    with pytest.raises(AssertionError, match=r"no such opcode: .*fussion"):
        opcode_set("add fussion")


def test_parsed_instructions_have_opcodes_of_the_type() -> None:
    module = parse_module(
        "ENTRY e { p = f32[2] parameter(0) s = ((f32[2]), f32[2]) negate-start(p) ROOT d = f32[2] negate-done(s) }"
    )
    assert {i.opcode for i in module.instructions} == {"parameter", "negate", "async-start", "async-done"}
    with pytest.raises(ParseError, match="Unknown opcode: fussion"):
        parse_module("ENTRY e { p = f32[2] parameter(0) ROOT f = f32[2] fussion(p) }")


def test_starts_and_dones_have_the_operation_between_them() -> None:
    assert OPERATION_OF["all-gather-start"] == OPERATION_OF["all-gather-done"] == "all-gather"
    assert OPERATION_OF["recv"] == OPERATION_OF["recv-done"] == "recv"
    assert "async-start" not in OPERATION_OF


def test_the_sources_compare_with_opcodes_that_exist() -> None:
    unknown = {
        f"{path.relative_to(_PACKAGE)}: {word}"
        for path in _PACKAGE.rglob("*.py")
        # The opcodes of PTX are others.
        if "backends" not in path.parts
        for word in _compared(path.read_text())
        if word not in OPCODE_NAMES
    }
    assert not unknown


def _compared(text: str) -> Iterator[str]:
    for found in _MEMBERS.finditer(text):
        yield from _WORD.findall(found[1])
