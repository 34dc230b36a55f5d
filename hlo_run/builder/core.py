"""The base of the builder: values, instructions with inferred shapes, computations, modules."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self, TypeAlias

from hlo_run.builder.spelling import attribute_value, header_value
from hlo_run.builder.values import ShapeLike, TypeLike, literal_of, shape_of, type_of
from hlo_run.errors import HloRunError, ParseError, UsageError, Where
from hlo_run.hlo.attributes.table import CALLED_ATTRIBUTES, AttributeValue
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.names import NameUniquer
from hlo_run.hlo.opcodes.definition import COMMON_ATTRIBUTES
from hlo_run.hlo.opcodes.names import Opcode, opcode_of
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.text.instruction_rules import Draft, complete
from hlo_run.hlo.text.parser import UNKNOWN_SHAPE
from hlo_run.hlo.values.shape import Shape
from hlo_run.ops.infer import infer_shape
from hlo_run.ops.verify import verify
from hlo_run.walks import post_order

_PACKAGE = os.path.dirname(__file__)


class HloValue:
    """The result of an instruction in a builder; Python's operators add elementwise instructions.

    `/`, `%`, `>>` of integers are HLO's: truncating, with the dividend's sign, arithmetic for signed types. `==` and `!=`
    compare the instruction's identity, as in Python; `builder.compare` compares elements. A number as the other operand
    becomes a constant of this value's element type, and a scalar is broadcast. `value[i]` is an element of a tuple.
    """

    __slots__ = ("builder", "instruction")

    def __init__(self, builder: BuilderCore, instruction: HloInstruction) -> None:
        self.builder = builder
        self.instruction = instruction

    @property
    def shape(self) -> Shape:
        """The shape of the value: element type, dimensions and layout, or a tuple of shapes."""
        return self.instruction.shape

    @property
    def name(self) -> str:
        """The instruction's name, without `%`. It is unique in its computation."""
        return self.instruction.name

    def annotate(
        self, *, name: str | None = None, control_predecessors: Sequence[HloValue] | None = None, **attributes: object
    ) -> Self:
        """Set the name, control predecessors, and common attributes; return the value itself.

        `sharding`, `frontend_attributes` (a mapping), `metadata` (a mapping), `backend_config`, `statistics`, `origin`,
        `parameter_replication`. Raises ParseError for another attribute or an invalid value.
        """
        self.builder.set_attributes(self.instruction, attributes)
        if name is not None:
            self.instruction.name = self.builder.free_name(name)
        if control_predecessors is not None:
            self.instruction.control_predecessors = [self.builder.operand(p).instruction for p in control_predecessors]
        return self

    def __getitem__(self, index: int) -> HloValue:
        if not self.shape.is_tuple:
            raise UsageError(f"'{self.name}' of shape {self.shape.to_string(layout=False)} is not a tuple")
        if not 0 <= index < len(self.shape.tuple_shapes):
            raise IndexError(index)  # ends a Python loop over the value
        return self.builder.instruction("get-tuple-element", [self], index=index)

    def __len__(self) -> int:
        return len(self.shape.tuple_shapes)

    def __bool__(self) -> bool:
        raise UsageError(f"'{self.name}' has no truth value while the module is built", hint="use builder.conditional or select")

    def __add__(self, other: Operand) -> HloValue:
        return self._binary("add", other)

    def __radd__(self, other: Operand) -> HloValue:
        return self._binary("add", other, swapped=True)

    def __sub__(self, other: Operand) -> HloValue:
        return self._binary("subtract", other)

    def __rsub__(self, other: Operand) -> HloValue:
        return self._binary("subtract", other, swapped=True)

    def __mul__(self, other: Operand) -> HloValue:
        return self._binary("multiply", other)

    def __rmul__(self, other: Operand) -> HloValue:
        return self._binary("multiply", other, swapped=True)

    def __truediv__(self, other: Operand) -> HloValue:
        return self._binary("divide", other)

    def __rtruediv__(self, other: Operand) -> HloValue:
        return self._binary("divide", other, swapped=True)

    def __mod__(self, other: Operand) -> HloValue:
        return self._binary("remainder", other)

    def __rmod__(self, other: Operand) -> HloValue:
        return self._binary("remainder", other, swapped=True)

    def __pow__(self, other: Operand) -> HloValue:
        return self._binary("power", other)

    def __rpow__(self, other: Operand) -> HloValue:
        return self._binary("power", other, swapped=True)

    def __and__(self, other: Operand) -> HloValue:
        return self._binary("and", other)

    def __or__(self, other: Operand) -> HloValue:
        return self._binary("or", other)

    def __xor__(self, other: Operand) -> HloValue:
        return self._binary("xor", other)

    def __lshift__(self, other: Operand) -> HloValue:
        return self._binary("shift-left", other)

    def __rshift__(self, other: Operand) -> HloValue:
        signed = self.shape.is_array and self.shape.dtype.is_signed
        return self._binary("shift-right-arithmetic" if signed else "shift-right-logical", other)

    def __lt__(self, other: Operand) -> HloValue:
        return self._binary("compare", other, direction="LT")

    def __le__(self, other: Operand) -> HloValue:
        return self._binary("compare", other, direction="LE")

    def __gt__(self, other: Operand) -> HloValue:
        return self._binary("compare", other, direction="GT")

    def __ge__(self, other: Operand) -> HloValue:
        return self._binary("compare", other, direction="GE")

    def __neg__(self) -> HloValue:
        return self.builder.instruction("negate", [self])

    def __abs__(self) -> HloValue:
        return self.builder.instruction("abs", [self])

    def __invert__(self) -> HloValue:
        return self.builder.instruction("not", [self])

    def __matmul__(self, other: HloValue) -> HloValue:
        """Return the product of matrices or vectors; raises UsageError above rank 2."""
        contracting = (max(self.shape.rank - 1, 0),), (max(other.shape.rank - 2, 0),)
        if self.shape.rank > 2 or other.shape.rank > 2:
            raise UsageError("@ multiplies matrices and vectors", hint="use builder.dot with batch dimensions")
        return self.builder.instruction(
            "dot", [self, other], lhs_contracting_dims=contracting[0], rhs_contracting_dims=contracting[1]
        )

    def _binary(self, opcode: Opcode, other: Operand, swapped: bool = False, direction: str | None = None) -> HloValue:
        pair = [other, self] if swapped else [self, other]
        return self.builder.elementwise(opcode, pair, direction=direction)

    def __repr__(self) -> str:
        return str(self.instruction)


