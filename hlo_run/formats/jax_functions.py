"""Lower JAX functions to HLO text."""

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
    """A JAX function as HLO text with full constants, its name in errors, and the conversion of its arguments.

    `counts` are the numbers of replicas and partitions that the function was lowered for.
    """

    text: str
    name: str
    call: JaxCall
    counts: tuple[int, int] = (1, 1)


def lower_to_text(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], platform: str) -> LoweredFunction:
    """Lower `function` for `platform`.

    `function` is a callable, an object with a `lower`, or a traced, lowered, compiled or exported function of JAX.
    Raises UsageError for any other object, for a function compiled for several devices, and if JAX is not installed.
    """
    require("jax", "from_jax")
    jax: Any = importlib.import_module("jax")
    exported: type = importlib.import_module("jax.export").Exported
    name = f"<jax function {getattr(function, '__name__', 'unnamed')}>"
    stages = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled, exported)
    if isinstance(function, stages) and (arguments or keywords):
        raise UsageError(f"from_jax: {type(function).__name__} already has its arguments and takes no others")
    if isinstance(function, exported):
        text = mlir_to_text(function.mlir_module_serialized, name)
        return LoweredFunction(text, name, JaxCall(Parameters.NUMBERS), (1, int(function.nr_devices)))
    if isinstance(function, jax.stages.Compiled):
        executable = function.runtime_executable()
        devices = len(executable.local_devices())
        if devices > 1:
            message = f"from_jax: a function compiled for {devices} devices is the program of one of them"
            raise UsageError(message, hint="give the function itself, or the result of its `lower`; run divides it as XLA does")
        return LoweredFunction(full_text(executable.hlo_modules()[0]), name, JaxCall(Parameters.NUMBERS))
    if isinstance(function, jax.stages.Traced):
        return _taken(function.lower(lowering_platforms=(platform,)), name)
    method, bound = _method(function)
    if hasattr(method, "trace"):
        # A jitted function, with its own static arguments and donations.
        return _taken(method.trace(*bound, *arguments, **keywords).lower(lowering_platforms=(platform,)), name)
    if callable(function):
        return _traced(function, arguments, keywords, platform, name)
    return _taken(function.lower(*arguments, **keywords) if hasattr(function, "lower") else function, name)


def _method(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the function and the object of a bound method, whose `trace` does not pass the object."""
    return (function.__func__, (function.__self__,)) if isinstance(function, types.MethodType) else (function, ())


def _taken(lowered: Any, name: str) -> LoweredFunction:
    """Return the text of an object that another library, or JAX, has lowered."""
    # Libraries wrap JAX's object.
    while not hasattr(lowered, "compiler_ir") and hasattr(lowered, "lowered"):
        lowered = lowered.lowered
    if not hasattr(lowered, "compiler_ir"):
        raise UsageError(f"from_jax takes functions, or functions that JAX has lowered, not {type(lowered).__name__}")
    call = JaxCall(Parameters.NUMBERS, _kept(lowered), callbacks=callbacks_of(lowered))
    return LoweredFunction(_text(lowered), name, call, _counts(lowered))


def _counts(lowered: Any) -> tuple[int, int]:
    """Return the numbers of replicas and partitions, which the HLO does not have; 1 where JAX gives none."""
    if not isinstance(lowered, importlib.import_module("jax").stages.Lowered):
        return 1, 1
    attributes = lowered.compiler_ir("stablehlo").operation.attributes
    names = ("mhlo.num_replicas", "mhlo.num_partitions")
    replicas, partitions = (int(attributes[name].value) if name in attributes else 1 for name in names)
    return replicas, partitions


def _text(lowered: Any) -> str:
    return full_text(lowered.compiler_ir("hlo").get_hlo_module())


def _kept(lowered: Any) -> tuple[int, tuple[int, ...]] | None:
    """Return (number of leaves, leaves that are parameters) from JAX's private attributes; None if this JAX has none."""
    try:
        return lowered.in_tree.num_leaves, tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))
    except (AttributeError, KeyError, TypeError):
        return None


def _traced(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], platform: str, name: str
) -> LoweredFunction:
    """Lower a plain Python function.

    Numbers are parameters, as in `jax.jit`. If the function needs their values, first bools become constants, then all
    numbers. For functions with their own `lower`, such as Equinox's `filter_jit`, all numbers are constants.
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
        except (TypeError, IndexError) as error:  # JAX's error for an unknown value is one of these
            failure = failure or error
            continue
        call = JaxCall(parameters, settings=settings(tree), callbacks=callbacks_of(lowered))
        return LoweredFunction(_text(lowered), name, call, _counts(lowered))
    assert failure is not None, "at least one way was tried"
    raise failure


def _jitted(function: Callable[..., Any]) -> Any:
    """Return the jitted function of marked arguments. It keeps unused arguments, and returns the arrays of its result."""

    # JAX takes the names of the module and its parameters from the wrapped function.
    @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__"), updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        return leaves(mark_result(function(*unmark(arguments), **unmark(keywords))))

    return importlib.import_module("jax").jit(call, keep_unused=True)
