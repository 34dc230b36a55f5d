"""Parse instructions with an explicit stack: operands may be instructions, attributes may be whole bodies."""

from __future__ import annotations

import re
from typing import Protocol

from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.literal_parser import ElidedFill, parse_literal
from hlo_run.hlo.attributes.shape_text import parse_shape, starts_shape
from hlo_run.hlo.attributes.table import CALLED_ATTRIBUTES, attribute_kind
from hlo_run.hlo.attributes.text import parse_integer
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.names import legal_name
from hlo_run.hlo.opcodes.definition import COMMON_ATTRIBUTES
from hlo_run.hlo.opcodes.table import OPCODES, definition_of
from hlo_run.hlo.opcodes.traits import ASYNC
from hlo_run.hlo.text.async_parser import finish_async, share_attributes, split_sugar
from hlo_run.hlo.text.instruction_rules import Draft, apply_rules
from hlo_run.hlo.text.parse_hints import did_you_mean, name_hint, unknown_opcode
from hlo_run.hlo.text.pending import Attributes, Body, Names, Pending, check_required
from hlo_run.hlo.text.printed_forms import Head, read_head, read_operands
from hlo_run.hlo.values.shape import Shape
from hlo_run.records import replace

UNKNOWN_SHAPE = Shape("unknown")

_COMMON = frozenset(COMMON_ATTRIBUTES)
_ELEMENT_BITS = re.compile(r"E\(-?\d+\)")
_LISTS = ("branch_computations", "called_computations")


class Computations(Protocol):
    """The part of `ComputationParser` that instructions need."""

    def lookup(self, current: str) -> HloComputation:
        """Return the computation that the current token names. Raises ParseError if none has that name."""
        ...

    def closed(self, computation: HloComputation, start: int) -> None:
        """Check and register a body after its last token. Raises ParseError if the body is invalid."""
        ...

    def check_depth(self, depth: int) -> None:
        """Raise ParseError if bodies and instructions are nested deeper than XLA allows."""
        ...