# An operand of elementwise methods; numbers become constants.
Operand: TypeAlias = "HloValue | bool | int | float | complex"
# A finished computation; a function from values to a value (or several: a tuple); or the opcode of a binary reducer. The
# parameter counts are listed so that type checkers infer the parameters of a lambda; a `def` may take `*values`.
_V: TypeAlias = HloValue
_UpToThree: TypeAlias = Callable[[_V], object] | Callable[[_V, _V], object] | Callable[[_V, _V, _V], object]
_Function: TypeAlias = _UpToThree | Callable[[_V, _V, _V, _V], object] | Callable[[_V, _V, _V, _V, _V, _V], object]
ComputationLike: TypeAlias = HloComputation | _Function | Opcode


class BuilderCore:
    """Builds one computation. Shapes are inferred when an instruction is added; an instruction with an error is not added."""

    def __init__(self, name: str = "module") -> None:
        self.name = name
        self._computation = HloComputation(name)
        self._names = NameUniquer()
        self._scope: dict[str, object] = {}
        self.finished: list[HloComputation] = []  # by this builder and its sub-builders

    def sub_builder(self, name: str) -> Self:
        """Return a builder for a called computation; finish it with `build_computation`."""
        builder = type(self)(name)
        builder.finished = self.finished
        return builder

    @contextmanager
    def scope(self, **attributes: object) -> Generator[None]:
        """Set attributes, as `HloValue.annotate` takes them, on every instruction added inside the `with` block."""
        outer = self._scope
        self._scope = {**outer, **attributes}
        try:
            yield
        finally:
            self._scope = outer

    def instruction(
        self,
        opcode: str,
        operands: Sequence[HloValue] = (),
        shape: ShapeLike | None = None,
        *,
        called: Mapping[str, Sequence[HloComputation]] | None = None,
        result_type: TypeLike | None = None,
        **attributes: object,
    ) -> HloValue:
        """Add an instruction of any opcode; attributes have XLA's names, and those that are None are omitted.

        Without `shape` it is inferred; `result_type` then replaces its element type. Raises ParseError where the same
        instruction in text would, UsageError for an operand of another computation.
        """
        return self._instruction(opcode, operands, attributes, shape, called, result_type)

    def _instruction(
        self,
        opcode: str,
        operands: Sequence[HloValue],
        attributes: Mapping[str, object],
        shape: ShapeLike | None = None,
        called: Mapping[str, Sequence[HloComputation]] | None = None,
        result_type: TypeLike | None = None,
    ) -> HloValue:
        written = shape_of(shape) if shape is not None else UNKNOWN_SHAPE
        known = opcode_of(opcode)
        if known is None:
            raise ParseError(f"Unknown opcode: {opcode}", _caller())
        made = HloInstruction(opcode, known, written, where=_caller())
        try:
            made.operands = tuple([self.operand(operand).instruction for operand in operands])
            made.called = {name: tuple(computations) for name, computations in (called or {}).items()}
            self._set_own_attributes(made, attributes)
            _obey_rules(made)
            _settle(made, None if result_type is None else type_of(result_type))
            self.set_attributes(made, self._scope)
        except HloRunError:
            made.operands, made.called = (), {}  # removes it from the use lists
            raise
        made.name = self.free_name(opcode)
        return HloValue(self, self._computation.add(made))

    def _set_own_attributes(self, made: HloInstruction, attributes: Mapping[str, object]) -> None:
        opcode = OPCODES[made.opcode]
        if opcode.arity is not None and len(made.operands) != opcode.arity:
            raise ParseError(f"expects {opcode.arity} operands, but has {len(made.operands)} operands", made.where)
        given = {name: value for name, value in attributes.items() if value is not None}
        # In printing order, that of the opcode table.
        for name in [*opcode.attributes, *given]:
            if name in given and name not in made.attrs:
                if name not in opcode.attributes or name in CALLED_ATTRIBUTES:
                    raise ParseError(f"'{made.opcode}' has no attribute '{name}'", made.where, f"it may have {opcode.allowed}")
                made.attrs[name] = attribute_value(made.opcode, name, given[name], made.where)
        for name in opcode.attributes:
            if name in opcode.required and name not in made.attrs and name not in made.called:
                raise ParseError(f"attribute {name} is expected but not seen", made.where)

    def set_attributes(self, instruction: HloInstruction, attributes: Mapping[str, object]) -> None:
        """Set attributes that every instruction may have; see `HloValue.annotate`. Raises ParseError for any other attribute."""
        for name, value in attributes.items():
            if name not in COMMON_ATTRIBUTES:
                allowed = ", ".join(COMMON_ATTRIBUTES)
                raise ParseError(
                    f"'{name}' is not an attribute of all instructions", instruction.where, hint=f"these are: {allowed}"
                )
            instruction.attrs[name] = attribute_value(instruction.opcode, name, value, instruction.where)
        if attributes:
            _obey_rules(instruction)

    def copy_of(self, old: HloInstruction, operands: Sequence[HloValue]) -> HloValue:
        """Add a copy of an instruction of any computation, with other operands; called computations are shared.

        Raises UsageError for an operand of another computation.
        """
        sources = [self.operand(operand).instruction for operand in operands]
        name = self.free_name(old.name)
        made = HloInstruction(name, old.opcode, old.shape, sources, dict(old.attrs), dict(old.called), old.where)
        return HloValue(self, self._computation.add(made))

    def leaf(self, opcode: Opcode, shape: Shape, attributes: dict[str, AttributeValue]) -> HloValue:
        """Add a parameter or constant, whose attributes are values, not text. Raises ParseError for a wrong one of `scope`."""
        made = HloInstruction(self.free_name(opcode), opcode, shape, attrs=attributes, where=_caller())
        self.set_attributes(made, self._scope)
        return HloValue(self, self._computation.add(made))

    def elementwise(
        self, opcode: Opcode, operands: Sequence[Operand], scalars: Sequence[int] = (), **attributes: object
    ) -> HloValue:
        """Add an instruction whose operands have equal dimensions: numbers become constants, scalars are broadcast.

        Operands whose positions are in `scalars` may remain scalars. Raises UsageError if all operands are numbers, ParseError
        where the same instruction in text would.
        """
        return self._elementwise(opcode, operands, attributes, scalars)

    def _elementwise(
        self, opcode: Opcode, operands: Sequence[Operand], attributes: Mapping[str, object], scalars: Sequence[int] = ()
    ) -> HloValue:
        typed = [operand for operand in operands if isinstance(operand, HloValue)]
        if not typed:
            raise UsageError(f"'{opcode}' needs an HloValue among its operands, not only numbers", hint="use builder.constant")
        # The last typed operand decides: the first one of select is always a pred.
        element_type = next((v.shape.element_type for v in reversed(typed) if v.shape.is_array), "f32")
        values = [o if isinstance(o, HloValue) else self.constant_of(o, element_type) for o in operands]
        dims = next((value.shape.dims for value in values if value.shape.rank), ())
        spread = [
            value if value.shape.rank or not value.shape.is_array or number in scalars or not dims else self._spread(value, dims)
            for number, value in enumerate(values)
        ]
        return self._instruction(opcode, spread, attributes)

    def constant_of(self, value: object, element_type: str | None = None) -> HloValue:
        """Add the constant that `literal_of` returns. Raises UsageError for a value that the type cannot represent."""
        literal, shape = literal_of(value, element_type)
        return self.leaf("constant", shape, {"literal": literal})

    def _spread(self, scalar: HloValue, dims: tuple[int, ...]) -> HloValue:
        return self.instruction("broadcast", [scalar], Shape.array(scalar.shape.element_type, dims), dimensions=())

    def operand(self, value: HloValue) -> HloValue:
        """Return `value`; raises UsageError if it is not a value of this computation."""
        if not isinstance(value, HloValue):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise UsageError(f"{value!r} is not an HloValue", hint="use builder.constant for a number or array")
        if value.builder is not self:
            raise UsageError(
                f"'{value.name}' belongs to '{value.builder.name}', not to '{self.name}'", hint="pass it as an operand"
            )
        return value

    def free_name(self, name: str) -> str:
        """Return `name`, or the first `name.N` that this computation has not used."""
        return self._names.unique(name)

    def computation_of(self, body: ComputationLike, parameters: Sequence[Shape], name: str) -> HloComputation:
        """Return a computation with these parameters: `body` itself, or one made by a function or from a binary opcode."""
        if isinstance(body, HloComputation):
            return body
        builder = self.sub_builder(name)
        values = [builder.leaf("parameter", shape, {"parameter_number": n}) for n, shape in enumerate(parameters)]
        if not callable(body):
            return builder.build_computation(builder.instruction(body, values))
        function: Callable[..., object] = body
        result = function(*values)
        if isinstance(result, tuple | list):
            elements: list[object] = [*result]
            result = builder.instruction("tuple", [builder.as_value(element) for element in elements])
        return builder.build_computation(builder.as_value(result))

    def as_value(self, value: object) -> HloValue:
        """Return the value itself, or a number as a new constant. Raises UsageError for a value of another computation."""
        return self.operand(value) if isinstance(value, HloValue) else self.constant_of(value)

    def build_computation(self, root: HloValue | None = None, execution_thread: str = "main") -> HloComputation:
        """Return the finished computation, to be called by others; the default `root` is the last instruction.

        Raises UsageError if it has no instruction.
        """
        if not self._computation.instructions:
            raise UsageError(f"'{self.name}' has no instruction")
        self._computation.root = self.operand(root).instruction if root is not None else self._computation.instructions[-1]
        self._computation.execution_thread = execution_thread
        self.finished.append(self._computation)
        return self._computation

    def build(
        self, root: HloValue | None = None, name: str | None = None, verified: bool = True, **attributes: object
    ) -> HloModule:
        """Return a module with this computation as its entry; `root` None means the last instruction.

        The module has copies, so the builder can be used further, and computations can be called from other modules too.
        Further arguments are header attributes: `is_scheduled`, `input_output_alias`, `replica_count`, ... Raises
        ParseError if the verifier refuses the module, unless `verified` is False, and UsageError if it has no instruction.
        """
        entry = self.build_computation(root)
        where = _caller()
        draft = HloModule(name or self.name, {key: header_value(key, value, where) for key, value in attributes.items()})
        draft.computations, draft.entry_computation = callees_first(entry), entry
        module = draft.clone()
        if module.is_scheduled:
            module.schedule = {c: list(c.instructions) for c in module.computations if not c.is_fusion}
        if verified:
            verify(module)
        return module


