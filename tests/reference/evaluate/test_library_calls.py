"""Custom calls of libraries: the reference agrees with Host's numpy code, which is separate, and with the definitions."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hlo_run
from hlo_run.errors import Unsupported
from hlo_run.reference.compare.agreement import disagreements

RNG = np.random.default_rng(23)
GEMM = {
    "alpha_real": 0.5,
    "alpha_imag": 0,
    "beta": 0,
    "epilogue": "DEFAULT",
    "dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]},
}


def config(**changes: Any) -> str:
    return json.dumps({"gemm_backend_config": {**GEMM, **changes}})


def convolution(**changes: Any) -> str:
    fields = {"conv_result_scale": 1, "side_input_scale": 0, "activation_mode": "kNone", "leakyrelu_alpha": 0}
    return json.dumps({"cudnn_conv_backend_config": {**fields, **changes}})


def module(call: str, parameters: list[str]) -> hlo_run.HloModule:
    lines = [f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(parameters)]
    operands = ", ".join(f"p{number}" for number in range(len(parameters)))
    shape, rest = call.split(" = ", 1)
    lines += [f"  c = {shape} custom-call({operands}), {rest}"]
    lines += [f"  ROOT r = {shape[1:].split(']')[0]}] get-tuple-element(c), index=0"]
    return hlo_run.parse("HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}")


def both(call: str, parameters: list[str]) -> Any:
    """Return the reference's result and its arguments, after a comparison with Host's."""
    made = module(call, parameters)
    arguments = [(0.5 * RNG.standard_normal(p.shape.dims)).astype(p.shape.dtype.numpy) for p in made.entry.parameters]
    expected = hlo_run.evaluate(made, *arguments)
    actual = hlo_run.run(made, *arguments, platform="Host")
    assert not disagreements(expected, actual, made.entry.root.shape)
    return expected, arguments


@pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul"])
@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({}, []),
        ({"beta": 2.0}, ["f32[6,5]"]),
        ({"epilogue": "BIAS"}, ["f32[5]"]),
        ({"epilogue": "BIAS_RELU", "beta": 1}, ["f32[6,5]", "f32[5]"]),
        ({"epilogue": "BIAS_GELU"}, ["f32[5]"]),
    ],
)
def test_products(target: str, changes: dict[str, Any], extra: list[str]) -> None:
    call = f'(f32[6,5], s8[64]) = custom_call_target="{target}", backend_config={config(**changes)}'
    result, (a, b, *rest) = both(call, ["f32[6,40]", "f32[40,5]", *extra])
    value = 0.5 * (a.astype(np.float64) @ b)
    for array, factor in zip(rest, ([changes["beta"]] if "beta" in changes else []) + [1.0], strict=False):
        value = value + factor * array
    if "RELU" in changes.get("epilogue", ""):
        value = np.maximum(value, 0)
    if "GELU" not in changes.get("epilogue", ""):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-5)


F8 = {"f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}


def narrow_product(
    result: str, extra: list[str], *, largest: bool = False, types: tuple[str, str] = ("f8e4m3fn", "f8e5m2"), **changes: Any
) -> tuple[Any, Any, list[Any]]:
    """Return what the reference gives for a product of 8-bit floats, alone or with its largest magnitude, and the arguments.

    Scales are positive; the reference and Host agree.
    """
    text = config(alpha_real=1, damax_output=largest, **changes)
    shapes = [f"{result}[24,40]", *(["f32[]"] if largest else []), "s8[64]"]
    operands = [f"{types[0]}[24,64]", f"{types[1]}[64,40]", *extra]
    lines = [f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(operands)]
    names = ", ".join(f"p{number}" for number in range(len(operands)))
    lines.append(
        f'  c = ({", ".join(shapes)}) custom-call({names}), custom_call_target="__cublas$lt$matmul$f8", backend_config={text}'
    )
    lines += [f"  g{n} = {shape} get-tuple-element(c), index={n}" for n, shape in enumerate(shapes[:-1])]
    kept = ", ".join(f"g{n}" for n in range(len(shapes) - 1))
    lines.append(f"  ROOT t = ({', '.join(shapes[:-1])}) tuple({kept})")
    made = hlo_run.parse("HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}")
    arguments = [
        (RNG.uniform(0.3, 2.0, p.shape.dims) if not p.shape.dims else 2 * RNG.standard_normal(p.shape.dims)).astype(
            p.shape.dtype.numpy
        )
        for p in made.entry.parameters
    ]
    expected, actual = hlo_run.evaluate(made, *arguments), hlo_run.run(made, *arguments, platform="Host")
    assert not disagreements(expected, actual, made.entry.root.shape)
    assert isinstance(expected, tuple)
    return expected[0], expected[1] if largest else None, arguments


def exact(arguments: list[Any]) -> tuple[Any, Any]:
    """Return the scaled product of the first four arguments in f64, and a bound on the error of f32 sums."""
    a, b, s, t = (np.asarray(x).astype(np.float64) for x in arguments)
    return s * t * (a @ b), 64 * 2.0**-24 * s * t * (np.abs(a) @ np.abs(b))


def roundings(value: Any, error: Any, kind: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest rounding of a value within its error."""
    edge = 448 if kind is F8["f8e4m3fn"] else 57344
    return tuple(
        np.clip(value + sign * error, -edge, edge).astype(np.float32).astype(kind).astype(np.float64) for sign in (-1, 1)
    )


