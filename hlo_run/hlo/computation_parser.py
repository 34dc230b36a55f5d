"""Computations and instructions of HLO text: a hand-written descent over the tokens; attributes and opcodes are tables."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeAlias

from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.attribute_text import parse_integer
from hlo_run.hlo.attributes import ATTRIBUTES, CALLED_ATTRIBUTES, AttributeValue
from hlo_run.hlo.dtype import DTYPES
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.lexer import Lexer
from hlo_run.hlo.literal_parser import ElidedFill, parse_literal
from hlo_run.hlo.opcodes import COMMON_ATTRIBUTES, OPCODES, Opcode
from hlo_run.hlo.shape import Shape
from hlo_run.hlo.shape_text import MAX_DEPTH, parse_shape

UNKNOWN_SHAPE = Shape("unknown")
NAME_KINDS = ("ident", "percent")

_ASYNC_SUGAR = re.compile(r"(.+)-(?:start|update|done)")
_COMMON = frozenset(COMMON_ATTRIBUTES)
_Attributes: TypeAlias = "dict[str, AttributeValue]"
_Called: TypeAlias = "dict[str, tuple[HloComputation, ...]]"


class ComputationParser:
    """Reads computations one after the other; `ordered` holds them in the order in which they ended, inner ones first."""

    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer
        self.ordered: list[HloComputation] = []
        self.entry: HloComputation | None = None
        self._elided = ElidedFill()
        self._computations: dict[str, HloComputation] = {}
        self._names: dict[str, HloInstruction] = {}
        self._current = HloComputation("")
        self._depth = 0

    def computation(self) -> None:
        """Read one computation, `ENTRY` and signature included; the lexer stands on its first token."""
        lexer = self.lexer
        is_entry = lexer.value == "ENTRY" and lexer.kind == "ident"
        if is_entry:
            if self.entry is not None:
                raise lexer.error("expects only one ENTRY", hint=f"'{self.entry.name}' is marked ENTRY already")
            lexer.advance()
        if lexer.kind not in NAME_KINDS:
            raise lexer.error(f"expects a computation, but sees {lexer.seen()}", hint=self._computation_hint())
        where, name = lexer.where(), lexer.value
        if name in self._computations:
            previous = self._computations[name].where
            raise lexer.error(f"computation already exists: {name}", hint=f"computation previously defined here: {previous}")
        computation = HloComputation(name, where)
        lexer.advance()
        result = self._signature() if lexer.value == "(" else None
        self._body(computation)
        if result is not None:
            self._check_result(computation, result)
        self._computations[name] = computation
        if is_entry:
            self.entry = computation
        if lexer.value == "," and lexer.text.startswith("execution_thread", _next_word(lexer)):
            lexer.advance()
            computation.execution_thread = lexer.raw_value().strip("\"'")

    def _computation_hint(self) -> str:
        if self.lexer.kind == "eof":
            return "the text may be cut off: a module needs at least one computation"
        return "a computation is written like 'name { .. }' or 'ENTRY name { .. }'"

    def _signature(self) -> Shape:
        """Read `(p: shape, ..) -> shape`; like XLA, only the result counts."""
        lexer = self.lexer
        lexer.advance()
        while lexer.value != ")":
            if lexer.kind not in (*NAME_KINDS, "colon"):
                raise lexer.error(f"expects a parameter name, but sees {lexer.seen()}")
            lexer.advance()
            lexer.take(":")
            parse_shape(lexer)
            if not lexer.take(","):
                break
        lexer.expect(")", "at the end of the parameters")
        lexer.expect("->", "before the result shape")
        return parse_shape(lexer)

    def _check_result(self, computation: HloComputation, result: Shape) -> None:
        root = computation.root
        if root.shape is not UNKNOWN_SHAPE and not result.compatible(root.shape):
            raise ParseError(
                f"Shape of computation {computation.name}, {result.to_string(layout=False)}, is not compatible with that of "
                f"its root instruction {root.name}, {root.shape.to_string(layout=False)}",
                computation.where,
            )

    def _body(self, computation: HloComputation) -> None:
        """Read `{ instructions }` into `computation` and register it as done."""
        lexer = self.lexer
        if self._depth >= MAX_DEPTH:
            raise lexer.error("maximum recursion depth exceeded", hint=f"computations nest at most {MAX_DEPTH} deep")
        outer = self._current, self._names
        self._current, self._names = computation, {}
        self._depth += 1
        start = lexer.start
        if lexer.kind == "ints":
            raise lexer.error("a computation needs at least one instruction")
        lexer.expect("{", f"at the start of computation {computation.name}")
        while lexer.value != "}":
            if lexer.kind == "eof":
                raise lexer.error(
                    "expects '}' at the end of the computation, but sees the end of the text",
                    hint=f"the text may be cut off: '{computation.name}' opened at line {lexer.where(start).line}",
                )
            self._instruction()
        if not computation.instructions:
            raise lexer.error("a computation needs at least one instruction", start)
        lexer.advance()
        if not computation.has_root:
            computation.root = computation.instructions[-1]
        self._check_parameters(computation)
        self._depth -= 1
        self._current, self._names = outer
        self.ordered.append(computation)

    def _check_parameters(self, computation: HloComputation) -> None:
        parameters = computation.parameters
        for expected, parameter in enumerate(parameters):
            number = parameter.attrs["parameter_number"]
            if number < expected:
                other = parameters[expected - 1].where
                raise ParseError(f"Duplicate parameter number {number}", parameter.where, f"the other one is at {other}")
            if number > expected:
                raise ParseError(
                    f"parameter number {number} leaves a gap: no instruction is parameter({expected})",
                    parameter.where,
                    hint=f"'{computation.name}' has {len(parameters)} parameters, numbered from 0",
                )

    def _lookup_computation(self) -> HloComputation:
        """Return the computation that the current token names, or the body that is written in its place."""
        lexer = self.lexer
        if lexer.value == "{":
            computation = HloComputation("_", lexer.where())
            self._body(computation)
            return computation
        if lexer.kind not in NAME_KINDS:
            raise lexer.error(f"expects a computation name, but sees {lexer.seen()}")
        found = self._computations.get(lexer.value)
        if found is None:
            hint = _did_you_mean(lexer.value, self._computations) or "a computation is defined before it is named"
            if lexer.value == self._current.name:
                hint = f"'{lexer.value}' cannot call itself"
            raise lexer.error(f"computation does not exist: {lexer.value}", hint=hint)
        lexer.advance()
        return found

    def _instruction(self) -> None:
        lexer = self.lexer
        is_root = lexer.value == "ROOT" and lexer.kind == "ident"
        root_start = lexer.start
        if is_root:
            lexer.advance()
        if lexer.kind not in NAME_KINDS:
            raise lexer.error(f"expects an instruction name, but sees {lexer.seen()}", hint=self._name_hint())
        name, start = lexer.value, lexer.start
        if name in self._names:
            previous = self._names[name].where
            raise lexer.error(f"instruction already exists: {name}", hint=f"instruction previously defined here: {previous}")
        if is_root and self._current.has_root:
            other = self._current.root
            raise lexer.error("one computation should have only one ROOT", root_start, hint=f"the other is {other.name}")
        legal = _legal_name(name)
        if legal != name:
            raise lexer.error(f"illegal instruction name: {name}; suggest renaming to: {legal}")
        lexer.advance()
        lexer.expect("=", f"after the instruction name '{name}'")
        instruction = self._right_hand_side(name, start, is_root)
        self._names[name] = instruction

    def _name_hint(self) -> str:
        if self.lexer.kind == "attr":
            return "put a blank before the '=' that follows an instruction's name"
        return "an instruction is written like 'name = f32[2] add(a, b)'"

    def _right_hand_side(self, name: str, start: int, is_root: bool = False, nested: bool = False) -> HloInstruction:
        """Read from the shape on and add the instruction to the current computation."""
        lexer = self.lexer
        where = lexer.where(start)
        shape = parse_shape(lexer) if lexer.kind == "shape" or lexer.value == "(" else UNKNOWN_SHAPE
        opcode = self._opcode(shape)
        lexer.advance()
        if lexer.value != "(":
            raise lexer.error(f"expects '(' after opcode {opcode.name}, but sees {lexer.seen()}")
        attributes: _Attributes = {}
        called: _Called = {}
        predecessors: list[HloInstruction] = []
        operands = self._arguments(opcode, shape, attributes)
        if not nested:
            predecessors = self._attributes(opcode, attributes, called)
        for missing in opcode.attributes:
            if missing in opcode.required and missing not in attributes and missing not in called:
                raise lexer.error(f"attribute {missing} is expected but not seen", start, hint=f"'{opcode.name}' needs it")
        for attribute, default in opcode.defaults.items():
            attributes.setdefault(attribute, default)
        instruction = HloInstruction(name, opcode.name, shape, operands, attributes, called, where)
        instruction.control_predecessors = predecessors
        return self._current.add(instruction, is_root)

    def _opcode(self, shape: Shape) -> Opcode:
        lexer = self.lexer
        opcode = OPCODES.get(lexer.value) if lexer.kind == "ident" else None
        if opcode is None:
            if lexer.kind == "ident" and lexer.text[lexer.pos : lexer.pos + 1] == "[":
                if lexer.value in DTYPES:
                    raise lexer.error("cannot read the shape that begins here", hint="a shape is written like f32[2,3]{1,0}")
                hint = _did_you_mean(lexer.value, DTYPES) or f"element types: {', '.join(DTYPES)}"
                raise lexer.error(f"unknown element type '{lexer.value}'", hint=hint)
            sugar = _ASYNC_SUGAR.fullmatch(lexer.value)
            if sugar and sugar[1] in OPCODES:
                hint = "write it as async-start(..), calls=computation"
                raise Unsupported(f"'{lexer.value}': the short form of async ops is not supported", lexer.where(), hint)
            raise lexer.error(
                f"expects opcode but sees: {lexer.value or lexer.seen()}, error: Unknown opcode: {lexer.value}",
                hint=_did_you_mean(lexer.value, OPCODES),
            )
        if shape is UNKNOWN_SHAPE and not opcode.can_infer_shape:
            raise lexer.error(f"cannot infer shape for opcode: {opcode.name}", hint="write the result's shape before it")
        return opcode

    def _arguments(self, opcode: Opcode, shape: Shape, attributes: _Attributes) -> list[HloInstruction]:
        """Read what stands in the parentheses, which for parameters and constants is no operand."""
        lexer = self.lexer
        lexer.advance()
        if opcode.name == "parameter":
            start = lexer.start
            number = parse_integer(lexer)
            if number < 0:
                raise lexer.error(f"parameter number {number} is negative", start)
            attributes["parameter_number"] = number
        elif opcode.name == "constant":
            attributes["literal"] = parse_literal(lexer, shape, self._elided)
        else:
            return self._operands(opcode)
        lexer.expect(")", f"after the argument of {opcode.name}")
        return []

    def _operands(self, opcode: Opcode) -> list[HloInstruction]:
        lexer = self.lexer
        start = lexer.start
        operands: list[HloInstruction] = []
        while lexer.value != ")":
            operands.append(self._operand())
            if lexer.value != ",":
                break
            lexer.advance()
        if opcode.arity is not None and len(operands) != opcode.arity and lexer.value == ")":
            raise lexer.error(f"expects {opcode.arity} operands, but has {len(operands)} operands", start)
        lexer.expect(")", f"at the end of the operands of {opcode.name}")
        return operands

    def _operand(self) -> HloInstruction:
        lexer = self.lexer
        start = lexer.start
        declared = parse_shape(lexer) if lexer.kind == "shape" or lexer.value == "(" else None
        if lexer.kind not in NAME_KINDS:
            raise lexer.error(f"expects an operand, but sees {lexer.seen()}")
        found = self._names.get(lexer.value)
        following = lexer.text[lexer.pos : lexer.pos + 1]
        if following == "(" and lexer.kind == "ident" and lexer.value in OPCODES:
            return self._nested(declared, start)
        if found is None:
            hint = _did_you_mean(lexer.value, self._names) or "an instruction is defined before it is used"
            raise lexer.error(f"instruction does not exist: {lexer.value}", hint=hint)
        lexer.advance()
        if lexer.value == "#":
            found = self._tuple_element(found, start)
        if declared is not None and found.shape is not UNKNOWN_SHAPE and not declared.compatible(found.shape):
            raise lexer.error(
                f"The declared operand shape {declared.to_string(layout=False)} is not compatible with the shape of the "
                f"operand instruction {found.shape.to_string(layout=False)}.",
                start,
            )
        return found

    def _nested(self, declared: Shape | None, start: int) -> HloInstruction:
        """Read an instruction written in the place of an operand; it has no attributes of its own."""
        if self._depth >= MAX_DEPTH:
            raise self.lexer.error("maximum recursion depth exceeded", hint=f"instructions nest at most {MAX_DEPTH} deep")
        self._depth += 1
        name = self._free_name(f"{self.lexer.value}.anon")
        if declared is not None:
            self.lexer.jump(start)
        instruction = self._right_hand_side(name, start, nested=True)
        self._names[name] = instruction
        self._depth -= 1
        return instruction

    def _tuple_element(self, instruction: HloInstruction, start: int) -> HloInstruction:
        """Read `#0#1` after an operand, the short form of get-tuple-element, and return the element."""
        lexer = self.lexer
        where = lexer.where(start)
        while lexer.take("#"):
            index = parse_integer(lexer)
            shape = instruction.shape
            if shape is not UNKNOWN_SHAPE:
                if not 0 <= index < len(shape.tuple_shapes):
                    raise lexer.error(f"'{instruction.name}' of shape {shape} has no element {index}", start)
                shape = shape.tuple_shapes[index]
            key = f"{instruction.name}#{index}"
            found = self._names.get(key)
            if found is None:
                name = self._free_name(f"{instruction.name}_{index}")
                attributes: _Attributes = {"index": index}
                found = HloInstruction(name, "get-tuple-element", shape, [instruction], attributes, where=where)
                self._names[key] = self._names[name] = self._current.add(found)
            instruction = found
        return instruction

    def _free_name(self, name: str) -> str:
        unique, number = name, 0
        while unique in self._names:
            number += 1
            unique = f"{name}.{number}"
        return unique

    def _attributes(self, opcode: Opcode, attributes: _Attributes, called: _Called) -> list[HloInstruction]:
        """Read `, name=value` as long as there is one; return the control predecessors."""
        lexer = self.lexer
        predecessors: list[HloInstruction] = []
        seen: set[str] = set()
        while lexer.take(","):
            name = lexer.value
            if lexer.kind != "attr":
                raise lexer.error(f"expects an attribute, but sees {lexer.seen()}")
            if name in seen:
                raise lexer.error(f"attribute {name} already exists")
            seen.add(name)
            if name not in opcode.attributes and name not in _COMMON:
                allowed = ", ".join(opcode.allowed)
                hint = _did_you_mean(name, opcode.allowed)
                raise lexer.error(f'unexpected attribute "{name}". Allowed attributes: {allowed}', hint=hint)
            if name in CALLED_ATTRIBUTES:
                called[name] = self._called(name)
            elif name == "control-predecessors":
                predecessors = self._predecessors()
            else:
                attributes[name] = ATTRIBUTES[name].parse(lexer)
        return predecessors

    def _called(self, name: str) -> tuple[HloComputation, ...]:
        lexer = self.lexer
        lexer.advance()
        if name not in ("branch_computations", "called_computations"):
            return (self._lookup_computation(),)
        if lexer.kind == "ints":
            lexer.advance()
            return ()
        lexer.expect("{", f"at the start of {name}")
        found: list[HloComputation] = []
        while lexer.value != "}":
            found.append(self._lookup_computation())
            if not lexer.take(","):
                break
        lexer.expect("}", f"at the end of {name}")
        return tuple(found)

    def _predecessors(self) -> list[HloInstruction]:
        lexer = self.lexer
        lexer.advance()
        if lexer.kind == "ints":
            lexer.advance()
            return []
        lexer.expect("{", "at the start of control-predecessors")
        found: list[HloInstruction] = []
        while lexer.value != "}":
            found.append(self._operand())
            if not lexer.take(","):
                break
        lexer.expect("}", "at the end of control-predecessors")
        return found


def _next_word(lexer: Lexer) -> int:
    pos = lexer.pos
    while lexer.text[pos : pos + 1].isspace():
        pos += 1
    return pos


def _legal_name(name: str) -> str:
    """Return what XLA makes of a name; other characters than a name's never get here."""
    if name in DTYPES or name in ("token", "opaque"):
        return f"{name}_"
    return f"a{name[1:]}" if name.startswith("__") and not name.startswith("__xla_") else name


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word[:80], list(known)[:5000], n=1)
    return f"did you mean '{close[0]}'?" if close else ""
