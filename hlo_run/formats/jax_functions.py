"""JAX functions to HLO text."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hlo_run.errors import UsageError
from hlo_run.formats.jax_arguments import JaxCall, Parameters, leaves, mark_call, mark_result, settings, unmark
from hlo_run.formats.jax_callbacks import callbacks_of
from hlo_run.formats.xla import full_text, mlir_to_text, require


class LoweredFunction(NamedTuple):
    """A JAX function as HLO text in full, the name that errors show for it, and how its arguments become the module's."""

    text: str
    name: str
    call: JaxCall


def lower_to_text(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], platform: str) -> LoweredFunction:
    """Return `function` lowered for `platform`.

    `function` is a callable, an object with a `lower`, or what JAX makes of a function: traced, lowered, compiled, exported.
    Raises UsageError for anything else.
    """
    require("jax", "from_jax")
    jax: Any = importlib.import_module("jax")
    exported: type = importlib.import_module("jax.export").Exported
    name = f"<jax function {getattr(function, '__name__', 'unnamed')}>"
    stages = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled, exported)
    if isinstance(function, stages) and (arguments or keywords):
        raise UsageError(f"from_jax: {type(function).__name__} is made for its arguments already and takes none")
    if isinstance(function, exported):
        return LoweredFunction(mlir_to_text(function.mlir_module_serialized, name), name, JaxCall(Parameters.NUMBERS))
    if isinstance(function, jax.stages.Compiled):
        return LoweredFunction(full_text(function.runtime_executable().hlo_modules()[0]), name, JaxCall(Parameters.NUMBERS))
    if isinstance(function, jax.stages.Traced):
        return _taken(function.lower(lowering_platforms=(platform,)), name)
    method, bound = _method(function)
    if hasattr(method, "trace"):
        # Jitted already, with static arguments and donations of its own.
        return _taken(method.trace(*bound, *arguments, **keywords).lower(lowering_platforms=(platform,)), name)
    if callable(function):
        return _traced(function, arguments, keywords, platform, name)
    return _taken(function.lower(*arguments, **keywords) if hasattr(function, "lower") else function, name)


def _method(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the function of a bound method and the object it is bound to: the method has the function's attributes, unbound."""
    return (function.__func__, (function.__self__,)) if isinstance(function, types.MethodType) else (function, ())


def _taken(lowered: Any, name: str) -> LoweredFunction:
    """Return what somebody else has lowered."""
    # Libraries put JAX's object into one of their own.
    while not hasattr(lowered, "compiler_ir") and hasattr(lowered, "lowered"):
        lowered = lowered.lowered
    if not hasattr(lowered, "compiler_ir"):
        raise UsageError(f"from_jax takes functions and what JAX makes of them, not {type(lowered).__name__}")
    return LoweredFunction(_text(lowered), name, JaxCall(Parameters.NUMBERS, _kept(lowered), callbacks=callbacks_of(lowered)))


def _text(lowered: Any) -> str:
    return full_text(lowered.compiler_ir("hlo").get_hlo_module())


def _kept(lowered: Any) -> tuple[int, tuple[int, ...]] | None:
    """Return how many leaves the arguments have, and which are parameters, as JAX knows in private; None where it does not."""
    try:
        return lowered.in_tree.num_leaves, tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))
    except (AttributeError, KeyError, TypeError):
        return None


def _traced(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], platform: str, name: str
) -> LoweredFunction:
    """Lower a function that JAX has not seen.

    Numbers are parameters, as in `jax.jit`. Where the function has to know them, truth values become constants, then all numbers.
    Functions with a `lower` of their own, such as Equinox's `filter_jit`, know all numbers.
    """
    ways = (Parameters.ARRAYS,) if hasattr(function, "lower") else tuple(Parameters)
    failure: Exception | None = None
    counts: set[int] = set()
    for parameters in ways:
        tree = mark_call(arguments, keywords, parameters)
        if len(leaves(tree)) in counts:
            continue
        counts.add(len(leaves(tree)))
        try:
            lowered = _jitted(function).trace(*tree[0], **tree[1]).lower(lowering_platforms=(platform,))
        except (TypeError, IndexError) as error:  # among others what JAX raises where it needs a value
            failure = failure or error
            continue
        return LoweredFunction(
            _text(lowered), name, JaxCall(parameters, settings=settings(tree), callbacks=callbacks_of(lowered))
        )
    assert failure is not None, "the first way was tried"
    raise failure


def _jitted(function: Callable[..., Any]) -> Any:
    """Return the function of marked arguments, jitted: arguments that it ignores stay, its result is the arrays in it."""

    # JAX takes the names of the module and its parameters from the function inside.
    @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__"), updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        return leaves(mark_result(function(*unmark(arguments), **unmark(keywords))))

    return importlib.import_module("jax").jit(call, keep_unused=True)
