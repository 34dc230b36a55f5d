"""Functions, arguments and results of JAX users: models with settings, random keys, trees, JAX's own stages."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# The functions under test are lambdas, and jax is untyped here.

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule

jax: Any = pytest.importorskip("jax")
jnp: Any = jax.numpy

X = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)


class Model:
    """In the manner of Equinox: a tree whose leaves are arrays, functions, strings, numbers and truth values."""

    def __init__(self, weight: Any, activation: Any, name: Any, scale: Any, training: Any) -> None:
        self.leaves = (weight, activation, name, scale, training)

    def __call__(self, x: Any, **keywords: Any) -> Any:
        weight, activation, name, scale, training = self.leaves
        assert name == "dense", "strings stay strings"
        return activation(x @ weight, **keywords) * scale if training else x @ weight


jax.tree_util.register_pytree_node(Model, lambda model: (model.leaves, None), lambda _, leaves: Model(*leaves))


class FilterJit:
    """In the manner of Equinox: a callable with a `lower` of its own, for which numbers are constants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray)]

        def call(*arrays: Any) -> Any:
            rest = iter(arrays)
            return self._function(*tree.unflatten(next(rest) if isinstance(x, jax.Array | np.ndarray) else x for x in leaves))

        return jax.jit(call)(*arrays)

    def lower(self, *arguments: Any) -> Any:
        raise AssertionError(arguments)


class Lower:
    """An object that can be lowered but not called; the result wraps JAX's object."""

    def lower(self, *arguments: Any) -> Any:
        return Holder(jax.jit(lambda x, unused, y: x * y).lower(*arguments))


@dataclass
class Holder:
    lowered: Any


@dataclass
class Settings:
    """A dataclass that is not a JAX tree."""

    weight: Any
    rank: int = 2
    mode: str = "sum"


class Wrapped:
    def __jax_array__(self) -> Any:
        return jnp.asarray(X)


class Pair(NamedTuple):
    first: Any
    second: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["mean"], meta_fields=["kind"])
@dataclass
class State:
    mean: Any
    kind: str


class Bound:
    def __init__(self) -> None:
        self.weight = X

    def plain(self, x: Any) -> Any:
        return x + self.weight

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, x: Any) -> Any:
        return x - self.weight


def _model(training: bool = True) -> Model:
    return Model(X[:3, :2], jnp.tanh, "dense", 3.0, training)


def _dense(model: Model, x: Any) -> Any:
    return model(x)


def _branch(x: Any, rate: Any, training: Any) -> Any:
    return x * rate if training else x


CASES: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    # A name, the function, its arguments, and how many parameters the module has.
    "a model": (lambda model, x: model(x), (_model(), X), 2),
    "a model that is not in training": (_dense, (_model(False), X), 2),
    "a model by itself": (_model(), (X,), 1),
    "a function with a lower": (FilterJit(_dense), (_model(), X), 2),
    "a gradient": (jax.grad(lambda w, m, x: Model(w, *m.leaves[1:])(x).sum()), (X[:3, :2], _model(), X), 3),
    "a result that holds a function": (lambda model: Model(model.leaves[0] * 2, *model.leaves[1:]), (_model(),), 1),
    "strings and functions": (lambda x, f, mode: f(x) if mode == "f" else x, (X, jnp.sin, "f"), 1),
    "a flag and a number": (_branch, (X, 0.5, True), 2),
    "a number that is a size": (lambda x, n: jnp.zeros(n) + x[0, 0], (X, 3), 1),
    "a key": (lambda key, scale: jax.random.normal(key, (3,)) * scale, (jax.random.key(3), 2.0), 2),
    "keys as results": (lambda key: {"next": jax.random.split(key, 3)}, (jax.random.key(3),), 1),
    "trees": (lambda tree, pair: (tree["a"] + pair.second, pair.first), ({"a": X, "none": None}, Pair(X, 2)), 3),
    "a dataclass": (lambda state: State(state.mean * len(state.kind), state.kind), (State(X, "abc"),), 1),
    "a dataclass unknown to JAX": (lambda s: Settings(jnp.full(s.rank, s.weight.sum()), s.rank), (Settings(X),), 1),
    "a bound method": (Bound().plain, (X,), 1),
    "a bound jitted method": (Bound().jitted, (X,), 1),
    "a partial function": (functools.partial(jnp.sum, axis=0), (X,), 1),
    "static arguments": (jax.jit(lambda x, n: x**n, static_argnums=1), (X, 3), 1),
    "arguments that are dropped": (jax.jit(lambda x, unused, y: x * y), (X, X + 1, X + 2), 2),
    "an object with a lower": (jax.pmap(lambda x: x * 2), (X[None],), 1),
    "64 bits": (lambda x, i: (x * 2, i + 1), (X.astype(np.float64), np.arange(3)), 2),
    "what can become an array": (lambda wrapped: jnp.asarray(wrapped) * 2, (Wrapped(),), 1),
    "lists": (lambda xs: sum(xs), ([X, X, 1.5],), 3),
    "numpy's numbers": (lambda a, b: a * b, (np.float16(2), np.int8(3)), 2),
}


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Settings):
        value = value.weight
    leaves = jax.tree.leaves(value)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray | np.generic)]
    leaves = leaves if all(isinstance(leaf, jax.Array | np.ndarray | np.generic | float) for leaf in leaves) else arrays
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else x) for x in leaves]