@pytest.mark.parametrize("result", ["f32", "bf16", "f16"])
def test_narrow_products_with_scales(result: str) -> None:
    found, _, arguments = narrow_product(result, ["f32[]", "f32[]"])
    value, error = exact(arguments)
    kind = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[result]
    low, high = (np.asarray(value + sign * error).astype(kind).astype(np.float64) for sign in (-1, 1))
    wide = found.astype(np.float64)
    assert np.all((low <= wide) & (wide <= high))


@pytest.mark.parametrize("result", list(F8))
@pytest.mark.parametrize("older", [False, True])
def test_results_of_8_bits(result: str, older: bool) -> None:
    """The scale of the result is last; older modules have the addend's scale before it. Large values are clamped."""
    found, largest, arguments = narrow_product(result, ["f32[]"] * (4 if older else 3), largest=True)
    value, error = exact(arguments[:4])
    assert abs(float(largest) - np.abs(value).max()) <= error.max()
    scale = float(arguments[-1])
    low, high = roundings(value * scale, error * scale * (1 + 2.0**-20), F8[result])
    wide = found.astype(np.float64)
    assert np.all((low <= wide) & (wide <= high))


def test_results_of_8_bits_without_a_scale_are_rounded_as_written() -> None:
    found, _, arguments = narrow_product("f8e4m3fn", ["f32[]", "f32[]"], types=("f8e4m3fn", "f8e4m3fn"))
    value, _ = exact(arguments)
    near = np.abs(np.abs(value) - 464) > 1
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32))[near], (np.abs(value) > 464)[near])


@pytest.mark.parametrize("columns", [40, 33])
def test_narrow_products_with_a_vector(columns: int) -> None:
    """A bias shorter than the rows, which XLA pads for the library, does not change the ends of the rows."""
    extra = ["f32[]", "f32[]", f"bf16[{columns}]", "f32[]"]
    found, largest, arguments = narrow_product("f8e4m3fn", extra, largest=True, epilogue="BIAS_RELU")
    value, error = exact(arguments[:4])
    value[:, :columns] += arguments[4].astype(np.float64)
    value = np.maximum(value, 0)
    error = error + 2.0**-23 * np.abs(value)
    assert abs(float(largest) - value.max()) <= error.max()
    scale = float(arguments[5])
    low, high = roundings(value * scale, error * scale * (1 + 2.0**-20), F8["f8e4m3fn"])
    wide = found.astype(np.float64)
    assert np.all((low <= wide) & (wide <= high))


def test_narrow_products_with_a_matrix() -> None:
    found, _, arguments = narrow_product("f32", ["f32[24,40]", "f32[]", "f32[]"], beta=1)
    a, b, c, s, t = arguments
    value, error = exact([a, b, s, t])
    assert np.all(np.abs(found - (value + c)) <= error + 2.0**-22 * np.abs(value + c) + 2.0**-22 * np.abs(c))


WINDOW = "window={size=3x2 stride=2x1 pad=1_1x0_0 rhs_dilate=1x2}, dim_labels=b01f_o01i->b01f"


