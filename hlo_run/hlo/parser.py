"""HLO text to graph: a hand-written descent over the tokens; attributes and opcodes are tables.

Shapes that the text leaves out stay open (`UNKNOWN_SHAPE`); `ops.infer` fills them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from hlo_run.errors import ParseError, Unsupported
from hlo_run.hlo.attributes import (
    ATTRIBUTES,
    CALLED_ATTRIBUTES,
    AttributeValue,
    RawText,
    parse_entry_layout,
    parse_integer,
)
from hlo_run.hlo.dtype import DTYPES
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.lexer import Lexer
from hlo_run.hlo.literal import ElidedFill, parse_literal
from hlo_run.hlo.opcodes import OPCODES, Opcode
from hlo_run.hlo.shape import Shape
from hlo_run.hlo.shape_text import MAX_DEPTH, parse_shape

UNKNOWN_SHAPE = Shape("unknown")

_HEADER_FLAGS = ("is_scheduled", "alias_passthrough_params")
_HEADER_INTS = ("replica_count", "num_partitions")
_HEADER_RAW = (
    "input_output_alias",
    "buffer_donor",
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "frontend_attributes",
    "origin_recovery_table",
    "debug_attributes",
)
HEADER_ATTRIBUTES = (*_HEADER_FLAGS, *_HEADER_INTS, *_HEADER_RAW, "entry_computation_layout")
_STACK_FRAMES = re.compile(r"FileNames\b.*?(?=\n[ \t]*(?:ENTRY\b|%|[A-Za-z_][\w.\-]*[ \t]*(?:\([^\n]*)?\{[ \t]*\n))", re.DOTALL)
_NAMES = ("ident", "percent")
_Called = dict[str, tuple[HloComputation, ...]]
_Attributes = dict[str, AttributeValue]


def parse_module(text: str, file: str = "<text>") -> HloModule:
    """Return the module that `text` spells, with `file` as the name in every `where`.

    Raises ParseError for text that is not HLO and Unsupported for valid HLO beyond us. Shapes are not checked here.
    """
    return _Parser(text, file).module()


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.lexer = Lexer(text, file)
        self.elided = ElidedFill()
        self.computations: dict[str, HloComputation] = {}
        # In order of completion, which is the order in which names become unique.
        self.ordered: list[HloComputation] = []
        self.entry: HloComputation | None = None
        self.names: dict[str, HloInstruction] = {}
        self.current = HloComputation("")
        self.depth = 0

    # -- module ------------------------------------------------------------------------------------------------------

    def module(self) -> HloModule:
        lexer = self.lexer
        if lexer.kind == "eof":
            raise lexer.error("the text is empty", hint="a module begins with 'HloModule name'")
        if lexer.value == "HloModule" and lexer.kind == "ident":
            return self._module_with_header()
        if lexer.value == "ENTRY" or lexer.text[lexer.pos :].lstrip()[:1] == "{":
            self._computations()
            return self._finish(None)
        raise lexer.error(
            f"expects 'HloModule', 'ENTRY' or a computation, but sees {lexer.seen()}",
            hint="a module begins with 'HloModule name'; is this an HLO text file?",
        )

    def _module_with_header(self) -> HloModule:
        lexer = self.lexer
        lexer.advance()
        if lexer.kind not in (*_NAMES, "colon"):
            raise lexer.error(f"expects a module name, but sees {lexer.seen()}")
        name = lexer.value
        lexer.advance()
        lexer.take(":")
        attributes: _Attributes = {}
        while lexer.take(","):
            self._header_attribute(attributes)
        if lexer.value == "FileNames":
            self._stack_frames(attributes)
        self._computations()
        module = self._finish(name)
        module.attrs = attributes
        if attributes.get("is_scheduled"):
            module.schedule = {c: list(c.instructions) for c in module.computations if not c.is_fusion}
        return module

    def _header_attribute(self, attributes: _Attributes) -> None:
        lexer = self.lexer
        name = lexer.value
        if lexer.kind != "attr":
            raise lexer.error(f"expects a module attribute, but sees {lexer.seen()}")
        if name in attributes:
            raise lexer.error(f"attribute {name} already exists")
        if name == "entry_computation_layout":
            attributes[name] = parse_entry_layout(lexer)
        elif name in _HEADER_INTS:
            lexer.advance()
            attributes[name] = parse_integer(lexer)
        elif name in _HEADER_FLAGS:
            attributes[name] = ATTRIBUTES["is_stable"].parse(lexer)
        elif name in _HEADER_RAW:
            attributes[name] = RawText(lexer.raw_value())
        else:
            raise lexer.error(f'unexpected attribute "{name}". Allowed attributes: {", ".join(sorted(HEADER_ATTRIBUTES))}')

    def _stack_frames(self, attributes: _Attributes) -> None:
        # The four tables only matter to `metadata`, which is kept raw as well.
        lexer = self.lexer
        found = _STACK_FRAMES.match(lexer.text, lexer.start)
        if found is None:
            raise lexer.error("the stack-frame tables are not followed by a computation")
        attributes["stack_frames"] = RawText(found[0].strip())
        lexer.jump(found.end())

    def _computations(self) -> None:
        while True:
            self._computation()
            if self.lexer.kind == "eof":
                return

    def _finish(self, name: str | None) -> HloModule:
        entry = self.entry or self.ordered[-1]
        module = HloModule(name or f"module_{entry.name}", has_header=name is not None, has_entry=self.entry is not None)
        for computation in self.ordered:
            module.add_computation(computation, is_entry=computation is entry)
        return module

    # -- computations ------------------------------------------------------------------------------------------------

    def _computation(self) -> None:
        lexer = self.lexer
        is_entry = lexer.value == "ENTRY" and lexer.kind == "ident"
        if is_entry:
            if self.entry is not None:
                raise lexer.error("expects only one ENTRY", hint=f"'{self.entry.name}' is marked ENTRY already")
            lexer.advance()
        if lexer.kind not in _NAMES:
            raise lexer.error(f"expects a computation, but sees {lexer.seen()}", hint=self._computation_hint())
        where, name = lexer.where(), lexer.value
        if name in self.computations:
            previous = self.computations[name].where
            raise lexer.error(f"computation already exists: {name}", hint=f"computation previously defined here: {previous}")
        computation = HloComputation(name, where)
        lexer.advance()
        result = self._signature() if lexer.value == "(" else None
        self._body(computation)
        if result is not None:
            self._check_result(computation, result)
        self.computations[name] = computation
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
            if lexer.kind not in (*_NAMES, "colon"):
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
        if self.depth >= MAX_DEPTH:
            raise lexer.error("maximum recursion depth exceeded", hint=f"computations nest at most {MAX_DEPTH} deep")
        outer = self.current, self.names
        self.current, self.names = computation, {}
        self.depth += 1
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
        self.depth -= 1
        self.current, self.names = outer
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
        if lexer.kind not in _NAMES:
            raise lexer.error(f"expects a computation name, but sees {lexer.seen()}")
        found = self.computations.get(lexer.value)
        if found is None:
            hint = _did_you_mean(lexer.value, self.computations) or "a computation is defined before it is named"
            raise lexer.error(f"computation does not exist: {lexer.value}", hint=hint)
        lexer.advance()
        return found

    # -- instructions ------------------------------------------------------------------------------------------------

    def _instruction(self) -> None:
        lexer = self.lexer
        is_root = lexer.value == "ROOT" and lexer.kind == "ident"
        root_start = lexer.start
        if is_root:
            lexer.advance()
        if lexer.kind not in _NAMES:
            raise lexer.error(f"expects an instruction name, but sees {lexer.seen()}", hint=self._name_hint())
        name, start = lexer.value, lexer.start
        if name in self.names:
            previous = self.names[name].where
            raise lexer.error(f"instruction already exists: {name}", hint=f"instruction previously defined here: {previous}")
        if is_root and self.current.has_root:
            other = self.current.root
            raise lexer.error("one computation should have only one ROOT", root_start, hint=f"the other is {other.name}")
        if name in DTYPES:
            raise lexer.error(f"illegal instruction name: {name}; suggest renaming to: {name}_")
        lexer.advance()
        lexer.expect("=", f"after the instruction name '{name}'")
        instruction = self._right_hand_side(name, start, is_root)
        self.names[name] = instruction

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
        for missing in opcode.required:
            if missing not in attributes and missing not in called:
                raise lexer.error(f"attribute {missing} is expected but not seen", start, hint=f"'{opcode.name}' needs it")
        for attribute, default in opcode.defaults.items():
            attributes.setdefault(attribute, default)
        instruction = HloInstruction(name, opcode.name, shape, operands, attributes, called, where)
        instruction.control_predecessors = predecessors
        return self.current.add(instruction, is_root)

    def _opcode(self, shape: Shape) -> Opcode:
        lexer = self.lexer
        opcode = OPCODES.get(lexer.value) if lexer.kind == "ident" else None
        if opcode is None:
            if lexer.kind == "ident" and lexer.text[lexer.pos : lexer.pos + 1] == "[":
                hint = _did_you_mean(lexer.value, DTYPES) or f"element types: {', '.join(DTYPES)}"
                raise lexer.error(f"unknown element type '{lexer.value}'", hint=hint)
            if lexer.kind == "ident" and re.fullmatch(r".+-(start|update|done)", lexer.value):
                base = lexer.value.rpartition("-")[0]
                if base in OPCODES:
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
            number = parse_integer(lexer)
            if number < 0:
                raise lexer.error(f"parameter number {number} is negative")
            attributes["parameter_number"] = number
        elif opcode.name == "constant":
            # The literal is no AttributeValue: like the called computations it has its own reader and printer.
            literal = parse_literal(lexer, shape, self.elided)
            attributes["literal"] = literal  # type: ignore[assignment]
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
        if lexer.kind not in _NAMES:
            raise lexer.error(f"expects an operand, but sees {lexer.seen()}")
        found = self.names.get(lexer.value)
        following = lexer.text[lexer.pos : lexer.pos + 1]
        if following == "(" and lexer.kind == "ident" and lexer.value in OPCODES:
            return self._nested(declared, start)
        if found is None:
            hint = _did_you_mean(lexer.value, self.names) or "an instruction is defined before it is used"
            raise lexer.error(f"instruction does not exist: {lexer.value}", hint=hint)
        if declared is not None and found.shape is not UNKNOWN_SHAPE and not declared.compatible(found.shape):
            raise lexer.error(
                f"The declared operand shape {declared.to_string(layout=False)} is not compatible with the shape of the "
                f"operand instruction {found.shape.to_string(layout=False)}.",
                start,
            )
        lexer.advance()
        if lexer.value == "#":
            return self._tuple_element(found, start)
        return found

    def _nested(self, declared: Shape | None, start: int) -> HloInstruction:
        """Read an instruction written in the place of an operand; it has no attributes of its own."""
        if self.depth >= MAX_DEPTH:
            raise self.lexer.error("maximum recursion depth exceeded", hint=f"instructions nest at most {MAX_DEPTH} deep")
        self.depth += 1
        name = self._free_name(f"{self.lexer.value}.anon")
        if declared is not None:
            self.lexer.jump(start)
        instruction = self._right_hand_side(name, start, nested=True)
        self.names[name] = instruction
        self.depth -= 1
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
            found = self.names.get(key)
            if found is None:
                name = self._free_name(f"{instruction.name}_{index}")
                attributes: _Attributes = {"index": index}
                found = HloInstruction(name, "get-tuple-element", shape, [instruction], attributes, where=where)
                self.names[key] = self.names[name] = self.current.add(found)
            instruction = found
        return instruction

    def _free_name(self, name: str) -> str:
        unique, number = name, 0
        while unique in self.names:
            number += 1
            unique = f"{name}.{number}"
        return unique

    # -- attributes --------------------------------------------------------------------------------------------------

    def _attributes(self, opcode: Opcode, attributes: _Attributes, called: _Called) -> list[HloInstruction]:
        """Read `, name=value` as long as there is one; return the control predecessors."""
        lexer = self.lexer
        predecessors: list[HloInstruction] = []
        seen: set[str] = set()
        while lexer.value == ",":
            lexer.advance()
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


_COMMON = frozenset(
    """sharding frontend_attributes control-predecessors parameter_replication statistics origin metadata
    backend_config""".split()
)


def _next_word(lexer: Lexer) -> int:
    pos = lexer.pos
    while lexer.text[pos : pos + 1].isspace():
        pos += 1
    return pos


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word[:80], list(known)[:5000], n=1)
    return f"did you mean '{close[0]}'?" if close else ""
