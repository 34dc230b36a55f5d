"""The builder: operators, computations from functions, annotations, modules, errors at the program's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run import HloBuilder, HloModule, HloValue
from hlo_run.errors import HloRunError, ParseError
from hlo_run.hlo.printer import PrintOptions, module_to_string

RNG = np.random.default_rng(11)
X = RNG.standard_normal((3, 4)).astype(np.float32)
Y = RNG.standard_normal((3, 4)).astype(np.float32) + 3
I = RNG.integers(-9, 9, (3, 4)).astype(np.int32)


# Functions of the builder and one value per argument.
_B: TypeAlias = HloBuilder
_V: TypeAlias = HloValue
Build: TypeAlias = "Callable[[_B, _V], Any] | Callable[[_B, _V, _V], Any]"


def result_of(build: Build, *arguments: Any) -> Any:
    """Build a module of parameters like the arguments, and evaluate it."""
    builder = HloBuilder("t")
    parameters = [builder.parameter(number, argument) for number, argument in enumerate(arguments)]
    make: Callable[..., Any] = build
    made = make(builder, *parameters)
    root = made if isinstance(made, HloValue) else builder.tuple(made)
    return hlo_run.evaluate(builder.build(root), *arguments)


def test_operators_are_elementwise_instructions() -> None:
    got = result_of(
        lambda b, x, y: (x + y, x - 1, 2 - x, x * y, x / y, 1 / y, x % 2.0, y**2, 2**y, -x, abs(x), x < y, x >= 0.5, 3 + x),
        X,
        Y,
    )
    want = (X + Y, X - 1, 2 - X, X * Y, X / Y, 1 / Y, np.fmod(X, 2), Y**2, 2**Y, -X, abs(X), X < Y, X >= 0.5, 3 + X)
    for a, w in zip(got, want, strict=True):
        np.testing.assert_allclose(a, w.astype(a.dtype), rtol=1e-5)


def test_operators_of_integers_are_those_of_hlo() -> None:
    got = result_of(lambda b, i: (i / 4, i % 4, i >> 1, i << 2, i & 6, i | 1, i ^ 3, ~i, 7 - i, i <= 0, i > 3), I)
    want = (np.trunc(I / 4), np.fmod(I, 4), I >> 1, I << 2, I & 6, I | 1, I ^ 3, ~I, 7 - I, I <= 0, I > 3)
    for a, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, w)
    unsigned = np.array([0x80000000, 5], np.uint32)
    np.testing.assert_array_equal(result_of(lambda b, u: u >> 1, unsigned), unsigned >> 1)


def test_matmul_and_scalars_of_any_side() -> None:
    a, v = X, np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(result_of(lambda b, p, q: p @ b.transpose(q, [1, 0]), a, a), a @ a.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result_of(lambda b, p, q: p @ q, a, v), a @ v, rtol=1e-5)
    np.testing.assert_allclose(result_of(lambda b, p, q: p @ q, v, v), v @ v, rtol=1e-5)
    got = result_of(lambda b, p: b.select(p > 0.0, p, 0.5) + b.constant(2.0), a)
    np.testing.assert_allclose(got, np.where(a > 0, a, 0.5) + 2, rtol=1e-6)
    np.testing.assert_array_equal(result_of(lambda b, p: b.clamp(-0.5, p, 0.5), a), np.clip(a, -0.5, 0.5))
    half = X.astype(ml_dtypes.bfloat16)
    assert result_of(lambda b, p: p * 2.0, half).dtype == ml_dtypes.bfloat16, "a number takes the other side's type"


def test_functions_are_computations() -> None:
    keys, values = RNG.permutation(8).astype(np.int32), RNG.standard_normal(8).astype(np.float32)

    def build(b: HloBuilder, k: HloValue, v: HloValue) -> tuple[HloValue, ...]:
        ordered = b.sort([k, v], 0, lambda k1, k2, v1, v2: k1 < k2)
        state = b.while_(b.tuple([b.constant(0), v]), lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2.0))
        branch = b.conditional(state[0] > 2, [lambda u: u + 1.0, lambda u: u - 1.0], [v, v])
        both = b.reduce([v, k], [b.constant(0.0), b.constant(0)], [0], lambda s, t, v, k: (s + v, b_max(t, k)))
        return ordered[1], state[1], branch, both[0], both[1], b.call([v], lambda u: -u), b.fusion([v], lambda u: u * u)

    def b_max(one: HloValue, two: HloValue) -> HloValue:
        return one.builder.instruction("maximum", [one, two])

    got = result_of(build, keys, values)
    want = (values[np.argsort(keys)], values * 8, values + 1, values.sum(), keys.max(), -values, values * values)
    for a, w in zip(got, want, strict=True):
        np.testing.assert_allclose(a, w, rtol=1e-6)


def test_one_computation_serves_many_callers_and_modules() -> None:
    add = HloBuilder("sum")
    add.add(add.parameter(0, "f32[]"), add.parameter(1, "f32[]"))
    reducer = add.build_computation()

    def build(name: str) -> HloModule:
        b = HloBuilder(name)
        x, zero = b.parameter(0, "f32[3,4]"), b.constant(0.0)
        rows = b.reduce(x, zero, [1], reducer)
        return b.build(b.tuple([rows, b.reduce(x, zero, [0], reducer), b.reduce(rows, zero, [0], reducer)]))

    first, second = build("a"), build("b")
    for module in (first, second):
        assert [c.name for c in module.computations] == ["sum", module.name]
        assert len(module.computations[0].callers) == 3
        for got, axis in zip(hlo_run.evaluate(module, X), (1, 0, None), strict=True):
            np.testing.assert_allclose(got, X.sum(axis), rtol=1e-5)
    assert reducer.module is None, "the builder keeps its own"


def test_a_builder_goes_on_after_build() -> None:
    b = HloBuilder("m")
    x = b.parameter(0, "f32[2]")
    doubled = b.build(x + x)
    negated = b.build(-x)
    assert doubled.entry.root.opcode == "add"
    assert [i.opcode for i in negated.entry.instructions] == ["parameter", "add", "negate"]
    assert b.build().entry.root.opcode == "negate", "without a root, the last instruction is it"


def test_annotations_and_scopes_print_as_text_has_them() -> None:
    b = HloBuilder("m")
    x = b.parameter(0, "f32[4]", name="x")
    with b.scope(metadata={"op_name": 'jit(f)/"a"', "source_file": "f.py", "source_line": 7}, sharding="{replicated}"):
        y = b.tanh(x)
    z = b.negate(x).annotate(
        name="late",
        control_predecessors=[y],
        frontend_attributes={"b": "two", "a": {"k": 1}},
        backend_config={"tile": [1, 2]},
    )
    module = b.build(
        b.tuple([y, z]),
        input_output_alias={(0,): (0, (), "must-alias")},
        frontend_attributes={"fw": "x"},
        replica_count=2,
    )
    text = module_to_string(module)
    assert 'sharding={replicated}, metadata={op_name="jit(f)/\\"a\\"" source_file="f.py" source_line=7}' in text
    assert "%late = f32[4]{0} negate(%x), " in text
    assert 'frontend_attributes={a={"k":1},b="two"}, control-predecessors={%tanh}, backend_config={"tile":[1,2]}' in text
    assert "input_output_alias={ {0}: (0, {}, must-alias) }" in text
    assert "replica_count=2" in text
    again = module_to_string(hlo_run.parse(module_to_string(module, PrintOptions(large_constants=True))))
    assert again == text


def test_a_scheduled_module_keeps_the_order_of_construction() -> None:
    b = HloBuilder("m")
    x = b.parameter(0, "f32[4]")
    first, second = b.negate(x), b.abs(x)
    module = b.build(b.add(second, first), is_scheduled=True)
    assert module.schedule is not None
    assert [i.name for i in module.schedule[module.entry]] == ["p0", "negate", "abs", "add"]


def test_names_are_unique_and_follow_the_opcode() -> None:
    b = HloBuilder("m")
    x = b.parameter(0, "f32[]", name="x")
    names = [(x + x).name, (x + x).name, b.add(x, x).annotate(name="x").name, b.add(x, x).annotate(name="total.7").name]
    assert names == ["add", "add.1", "x.1", "total.7"]
    with pytest.raises(ParseError):
        b.add(b.constant([1.0, 2.0]), b.constant([1.0, 2.0, 3.0]))
    assert b.constant(1).name == "constant.2"
    assert (x * x).name == "multiply"


_REFUSED: list[tuple[Callable[[HloBuilder, HloValue], Any], str]] = [
    (lambda b, x: b.add(x, b.constant([1.0, 2.0])), "operand shapes differ"),
    (lambda b, x: b.dot(x, x, lhs_contracting_dims=[5], rhs_contracting_dims=[0]), "dot"),
    (lambda b, x: b.fft(x, "XFT", [4]), "attribute fft_type=XFT"),
    (lambda b, x: b.instruction("no-such-op", [x]), "Unknown opcode: no-such-op"),
    (lambda b, x: b.instruction("negate", [x, x]), "expects 1 operands, but has 2 operands"),
    (lambda b, x: b.instruction("transpose", [x]), "attribute dimensions is expected but not seen"),
    (lambda b, x: b.instruction("negate", [x], dimensions=[1]), "'negate' has no attribute 'dimensions'"),
    (lambda b, x: b.instruction("negate", [x], shape="f32[9]"), "expected f32[3,4], found f32[9]"),
    (lambda b, x: b.instruction("custom-call", [x], custom_call_target="t"), "cannot infer shape"),
    (lambda b, x: b.negate(x).annotate(dimensions=[1]), "'dimensions' is not an attribute of all instructions"),
    (lambda b, x: b.reduce(x, b.constant(0.0), [1], lambda p, q: p < q), "reduce"),
    (lambda b, x: b.get_tuple_element(x, 0), "get-tuple-element"),
    (lambda b, x: b.build(x, no_such_attribute=1), "a module has no attribute 'no_such_attribute'"),
    (lambda b, x: b.broadcast(x, [9, 9], [0, 1]), "cannot become dimension"),
]


@pytest.mark.parametrize(("build", "message"), _REFUSED)
def test_what_text_refuses_is_refused_at_the_line_that_asks(build: Callable[..., Any], message: str) -> None:
    b = HloBuilder("m")
    x = b.parameter(0, "f32[3,4]")
    with pytest.raises(ParseError) as caught:
        build(b, x)
    assert message in caught.value.message
    assert caught.value.where is not None
    assert Path(caught.value.where.file).name == Path(__file__).name
    assert message.split("'")[0][:8] in caught.value.where.source_line or "lambda b, x" in caught.value.where.source_line
    assert not x.instruction.users or all(user.parent is not None for user in x.instruction.users), "nothing is left behind"


def test_mistakes_of_the_program_are_usage_errors() -> None:
    b, other = HloBuilder("m"), HloBuilder("o")
    x, foreign = b.parameter(0, "f32[3,4]"), other.parameter(0, "f32[3,4]")
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: x + foreign, "belongs to 'o', not to 'm'"),
        (lambda: b.tuple([x, 3.0]), "is not an HloValue"),  # pyright: ignore[reportArgumentType] - what the test is about
        (lambda: b.add(1.0, 2.0), "needs an HloValue among its operands"),
        (lambda: b.constant("text"), "no"),
        (lambda: b.constant(1.5, "s32"), "a constant of s32 cannot be 1.5"),
        (lambda: b.constant(300, "u8"), "cannot make a constant of u8"),
        (lambda: b.constant([[1], [2, 3]]), "cannot make a constant"),
        (lambda: b.convert(x, "f33"), "'f33' is not an element type"),
        (lambda: b.parameter(1, "f32[3,4"), ""),
        (lambda: b.parameter(1, "f32[3] f32[4]"), "is not a shape"),
        (lambda: bool(x), "has no truth value"),
        (lambda: x[0], "is not a tuple"),
        (lambda: b.conditional(x, [], [x]), "0 branches, but 1 operands"),
        (lambda: b.all_gather(x, 0), "do not show the size of a group"),
        (lambda: b.bitcast_convert(x, "f64"), "needs a last dimension of 2"),
        (lambda: HloBuilder("empty").build(), "has no instruction"),
    ]
    for call, message in wrong:
        with pytest.raises(HloRunError) as caught:
            call()
        assert message in caught.value.message


def test_the_verifier_sees_what_is_built() -> None:
    b = HloBuilder("m")
    b.parameter(1, "f32[]")
    with pytest.raises(ParseError, match="parameter"):
        b.build()


def test_tuples_unpack_and_know_their_length() -> None:
    b = HloBuilder("m")
    pair = b.tuple([b.constant(1), b.constant(2.0)])
    first, second = pair
    assert len(pair) == 2
    assert (first.shape.element_type, second.shape.element_type) == ("s32", "f32")


def test_a_constant_is_a_copy() -> None:
    array = np.array([1.0, 2.0], np.float32)
    b = HloBuilder("m")
    b.constant(array)
    array[0] = 99
    np.testing.assert_array_equal(hlo_run.evaluate(b.build()), np.array([1.0, 2.0], np.float32))
