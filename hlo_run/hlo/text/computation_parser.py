"""Parse computations: names, signatures and bodies; `instruction_parser` reads the instructions of a body.

Bodies and instructions may be nested. Open ones are on an explicit stack, not on Python's, so that only XLA's limit
bounds the depth of a text.
"""

from __future__ import annotations

from hlo_run.errors import ParseError
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.shape_text import MAX_DEPTH, parse_shape
from hlo_run.hlo.attributes.text import parse_raw, parse_string_or_json
from hlo_run.hlo.graph import HloComputation
from hlo_run.hlo.names import legal_name
from hlo_run.hlo.text.instruction_parser import UNKNOWN_SHAPE, InstructionParser
from hlo_run.hlo.text.parse_hints import did_you_mean
from hlo_run.hlo.values.shape import Shape

__all__ = ["UNKNOWN_SHAPE", "ComputationParser"]


class ComputationParser:
    """Reads computations. `ordered` has them in the order of their ends, inner ones first."""

    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer
        self.ordered: list[HloComputation] = []
        self.entry: HloComputation | None = None
        self._computations: dict[str, HloComputation] = {}
        self._instructions = InstructionParser(lexer, self)

    def computation(self) -> None:
        """Read one computation with `ENTRY` and signature; the current token is its first one."""
        lexer = self.lexer
        is_entry = lexer.value == "ENTRY" and lexer.kind == "ident"
        if is_entry:
            if self.entry is not None:
                raise lexer.error("expects only one ENTRY", hint=f"'{self.entry.name}' is marked ENTRY already")
            lexer.advance()
        if not lexer.at_name:
            raise lexer.error(f"expects a computation, but sees {lexer.seen()}", hint=self._hint())
        where, name = lexer.where(), lexer.value
        if name in self._computations:
            previous = self._computations[name].where
            raise lexer.error(f"computation already exists: {name}", hint=f"computation previously defined here: {previous}")
        lexer.advance()
        result = self._signature() if lexer.value == "(" else None
        computation = self._instructions.body(HloComputation(legal_name(name), where))
        if result is not None:
            _check_result(computation, result)
        self._computations[name] = computation
        if is_entry:
            self.entry = computation
        seen: set[str] = set()
        while lexer.take(","):
            self._attribute(computation, seen)

    def single_instruction(self) -> HloComputation:
        """Read a text of one instruction, with or without `name =`; operands with a shape become parameters."""
        computation = self._instructions.single()
        if self.lexer.kind != "eof":
            raise self.lexer.error(
                "expected the end of the text after a single instruction",
                hint='a module begins with a line "HloModule name"',
            )
        self.entry = computation
        return computation

    def _hint(self) -> str:
        if self.lexer.kind == "eof":
            return "the text may be cut off: a module needs at least one computation"
        return "a computation is written like 'name { .. }' or 'ENTRY name { .. }'"

    def _signature(self) -> Shape:
        """Read `(p: shape, ..) -> shape` and return the result shape; like XLA, ignore the parameters."""
        lexer = self.lexer
        lexer.advance()
        while lexer.value != ")":
            if not lexer.at_name:
                raise lexer.error(f"expects a parameter name, but sees {lexer.seen()}")
            lexer.advance()
            parse_shape(lexer)
            if not lexer.take(","):
                break
            if lexer.value == ")":
                raise lexer.error("expects a parameter name, but sees ')'")
        lexer.expect(")", "at the end of the parameters")
        lexer.expect("->", "before the result shape")
        return parse_shape(lexer)

    def _attribute(self, computation: HloComputation, seen: set[str]) -> None:
        """Read `execution_thread="name"` or `backend_config=..` after a body's comma."""
        lexer = self.lexer
        if lexer.kind != "attr":
            raise lexer.error(f"expects an attribute of the computation, but sees {lexer.seen()}")
        name = lexer.value
        if name in seen:
            raise lexer.error(f"attribute {name} already exists")
        seen.add(name)
        if name == "backend_config":
            computation.backend_config = parse_string_or_json(lexer)
            return
        if name != "execution_thread":
            raise lexer.error(f'unexpected attribute "{name}". Allowed attributes: backend_config, execution_thread')
        start = lexer.start
        value = str(parse_raw(lexer))
        if value[:1] not in "\"'":
            raise lexer.error("expects a string as execution_thread", start)
        computation.execution_thread = value[1:-1]

    def closed(self, computation: HloComputation, start: int) -> None:
        """Check and register a body after its last token; `start` is the position of its first token."""
        if not computation.instructions:
            raise self.lexer.error("a computation needs at least one instruction", start)
        if not computation.has_root:
            computation.root = computation.instructions[-1]
        _check_parameters(computation)
        self.ordered.append(computation)

    def lookup(self, current: str) -> HloComputation:
        """Return the computation that the current token names; `current` is the name of the computation that is being read."""
        lexer = self.lexer
        if not lexer.at_name:
            raise lexer.error(f"expects a computation name, but sees {lexer.seen()}")
        found = self._computations.get(lexer.value)
        if found is None:
            hint = did_you_mean(lexer.value, self._computations) or "a computation is defined before it is named"
            if lexer.value == current:
                hint = f"'{lexer.value}' cannot call itself"
            raise lexer.error(f"computation does not exist: {lexer.value}", hint=hint)
        lexer.advance()
        return found

    def check_depth(self, depth: int) -> None:
        """Raise ParseError if bodies and instructions are nested deeper than XLA allows."""
        if depth >= MAX_DEPTH:
            hint = f"computations and instructions nest at most {MAX_DEPTH} deep"
            raise self.lexer.error("maximum recursion depth exceeded", hint=hint)


def _check_result(computation: HloComputation, result: Shape) -> None:
    root = computation.root
    if root.shape is not UNKNOWN_SHAPE and not result.compatible(root.shape):
        raise ParseError(
            f"Shape of computation {computation.name}, {result.to_string(layout=False)}, is not compatible with that of "
            f"its root instruction {root.name}, {root.shape.to_string(layout=False)}",
            computation.where,
        )


def _check_parameters(computation: HloComputation) -> None:
    parameters = computation.parameters
    for expected, parameter in enumerate(parameters):
        number = parameter.parameter_number
        if number < expected:
            other = parameters[expected - 1].where
            raise ParseError(f"Duplicate parameter number {number}", parameter.where, f"the other one is at {other}")
        if number > expected:
            raise ParseError(
                f"parameter number {number} leaves a gap: no instruction is parameter({expected})",
                parameter.where,
                hint=f"'{computation.name}' has {len(parameters)} parameters, numbered from 0",
            )