def _obey_rules(made: HloInstruction) -> None:
    """Apply the parser's rules to an instruction with its attributes; raises ParseError."""
    draft = Draft(made.name, made.opcode, made.shape, list(made.operands), {**made.attrs}, made.called)
    if problem := complete(draft):
        raise ParseError(f"'{made.name}' ({made.opcode}): {problem}", made.where)
    made.shape, made.operands, made.called = draft.shape, tuple(draft.operands), draft.called
    for name in made.attrs.keys() - draft.attributes.keys():
        del made.attrs[name]
    made.attrs.update(draft.attributes)


def _settle(made: HloInstruction, element_type: str | None) -> None:
    """Set the shape by inference, or compare the given one with it; raises ParseError."""
    expected = infer_shape(made)
    if made.shape is UNKNOWN_SHAPE:
        if expected is UNKNOWN_SHAPE:
            raise ParseError(f"cannot infer shape for opcode: {made.opcode}", made.where, hint="give the argument shape")
        made.shape = expected
    if element_type is not None:
        made.shape = made.shape.with_element_type(element_type)
        expected = infer_shape(made)
    if not expected.compatible(made.shape):
        found, wanted = made.shape.to_string(layout=False), expected.to_string(layout=False)
        raise ParseError(f"'{made.name}' ({made.opcode}): shape mismatch: expected {wanted}, found {found}", made.where)


def callees_first(entry: HloComputation) -> list[HloComputation]:
    """Return `entry` and all computations that it calls, callees before callers."""
    return post_order(entry, lambda caller: [c for instruction in caller.instructions for c in instruction.called_computations])


def _caller() -> Where | None:
    """Return the current line of the code that called the builder, so that errors refer to the user's program."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - what warnings.warn uses as well
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _PACKAGE:
        frame = frame.f_back
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).rstrip("\n")
    return Where(frame.f_code.co_filename, frame.f_lineno, len(source) - len(source.lstrip()) + 1, source)