class InstructionParser:
    """Reads bodies. Each step continues the innermost open body or instruction, without recursion."""

    def __init__(self, lexer: Lexer, computations: Computations) -> None:
        self.lexer = lexer
        self._computations = computations
        self._elided = ElidedFill()
        self._stack: list[Body | Pending] = []
        self._names: Names = {}
        self._current = HloComputation("")
        self._counters: dict[tuple[HloComputation, str], int] = {}
        self._makes_parameters = False

    def body(self, computation: HloComputation) -> HloComputation:
        """Read `{ instructions }` into `computation`."""
        self._open(computation)
        self._run(0)
        return computation

    def single(self) -> HloComputation:
        """Read one instruction without a body around it; its name and `=` are optional."""
        self._makes_parameters = True
        self._push_body(HloComputation("_", self.lexer.where()))
        if starts_shape(self.lexer):
            self._right_hand_side("_", self.lexer.start)
        else:
            self._instruction()
        self._run(1)
        self._close()
        return self._current

    def _run(self, depth: int) -> None:
        """Step until at most `depth` bodies and instructions are open."""
        stack, lexer = self._stack, self.lexer
        while len(stack) > depth:
            top = stack[-1]
            if isinstance(top, Body):
                if lexer.value == "}":
                    self._close()
                    lexer.advance()
                elif lexer.kind == "eof":
                    raise self._cut_off(top)
                else:
                    self._instruction()
            elif top.in_operands:
                self._operands(top)
            else:
                self._attributes(top)

    def _open(self, computation: HloComputation) -> None:
        lexer = self.lexer
        if lexer.kind == "ints":
            raise lexer.error("a computation needs at least one instruction")
        self._push_body(computation)
        lexer.expect("{", f"at the start of computation {computation.name}")

    def _push_body(self, computation: HloComputation) -> None:
        self._computations.check_depth(len(self._stack))
        self._stack.append(Body(computation, (self._current, self._names), self.lexer.start))
        self._current, self._names = computation, {}

    def _close(self) -> None:
        """End the innermost body and pass it to the instruction whose attribute it is."""
        body = self._stack.pop()
        assert isinstance(body, Body)
        self._computations.closed(body.computation, body.start)
        if self._stack:
            owner = self._stack[-1]
            assert isinstance(owner, Pending)
            self._current, self._names = body.outer
            owner.deliver(body.computation)

    def _cut_off(self, body: Body) -> Exception:
        return self.lexer.error(
            "expects '}' at the end of the computation, but sees the end of the text",
            hint=f"the text may be cut off: '{body.computation.name}' opened at line {self.lexer.where(body.start).line}",
        )

    def _instruction(self) -> None:
        """Begin the instruction at the current token, with `ROOT`, name and `=`."""
        lexer = self.lexer
        head = read_head(lexer)
        if head is not None and self._begin_quickly(head):
            return
        is_root = lexer.value == "ROOT" and lexer.kind == "ident"
        root_start = lexer.start
        if is_root:
            lexer.advance()
        if not lexer.at_name:
            raise lexer.error(f"expects an instruction name, but sees {lexer.seen()}", hint=name_hint(lexer))
        name, start = lexer.value, lexer.start
        if name in self._names:
            previous = self._names[name].where
            raise lexer.error(f"instruction already exists: {name}", hint=f"instruction previously defined here: {previous}")
        if is_root and self._current.has_root:
            other = self._current.root
            raise lexer.error("one computation should have only one ROOT", root_start, hint=f"the other is {other.name}")
        legal = legal_name(name)
        if legal != name:
            raise lexer.error(f"illegal instruction name: {name}; suggest renaming to: {legal}")
        lexer.advance()
        lexer.expect("=", f"after the instruction name '{name}'")
        self._right_hand_side(name, start, is_root)

    def _begin_quickly(self, head: Head) -> bool:
        """Begin an instruction of the usual form; return False if it has an error, which the slow path then reports."""
        name, opcode = head.name, head.opcode
        if name in self._names or (head.is_root and self._current.has_root) or legal_name(name) != name:
            return False
        self._computations.check_depth(len(self._stack))
        pending = Pending(name, head.start, head.shape, opcode, None)
        pending.is_root = head.is_root
        self._stack.append(pending)
        has_operands = not opcode.has_argument
        found = read_operands(self.lexer, head.end, self._names) if has_operands else None
        if found is None or opcode.arity not in (None, len(found[0])):
            self.lexer.jump(head.end)
            self._operands(pending)
            return True
        pending.operands, end = found
        pending.in_operands = False
        self.lexer.jump(end)
        self._attributes(pending)
        return True

    def _right_hand_side(self, name: str, start: int, is_root: bool = False) -> None:
        """Read shape and opcode and begin the operands."""
        lexer = self.lexer
        shape = parse_shape(lexer) if starts_shape(lexer) else UNKNOWN_SHAPE
        pending = self._begin(name, start, shape)
        pending.is_root = is_root
        self._operands(pending)

    def _begin(self, name: str, start: int, shape: Shape) -> Pending:
        """Read opcode and `(`, and push the instruction on the stack."""
        lexer = self.lexer
        opcode = definition_of(lexer.value) if lexer.kind == "ident" else None
        wrapped = None
        if opcode is None:
            sugar = split_sugar(lexer.value) if lexer.kind == "ident" else None
            if sugar is None:
                raise unknown_opcode(lexer)
            wrapped, opcode = OPCODES[sugar[0]], OPCODES[sugar[1]]
        if shape is UNKNOWN_SHAPE and not opcode.can_infer_shape:
            raise lexer.error(f"cannot infer shape for opcode: {opcode.name}", hint="write the result's shape before it")
        lexer.advance()
        if lexer.value != "(":
            raise lexer.error(f"expects '(' after opcode {opcode.name}, but sees {lexer.seen()}")
        lexer.advance()
        self._computations.check_depth(len(self._stack))
        pending = Pending(name, start, shape, opcode, wrapped)
        self._stack.append(pending)
        return pending

    def _operands(self, pending: Pending) -> None:
        """Continue in the parentheses: operands, or the argument of a parameter or constant."""
        lexer, opcode = self.lexer, pending.opcode
        if opcode.has_argument:
            self._argument(pending)
        start = lexer.start
        while True:
            if pending.wants_operand:
                if lexer.value == ")":
                    break
                pending.wants_operand = False
                operand = self._operand()
                if operand is None:
                    return
                pending.operands.append(operand)
            if lexer.value != "," or opcode.has_argument:
                break
            lexer.advance()
            pending.wants_operand = True
        if opcode.arity is not None and len(pending.operands) != opcode.arity and lexer.value == ")":
            raise lexer.error(f"expects {opcode.arity} operands, but has {len(pending.operands)} operands", start)
        lexer.expect(")", f"at the end of the operands of {opcode.name}")
        pending.in_operands = False
        self._attributes(pending)

    def _argument(self, pending: Pending) -> None:
        """Read the number of a parameter or the literal of a constant."""
        lexer = self.lexer
        pending.wants_operand = False
        if pending.opcode.name == "constant":
            # A literal has all elements of the bounds, even if the shape has dynamic dimensions.
            pending.shape = _of_literal(pending.shape)
            pending.attributes["literal"] = parse_literal(lexer, pending.shape, self._elided)
            return
        start = lexer.start
        number = parse_integer(lexer)
        if number < 0:
            raise lexer.error(f"parameter number {number} is negative", start)
        pending.attributes["parameter_number"] = number

    def _operand(self) -> HloInstruction | None:
        """Return the operand at the current token; None if it is an instruction, which is now begun."""
        lexer = self.lexer
        start = lexer.start
        declared = parse_shape(lexer) if starts_shape(lexer) else None
        name = lexer.value if lexer.at_name else ""
        found = self._names.get(name)
        if found is None and declared is not None and self._makes_parameters:
            found = self._new_parameter(name, declared, start)
        if name and lexer.kind == "ident" and (definition_of(name) or split_sugar(name)) and lexer.is_followed_by("("):
            nested = self._begin("", start, declared or UNKNOWN_SHAPE)
            nested.is_nested = True
            return None
        if found is None:
            raise self._no_operand(name)
        if name:
            lexer.advance()
        if lexer.value == "#":
            # A declared shape before `%t#0` is that of the element, not of the tuple.
            return self._tuple_element(found, start)
        if declared is not None and found.shape is not UNKNOWN_SHAPE and not declared.compatible(found.shape):
            raise lexer.error(
                f"The declared operand shape {declared.to_string(layout=False)} is not compatible with the shape of the "
                f"operand instruction {found.shape.to_string(layout=False)}.",
                start,
            )
        return found

    def _new_parameter(self, name: str, shape: Shape, start: int) -> HloInstruction:
        """Add a parameter to the computation of a single instruction."""
        number = len(self._current.parameters)
        name = name or f"_{number}"
        where = self.lexer.where(start)
        parameter = HloInstruction(name, "parameter", shape, attrs={"parameter_number": number}, where=where)
        self._names[name] = parameter
        return self._current.add(parameter)

    def _no_operand(self, name: str) -> Exception:
        if not name:
            return self.lexer.error(f"expects an operand, but sees {self.lexer.seen()}")
        if self._makes_parameters:
            return self.lexer.error(f"instruction does not exist: {name}", hint="give the operand a shape: f32[2] name")
        hint = did_you_mean(name, self._names) or "an instruction is defined before it is used"
        return self.lexer.error(f"instruction does not exist: {name}", hint=hint)

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
                attributes: Attributes = {"index": index}
                found = HloInstruction(name, "get-tuple-element", shape, [instruction], attributes, where=where)
                self._names[key] = self._names[name] = self._current.add(found)
            instruction = found
        return instruction

    def _free_name(self, name: str) -> str:
        """Return `name`, or the first `name.N` that is free in the current computation."""
        key = (self._current, name)
        number = self._counters.get(key, 0)
        while (unique := f"{name}.{number}" if number else name) in self._names:
            number += 1
        self._counters[key] = number
        return unique

    def _attributes(self, pending: Pending) -> None:
        """Continue with `, name=value` until the last one, then finish the instruction."""
        lexer = self.lexer
        if pending.list_name and not self._computation_list(pending):
            return
        # An instruction in place of an operand has no attributes.
        while not pending.is_nested and lexer.take_attribute():
            name = lexer.value
            self._check_attribute(pending, name)
            if name in CALLED_ATTRIBUTES:
                lexer.advance()
                if not self._called(pending, name):
                    return
            elif name == "control-predecessors":
                pending.predecessors = self._predecessors()
            else:
                owner = pending.opcode if name in pending.opcode.attributes or not pending.wrapped else pending.wrapped
                pending.attributes[name] = attribute_kind(owner.name, name).parse(lexer)
        self._finish(pending)

    def _check_attribute(self, pending: Pending, name: str) -> None:
        lexer = self.lexer
        if lexer.kind != "attr":
            raise lexer.error(f"expects an attribute, but sees {lexer.seen()}")
        if name in pending.seen:
            raise lexer.error(f"attribute {name} already exists")
        pending.seen.add(name)
        if name in pending.opcode.attributes or name in _COMMON:
            return
        opcode = pending.wrapped
        if opcode is None or name not in opcode.attributes:
            known = sorted({*pending.opcode.allowed, *(opcode.attributes if opcode else ())})
            message = f'unexpected attribute "{name}". Allowed attributes: {", ".join(known)}'
            raise lexer.error(message, hint=did_you_mean(name, known))

    def _called(self, pending: Pending, name: str) -> bool:
        """Read the computation, or the list, of an attribute; return False if it began a body that must be read first."""
        lexer = self.lexer
        if name in _LISTS:
            if lexer.kind == "ints" and not lexer.value[1:-1].strip():
                lexer.advance()
                pending.called[name] = ()
                return True
            lexer.expect("{", f"at the start of {name}")
            pending.list_name, pending.listed = name, []
            return self._computation_list(pending)
        pending.called_name = name
        return self._computation(pending)

    def _computation_list(self, pending: Pending) -> bool:
        """Continue in `{a, b}`; return False if it began a body that must be read first."""
        lexer = self.lexer
        while not pending.listed or lexer.take(","):
            if pending.listed and lexer.value == "}":
                break
            if not self._computation(pending):
                return False
        lexer.expect("}", f"at the end of {pending.list_name}")
        pending.called[pending.list_name] = tuple(pending.listed)
        pending.list_name = ""
        return True

    def _computation(self, pending: Pending) -> bool:
        """Deliver the named computation, or begin the body in place of a name and return False."""
        if self.lexer.value in ("{", "{}"):
            self._open(HloComputation("_", self.lexer.where()))
            return False
        pending.deliver(self._computations.lookup(self._current.name))
        return True

    def _predecessors(self) -> list[HloInstruction]:
        lexer = self.lexer
        lexer.advance()
        lexer.expect("{", "at the start of control-predecessors")
        found: list[HloInstruction] = []
        while True:
            operand = self._names.get(lexer.value) if lexer.at_name else None
            if operand is None:
                hint = did_you_mean(lexer.value, self._names)
                raise lexer.error(f"expects an instruction name, but sees {lexer.seen()}", hint=hint)
            start = lexer.start
            lexer.advance()
            found.append(self._tuple_element(operand, start))
            if not lexer.take(","):
                break
        lexer.expect("}", "at the end of control-predecessors")
        return found

    def _finish(self, pending: Pending) -> None:
        """Create the instruction, and append it to the operands of the instruction around it."""
        opcode = pending.opcode
        if opcode.name in ASYNC:
            body = finish_async(self.lexer, pending)
            if body is not None:
                self._computations.closed(body, pending.start)
        attributes = pending.attributes
        check_required(self.lexer, opcode, (*attributes, *pending.called), pending.start)
        draft = Draft(pending.name or opcode.name, opcode.name, pending.shape, pending.operands, attributes, pending.called)
        apply_rules(self.lexer, pending.start, draft)
        name = pending.name or self._free_name(f"{opcode.name}.anon")
        where = self.lexer.where(pending.start)
        instruction = HloInstruction(name, opcode.name, draft.shape, draft.operands, attributes, draft.called, where)
        instruction.control_predecessors = list(dict.fromkeys(pending.predecessors))
        if name in self._names:
            previous = self._names[name].where
            raise self.lexer.error(f"instruction already exists: {name}", pending.start, f"previously defined here: {previous}")
        self._names[name] = self._current.add(instruction, pending.is_root)
        self._stack.pop()
        if opcode.name in ASYNC:
            share_attributes(instruction)
        if pending.is_nested:
            parent = self._stack[-1]
            assert isinstance(parent, Pending)
            parent.operands.append(instruction)


def _of_literal(shape: Shape) -> Shape:
    """Return the shape of a literal of `shape`: without dynamic dimensions and without `E(bits)` in the layout."""
    if shape.is_tuple:
        return shape.map_leaves(_of_literal)
    layout = shape.layout
    if layout is not None and "E(" in layout.extra:
        layout = replace(layout, extra=_ELEMENT_BITS.sub("", layout.extra))
    elif not shape.dynamic_dims:
        return shape
    return replace(shape, dynamic_dims=(), layout=layout)
