"""Makes at first use what xDSL makes for each of its classes at import.

- The declarative format of an operation is read when the operation is printed or parsed.
- The definition of an operation (its constraints, and how its operands are read) is made when the first such operation is, and
  that of an attribute likewise. To make all of them takes half of the time that importing the dialects takes; a kernel has one
  operation in four.
- The source of `__init__`, `__eq__`, `__hash__`, `__repr__`, `__setattr__` and `__delattr__` of 270 dataclasses is compiled when
  the method is called. A kernel calls one in ten of them.

What is not valid is then reported at its first use; the tests of the dialects use them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from types import FunctionType
from typing import Any

# Classes of other packages are theirs.
_OWNERS = ("xdsl.", "hlo_run.")


def _execute(text: str, module: dict[str, Any], made: dict[str, Any]) -> None:
    """Execute the source of methods that `dataclasses` wrote. Those of xDSL's and our classes are compiled when called.

    The source is a function that returns one function, or a tuple of functions.
    """
    head, _, result = text.rpartition("\n return ")
    if str(module.get("__name__")).startswith(_OWNERS) and head.startswith("def __create_fn__(") and result:
        made["__create_fn__"] = partial(_late_methods, text, module, result)
    else:
        exec(text, module, made)


def _late_methods(text: str, module: dict[str, Any], result: str, **values: object) -> object:
    """Return functions that compile the source at the first call, and then call what it makes."""
    names = [name for name in result.strip("()").split(",") if name]
    made: dict[str, Callable[..., Any]] = {}

    def function(name: str) -> Callable[..., Any]:
        if not made:
            scope: dict[str, Any] = {}
            exec(text, module, scope)
            created = scope["__create_fn__"](**values)
            made.update(zip(names, created if result.startswith("(") else (created,), strict=True))
        return made[name]

    late = tuple(_late_method(name, function) for name in names)
    return late if result.startswith("(") else late[0]


def _late_method(name: str, function: Callable[[str], Callable[..., Any]]) -> FunctionType:
    def method(self: object, /, *arguments: object, **named: object) -> object:
        real = function(name)
        real.__qualname__ = method.__qualname__
        for kind in type(self).__mro__:
            if kind.__dict__.get(name) is method:
                setattr(kind, name, real)
        return real(self, *arguments, **named)

    method.__name__ = name
    return method


setattr(dataclasses, "exec", _execute)  # noqa: B010 - a builtin there

# The imports of xDSL come after this line, since they make its dataclasses.
import xdsl.irdl  # noqa: E402
import xdsl.irdl.attributes  # noqa: E402
from xdsl.ir import Operation, OpTraits, TypedAttribute  # noqa: E402
from xdsl.utils.runtime_final import runtime_final  # noqa: E402

_define_operation: Callable[[Any], Any] = xdsl.irdl.irdl_op_definition
_define_attribute: Callable[[Any], Any] = xdsl.irdl.attributes.irdl_param_attr_definition
_BASES = frozenset(Operation.mro())


def _operation_late(kind: Any) -> Any:
    """Let a class of operations have its definition when it is asked for it, which every new operation does."""
    if not kind.__module__.startswith(_OWNERS):
        return _define_operation(kind)
    traits = kind.traits = _traits_of(kind)

    def complete() -> None:
        _define_operation(kind)
        kind.traits = kind.get_irdl_definition().traits = traits

    # An assembly format brings `parse` and `print`; only a parser calls its method before there is an operation.
    _complete_when_called(kind, complete, ("get_irdl_definition", *(("parse",) if kind.assembly_format is not None else ())))
    return kind


def _traits_of(kind: Any) -> OpTraits:
    """Return the traits of a class and of what it derives from, as xDSL's definition has them."""
    found = [base.__dict__["traits"] for base in kind.__mro__ if base not in _BASES and "traits" in base.__dict__]
    if len(found) == 1:
        return found[0]
    return OpTraits(lambda: tuple(trait for traits in found for trait in traits.gen_traits()))


def _attribute_late(kind: Any) -> Any:
    """Let a class of attributes have its definition, as a dataclass, when it is asked for it, which every new attribute does."""
    if not kind.__module__.startswith(_OWNERS):
        return _define_attribute(kind)
    typed = ("get_type_index",) if issubclass(kind, TypedAttribute) else ()
    _complete_when_called(kind, lambda: _define_attribute(kind), ("get_irdl_definition", *typed))
    return runtime_final(kind)


def _complete_when_called(kind: Any, complete: Callable[[], object], methods: tuple[str, ...]) -> None:
    """Call `complete`, which gives a class some class methods, when the first of them is called."""

    def until_then(method: str) -> Any:
        def call(_: Any, *arguments: Any) -> Any:
            for each in methods:
                delattr(kind, each)
            complete()
            return getattr(kind, method)(*arguments)

        return classmethod(call)

    for method in methods:
        setattr(kind, method, until_then(method))


setattr(xdsl.irdl, "irdl_op_definition", _operation_late)  # noqa: B010 - the types of the classes differ
setattr(xdsl.irdl.attributes, "irdl_param_attr_definition", _attribute_late)  # noqa: B010

# The builtin dialect is defined from here on.
from xdsl.irdl import OpDef  # noqa: E402
from xdsl.irdl.declarative_assembly_format import FormatProgram  # noqa: E402

_read = FormatProgram.from_str


class _LazyFormat:
    """Replaces a `FormatProgram`: offers what xDSL's operations use of it."""

    def __init__(self, text: str, definition: OpDef) -> None:
        self._text, self._definition = text, definition

    @cached_property
    def _program(self) -> FormatProgram:
        return _read(self._text, self._definition)

    def parse(self, parser: Any, op_type: Any) -> Any:
        """Parse an operation; raises xDSL's ParseError."""
        return self._program.parse(parser, op_type)

    def print(self, printer: Any, op: Any) -> None:
        """Print an operation."""
        self._program.print(printer, op)


def complete_late() -> None:
    """Let the dialects that are imported from now on read their formats late, too."""
    setattr(FormatProgram, "from_str", staticmethod(_LazyFormat))  # noqa: B010 - the type of the stand-in differs
