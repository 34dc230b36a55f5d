"""Records of the open parts of a text: bodies, and instructions whose operands or attributes are not complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.table import AttributeValue
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.definition import OpcodeDefinition
from hlo_run.hlo.values.shape import Shape

Attributes: TypeAlias = "dict[str, AttributeValue]"
Called: TypeAlias = "dict[str, tuple[HloComputation, ...]]"
Names: TypeAlias = "dict[str, HloInstruction]"


class Body:
    """An open body: its computation, the computation around it with its names, and the start position."""

    __slots__ = ("computation", "outer", "start")

    def __init__(self, computation: HloComputation, outer: tuple[HloComputation, Names], start: int) -> None:
        self.computation = computation
        self.outer = outer
        self.start = start


class Pending:
    """An open instruction. `wrapped` is the opcode that an async op in short form wraps, else None.

    `in_operands` and `wants_operand` say where to continue after a nested instruction; `list_name` (with `listed`) or
    `called_name` say it after a nested body.
    """

    __slots__ = (
        "attributes",
        "called",
        "called_name",
        "in_operands",
        "is_nested",
        "is_root",
        "list_name",
        "listed",
        "name",
        "opcode",
        "operands",
        "predecessors",
        "seen",
        "shape",
        "start",
        "wants_operand",
        "wrapped",
    )

    def __init__(self, name: str, start: int, shape: Shape, opcode: OpcodeDefinition, wrapped: OpcodeDefinition | None) -> None:
        self.name = name
        self.start = start
        self.shape = shape
        self.opcode = opcode
        self.wrapped = wrapped
        self.is_root = False
        self.is_nested = False
        self.in_operands = True
        self.wants_operand = True
        self.operands: list[HloInstruction] = []
        self.attributes: Attributes = {}
        self.called: Called = {}
        self.predecessors: list[HloInstruction] = []
        self.seen: set[str] = set()
        self.called_name = self.list_name = ""
        self.listed: list[HloComputation] = []

    def deliver(self, computation: HloComputation) -> None:
        """Store the computation that an attribute names or contains."""
        if self.list_name:
            self.listed.append(computation)
        else:
            self.called[self.called_name] = (computation,)


def check_required(lexer: Lexer, opcode: OpcodeDefinition, given: Iterable[str], start: int) -> None:
    """Raise ParseError, at the instruction that begins at `start`, if one of the opcode's required attributes is missing."""
    if not opcode.required:
        return
    known = set(given)
    for missing in opcode.attributes:
        if missing in opcode.required and missing not in known:
            raise lexer.error(f"attribute {missing} is expected but not seen", start, hint=f"'{opcode.name}' needs it")
