"""Divide the arguments of a JAX function into parameters of the module and constants of the function.

`jax.jit` takes only trees of arrays and numbers. Models of libraries also have functions, strings and settings; here
these are constants, hidden from `jit`. A dataclass that is not a JAX tree contributes the arrays among its fields.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, cast

import numpy as np

from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape


class Parameters(Enum):
    """The leaves of a tree that are parameters; all others are constants."""

    NUMBERS = auto()  # arrays and Python numbers, as in `jax.jit`
    NO_TRUTH_VALUES = auto()  # arrays and Python numbers, without True and False
    ARRAYS = auto()  # arrays only


class _Constant:
    """A leaf hidden from JAX: a tree node without leaves."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Record:
    """A dataclass that is not a JAX tree: a tree node of some of its fields; `template` has the others."""

    def __init__(self, template: Any, fields: dict[str, Any]) -> None:
        self.template = template
        self.fields = fields


class _Identity:
    """Compares trees by the identity of an object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@functools.cache
def _trees() -> Any:
    """Return `jax.tree_util`, in which our node types are registered."""
    trees: Any = importlib.import_module("jax.tree_util")

    def fields_of(record: _Record) -> tuple[tuple[Any, ...], tuple[_Identity, tuple[str, ...]]]:
        return tuple(record.fields.values()), (_Identity(record.template), tuple(record.fields))

    def record_of(kept: tuple[_Identity, tuple[str, ...]], values: Sequence[Any]) -> _Record:
        return _Record(kept[0].value, dict(zip(kept[1], values, strict=True)))

    def nothing_of(constant: _Constant) -> tuple[tuple[()], _Identity]:
        return (), _Identity(constant.value)

    def constant_of(kept: _Identity, _nothing: Sequence[Any]) -> _Constant:
        return _Constant(kept.value)

    trees.register_pytree_node(_Constant, nothing_of, constant_of)
    trees.register_pytree_node(_Record, fields_of, record_of)
    return trees


def _is_array(leaf: Any) -> bool:
    """True if JAX treats the leaf as an array, or as the shape of one."""
    if isinstance(leaf, type):
        return False
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return getattr(leaf.dtype, "kind", "V") not in "OSTUMm"
    return hasattr(leaf, "__jax_array__")


def _is_parameter(leaf: Any, parameters: Parameters) -> bool:
    if isinstance(leaf, bool):
        return parameters is Parameters.NUMBERS
    if isinstance(leaf, int | float | complex) and not isinstance(leaf, np.generic):
        return parameters is not Parameters.ARRAYS
    return _is_array(leaf)


def mark(tree: Any, parameters: Parameters) -> Any:
    """Return the tree with its parameters as leaves, and all other leaves hidden from JAX."""

    def marked(leaf: Any) -> Any:
        if _is_parameter(leaf, parameters):
            # Convert an object with `__jax_array__`, as JAX no longer does it.
            convert = getattr(leaf, "__jax_array__", None)
            return convert() if callable(convert) else leaf
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            values = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf) if hasattr(leaf, field.name)}
            # Numbers in a dataclass are mostly settings.
            fields = {name: mark(value, Parameters.ARRAYS) for name, value in values.items()}
            fields = {name: value for name, value in fields.items() if leaves(value)}
            if fields:
                return _Record(leaf, fields)
        return _Constant(leaf)

    return _trees().tree_map(marked, tree)


def mark_call(
    arguments: Sequence[Any], keywords: Mapping[str, Any], parameters: Parameters
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the marked arguments of a call.

    Only arrays are parameters in an argument that `jax.jit` refuses, such as a model with functions.
    """
    return tuple(_marked_by_kind(value, parameters) for value in arguments), {
        name: _marked_by_kind(value, parameters) for name, value in keywords.items()
    }


def mark_result(tree: Any) -> Any:
    """Return the marked result of a function: arrays and numbers, or only arrays if it has other leaves too."""
    return _marked_by_kind(tree, Parameters.NUMBERS)


def _marked_by_kind(tree: Any, parameters: Parameters) -> Any:
    is_jaxs_own = all(_is_parameter(leaf, Parameters.NUMBERS) for leaf in leaves(tree))
    return mark(tree, parameters if is_jaxs_own else Parameters.ARRAYS)


def unmark(tree: Any) -> Any:
    """Return the original of a marked tree, with its current parameters."""

    def original(node: Any) -> Any:
        if isinstance(node, _Constant):
            return node.value
        if not isinstance(node, _Record):
            return node
        made = copy.copy(node.template)
        for name, value in node.fields.items():
            object.__setattr__(made, name, unmark(value))
        return made

    return _trees().tree_map(original, tree, is_leaf=_is_ours)