def _results(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _agree(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_function_of_what_jax_users_have(name: str) -> None:
    function, arguments, count = CASES[name]
    module = hlo_run.from_jax(function, *arguments)
    assert len(module.entry.parameters) == count
    _agree(_results(hlo_run.evaluate(module, *arguments)), _leaves(function(*arguments)))


def test_run_takes_a_functions_arguments_too() -> None:
    module = hlo_run.from_jax(FilterJit(_dense), _model(), X)
    _agree(_results(hlo_run.run(module, _model(), X + 1, platform="Host")), [np.tanh((X + 1) @ X[:3, :2]) * 3])
    assert hlo_run.isolate_in_run(module, module_fusion(module), _model(), X)[1]


def module_fusion(module: HloModule) -> str:
    """Return the name of a fusion of the module as it is executed."""
    with pytest.raises(UsageError) as caught:
        hlo_run.isolate(module, "nothing")
    return str(caught.value.hint).replace(",", " ").replace("'", " ").split()[-1]


def test_keywords_have_jaxs_order_and_stay_keywords() -> None:
    module = hlo_run.from_jax(lambda x, *, shift, by: (x + shift) * by, X, shift=2.0, by=X)
    _agree(_results(hlo_run.evaluate(module, X, by=X, shift=1.0)), [(X + 1) * X])
    _agree(_results(hlo_run.evaluate(module, X, X, 1.0)), [(X + 1) * X])  # leaf by leaf
    with pytest.raises(UsageError, match="has no argument called 'by'"):
        hlo_run.evaluate(hlo_run.parse(module.to_string()), X, by=X, shift=1.0)


@pytest.mark.parametrize("training", [True, False])
def test_a_constant_of_the_module_cannot_be_changed_by_a_call(training: bool) -> None:
    module = hlo_run.from_jax(_branch, X, 0.5, training)
    _agree(_results(hlo_run.evaluate(module, X, 0.25, training)), [X * (0.25 if training else 1)])
    with pytest.raises(UsageError, match=f"lowered for {training}, which is a constant in it, not for {not training}"):
        hlo_run.evaluate(module, X, 0.25, not training)


@pytest.mark.parametrize("stage", ["traced", "lowered", "compiled", "exported", "lower"])
def test_what_jax_has_made_of_a_function(stage: str) -> None:
    jitted = jax.jit(lambda x, unused, y: x * y)
    stages = {
        "traced": lambda: jitted.trace(X, 1, X),
        "lowered": lambda: jitted.lower(X, 1, X),
        "compiled": lambda: jitted.lower(X, 1, X).compile(),
        "exported": lambda: jax.export.export(jitted)(X, 1, X),
        "lower": Lower,
    }
    made = stages[stage]()
    module = hlo_run.from_jax(made, X, 1, X) if stage == "lower" else hlo_run.from_jax(made)
    kept = (X, 1, X + 1) if stage == "exported" else (X, X + 1)
    _agree(_results(hlo_run.evaluate(module, *kept)), [X * (X + 1)])
    if stage != "compiled":
        _agree(_results(hlo_run.evaluate(module, X, 1, X + 1)), [X * (X + 1)])
    if stage != "lower":
        with pytest.raises(UsageError, match="already has its arguments"):
            hlo_run.from_jax(made, X)


def test_what_cannot_be_lowered() -> None:
    with pytest.raises(UsageError, match="from_jax takes functions, or functions that JAX has lowered, not str"):
        hlo_run.from_jax("jit")
    with pytest.raises(TypeError, match="abstract array"):
        hlo_run.from_jax(jax.jit(lambda model, x: model(x)), _model(), X)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "int8", "uint16", "bool"]
)
def test_arrays_of_every_type(dtype: str) -> None:
    numpy_type = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.array([[0, 1, 2], [3, 1, 0]]).astype(numpy_type)
    module = hlo_run.from_jax(lambda a: (a.astype(jnp.float32) + 1, a.T), jax.ShapeDtypeStruct((2, 3), numpy_type))
    for array in (values, jnp.asarray(values)):
        shifted, turned = _results(hlo_run.evaluate(module, array))
        np.testing.assert_array_equal(shifted, values.astype(np.float32) + 1)
        assert turned.dtype == numpy_type
    with pytest.raises(UsageError, match=r"argument 0 \('a.*'\) is a ShapeDtypeStruct, which has no values"):
        hlo_run.evaluate(module, jax.ShapeDtypeStruct((2, 3), numpy_type))


def test_trees_for_a_module_that_is_read() -> None:
    module = hlo_run.parse(
        hlo_run.from_jax(lambda tree, key: tree["w"] + jax.random.uniform(key), {"w": X}, jax.random.key(1)).to_string()
    )
    wanted = X + np.asarray(jax.random.uniform(jax.random.key(1)))
    _agree(_results(hlo_run.evaluate(module, {"w": X}, jax.random.key(1))), [wanted])
    _agree(_results(hlo_run.evaluate(module, {"all": (X, jax.random.key(1))})), [wanted])
    with pytest.raises(UsageError, match="takes 2 arguments, but the caller gives 1"):
        hlo_run.evaluate(module, {"all": X})