@pytest.mark.parametrize(("groups", "deep"), [(1, 4), (2, 2)])
@pytest.mark.parametrize(
    ("target", "result", "operands"),
    [
        ("convForward", "f32[2,4,5,6]", ["f32[2,7,7,4]", "K"]),
        ("convBackwardInput", "f32[2,7,7,4]", ["f32[2,4,5,6]", "K"]),
        ("convBackwardFilter", "K", ["f32[2,7,7,4]", "f32[2,4,5,6]"]),
    ],
)
def test_convolutions_in_all_directions(target: str, result: str, operands: list[str], groups: int, deep: int) -> None:
    kernel = f"f32[6,3,2,{deep}]"
    shapes = [shape.replace("K", kernel) for shape in (result, *operands)]
    attributes = f'{WINDOW}, feature_group_count={groups}, custom_call_target="__cudnn${target}"'
    both(f"({shapes[0]}, u8[0]) = {attributes}, backend_config={convolution()}", shapes[1:])


@pytest.mark.parametrize("activation", ["kRelu", "kRelu6", "kElu", "kLeakyRelu", "kSigmoid", "kTanh"])
def test_convolutions_with_bias_side_input_and_activation(activation: str) -> None:
    text = convolution(activation_mode=activation, conv_result_scale=0.75, side_input_scale=2, leakyrelu_alpha=0.25)
    attributes = f'{WINDOW}, custom_call_target="__cudnn$convBiasActivationForward", backend_config={text}'
    both(f"(f32[2,4,5,6], u8[0]) = {attributes}", ["f32[2,7,7,4]", "f32[6,3,2,4]", "f32[6]", "f32[2,4,5,6]"])


def test_solves_and_sorts() -> None:
    options = json.dumps({"left_side": True, "lower": True, "unit_diagonal": True, "transpose_a": "ADJOINT"})
    call = f'(f64[3,9,4], s8[48]) = custom_call_target="__cublas$triangularSolve", backend_config={options}'
    result, (a, b) = both(call, ["f64[3,9,9]", "f64[3,9,4]"])
    triangle = np.tril(a, -1) + np.eye(9)
    np.testing.assert_allclose(triangle.swapaxes(-1, -2) @ result, b, rtol=1e-9, atol=1e-9)
    keys = '(f32[3,50], u8[16]) = custom_call_target="xla.gpu.ext.cub_sort_keys", backend_config={"descending":true}'
    result, (x,) = both(keys, ["f32[3,50]"])
    np.testing.assert_array_equal(result, np.sort(x, axis=-1)[:, ::-1])


def test_operands_that_do_not_fit_a_call() -> None:
    text = """HloModule m
ENTRY e { x = f32[2,64,64,16] parameter(0)
  y = f32[6,16,3,32] parameter(1)
  ROOT c = (f32[2,64,64,32], u8[0]) custom-call(x, y), window={size=3x3 pad=1_1x1_1}, dim_labels=b10f_o10i->b10f,
    custom_call_target="__cudnn$convForward" }"""
    module = hlo_run.parse(text)
    with pytest.raises(
        Unsupported, match="__cudnn\\$convForward needs window and dim_labels, and an input, a kernel and an output"
    ):
        hlo_run.evaluate(module, np.zeros((2, 64, 64, 16), np.float32), np.zeros((6, 16, 3, 32), np.float32))


def test_what_no_library_does() -> None:
    for change, name in ((config(epilogue="SIGMOID"), "SIGMOID"), (convolution(activation_mode="kSoft"), "kSoft")):
        target = "__cublas$gemm" if "gemm" in change else "__cudnn$convForward"
        window = "" if "gemm" in change else "window={size=1}, dim_labels=b0f_0io->b0f, "
        dims = ["f32[4,4]", "f32[4,4]"] if "gemm" in change else ["f32[1,4,4]", "f32[1,4,4]"]
        made = module(f'({dims[0]}, s8[4]) = {window}custom_call_target="{target}", backend_config={change}', dims)
        arguments = [np.ones(p.shape.dims, np.float32) for p in made.entry.parameters]
        with pytest.raises(Unsupported, match=name):
            hlo_run.evaluate(made, *arguments)
        with pytest.raises(Unsupported, match=name):
            hlo_run.run(made, *arguments, platform="Host")