def _is_ours(node: Any) -> bool:
    return isinstance(node, _Constant | _Record)


def leaves(tree: Any) -> list[Any]:
    """Return JAX's leaves of a tree: the parameters if it is marked."""
    return _trees().tree_leaves(tree)


def settings(tree: Any) -> tuple[Any, ...]:
    """Return the numbers and strings among the constants of a marked tree, except inside dataclasses."""
    values = (node.value for node in _trees().tree_leaves(tree, is_leaf=_is_ours) if isinstance(node, _Constant))
    return tuple(value for value in values if isinstance(value, int | float | complex | str))


@dataclasses.dataclass(frozen=True)
class JaxCall:
    """Converts arguments of a JAX function to arguments of its module.

    `kept` is (number of leaves, the leaves that are parameters), as JAX drops unused arguments of a jitted function; None
    means all. `settings` are the numbers and strings that are constants of the module. `callbacks` keeps the Python
    functions that it calls alive.
    """

    parameters: Parameters
    kept: tuple[int, tuple[int, ...]] | None = None
    settings: tuple[Any, ...] = ()
    callbacks: tuple[Any, ...] = ()

    def values(self, module: HloModule, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """Return a value per parameter of the module, or all leaves if their number differs.

        Raises UsageError if a setting differs from the constant in the module.
        """
        tree = mark_call(arguments, keywords, self.parameters)
        given = settings(tree)
        if len(given) == len(self.settings) and given != self.settings:
            pairs = zip(self.settings, given, strict=True)
            known, other = next(pair for pair in pairs if pair[0] != pair[1])
            hint = "lower the function for these arguments"
            raise UsageError(
                f"'{module.name}' was lowered for {known!r}, which is a constant in it, not for {other!r}", hint=hint
            )
        # Token parameters, with which JAX orders effects, are not arguments of the function.
        shapes = [parameter.shape for parameter in module.entry.parameters if parameter.shape.element_type != "token"]
        values = leaves(tree)
        if self.kept is not None and len(values) == self.kept[0]:
            values = [values[number] for number in self.kept[1]]
        if len(values) != len(shapes):
            values = leaves(mark(tree, Parameters.ARRAYS))
        if len(values) != len(shapes):
            return values
        fitted = iter(_narrowed(plain(value), shape) for value, shape in zip(values, shapes, strict=True))
        return [() if parameter.shape.element_type == "token" else next(fitted) for parameter in module.entry.parameters]

    def result(self, module: HloModule, literal: Literal) -> Literal:
        """Return the function's result: the module's result without tokens."""
        shape = module.entry.root.shape
        if not shape.is_tuple or all(part.element_type != "token" for part in shape.tuple_shapes):
            return literal
        assert isinstance(literal, tuple)
        parts = [value for value, part in zip(literal, shape.tuple_shapes, strict=True) if part.element_type != "token"]
        return parts[0] if len(parts) == 1 else tuple(parts)


def _narrowed(value: Any, shape: Shape) -> Any:
    """Convert 64-bit elements to 32 bits if the parameter has 32, as JAX does by default."""
    dtype: Any = getattr(value, "dtype", None)
    if not shape.is_array or not isinstance(dtype, np.dtype):
        return value
    wanted = shape.dtype.numpy
    return value.astype(wanted) if dtype.kind == wanted.kind and dtype.itemsize == 2 * wanted.itemsize >= 8 else value


def plain_values(module: HloModule, arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of a module of unknown origin: a value per parameter.

    If the arguments are not one value per parameter, JAX trees among them are replaced by their leaves.
    """
    values = [plain(value) for value in arguments]
    if "jax" not in sys.modules:
        return values
    count = len(module.entry.parameters)
    if len(values) == count and not any(map(_is_tree, values)):
        return values
    for parameters in (Parameters.NUMBERS, Parameters.ARRAYS):
        found = leaves(mark(tuple(arguments), parameters))
        if len(found) == count:
            return [plain(value) for value in found]
    return values


def _is_tree(value: Any) -> bool:
    """True if a value must be a tree: it is not an array, a number, or a list, which may be an array too."""
    return (
        not isinstance(value, list | tuple | str)
        and not _is_parameter(value, Parameters.NUMBERS)
        and not hasattr(value, "__array__")
    )


def plain(value: Any) -> Any:
    """Return a value for numpy: JAX's random keys become arrays of their words, also in tuples."""
    if isinstance(value, tuple):
        return tuple(plain(part) for part in cast("tuple[Any, ...]", value))
    if not hasattr(value, "dtype") or isinstance(value.dtype, np.dtype) or "jax" not in sys.modules:
        return value
    jax: Any = sys.modules["jax"]
    return np.asarray(jax.random.key_data(value)) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value
