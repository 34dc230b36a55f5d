"""Convolutions of the CUDA platform on a stand-in for cuDNN's frontend, which checks the calls and computes with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from cuda_bench import Bench, agree, array, by_numpy, values
from fake_cudnn import FakeCudnn

from hlo_run.artifact import ArraySpec, ConvolutionNumbers, ConvolutionThunk, WindowSpec
from hlo_run.backends.cuda import libraries
from hlo_run.backends.cuda.convolution import Laid, plan_convolution
from hlo_run.errors import DeviceError
from hlo_run.records import replace

_WINDOW = (WindowSpec(3, 2, 1, 2), WindowSpec(2, 1, 0, 1, window_dilation=2))
_NHWC = ConvolutionNumbers((0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2))
Direction = Literal["forward", "backward-input", "backward-filter"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    from fake_cuda import FakeDriver

    made = Bench(FakeDriver({}), monkeypatch)
    made.bindings["cudnn"] = FakeCudnn(made.driver, made.log)
    monkeypatch.setattr(libraries, "load_cudnn", lambda: made.bindings["cudnn"])
    yield made
    made.backend.close()
    assert not made.bindings["cudnn"].live, "the handle leaked"


def _thunk(direction: Direction = "forward", dtype: str = "f32", groups: int = 1, **extras: Any) -> ConvolutionThunk:
    source = array(0, dtype, (2, 7, 6, 4))
    weights = array(1, dtype, (3, 2, 4 // groups, 6), (2, 1, 0, 3))
    result = array(2, dtype, (2, 4, 5, 6))
    return ConvolutionThunk("c", direction, source, weights, result, _WINDOW, _NHWC, groups, **extras)


def _check(bench: Bench, thunk: ConvolutionThunk, tolerance: float = 2e-4) -> None:
    target = {"forward": thunk.result, "backward-input": thunk.source, "backward-filter": thunk.weights}[thunk.direction]
    arrays = [thunk.source, thunk.weights, thunk.result, thunk.bias, thunk.side]
    rng = np.random.default_rng(len(bench.log) + 7)
    inputs: dict[ArraySpec, Any] = {spec: values(rng, spec) for spec in arrays if spec is not None and spec is not target}
    agree(bench.run(thunk, inputs, [target]), by_numpy(thunk, inputs), tolerance)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("direction", "call"), [("forward", "fprop"), ("backward-input", "dgrad"), ("backward-filter", "wgrad")])
def test_directions(bench: Bench, direction: Direction, call: str, groups: int) -> None:
    _check(bench, _thunk(direction, groups=groups))
    assert bench.log == [f"cudnn.{call}"]


@pytest.mark.parametrize(("dtype", "tolerance"), [("f64", 1e-9), ("f16", 2e-2), ("bf16", 6e-2)])
def test_types(bench: Bench, dtype: str, tolerance: float) -> None:
    _check(bench, _thunk(dtype=dtype), tolerance)
    assert bench.log == ["cudnn.fprop"]
    stored, computed = {"f64": ("DOUBLE", "DOUBLE"), "f16": ("HALF", "FLOAT"), "bf16": ("BFLOAT16", "FLOAT")}[dtype]
    given = bench.bindings["cudnn"].graphs[0].given
    assert (given["io_data_type"], given["compute_data_type"]) == (stored, computed)


@pytest.mark.parametrize("activation", ["kNone", "kRelu", "kRelu6", "kElu", "kLeakyRelu", "kSigmoid", "kTanh"])
def test_what_follows(bench: Bench, activation: str) -> None:
    bias, side = array(3, "f32", (6,)), array(4, "f32", (2, 4, 5, 6))
    thunk = _thunk(activation=activation, bias=bias, side=side, side_scale=0.5, scale=3.0, leaky_alpha=0.1)
    _check(bench, thunk)
    _check(bench, replace(thunk, side=None, side_scale=0.0, scale=1.0))
    assert bench.log == ["cudnn.fprop"] * 2


def test_forms_share_a_graph(bench: Bench) -> None:
    for _ in range(2):
        _check(bench, _thunk())
    _check(bench, _thunk(activation="kRelu"))
    assert len(bench.bindings["cudnn"].graphs) == 2


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_other_numbers_of_dimensions(bench: Bench, rank: int) -> None:
    spatial = (5, 4, 3)[:rank]
    window = tuple(WindowSpec(2, pad_low=1, pad_high=1) for _ in spatial)
    places = tuple(range(2, 2 + rank))
    numbers = ConvolutionNumbers((0, 1, *places), (1, 0, *places), (0, 1, *places))
    source, weights = array(0, "f32", (2, 3, *spatial)), array(1, "f32", (4, 3, *(2,) * rank))
    result = array(2, "f32", (2, 4, *(size + 1 for size in spatial)))
    _check(bench, ConvolutionThunk("c", "forward", source, weights, result, window, numbers))
    assert bench.log == ["cudnn.fprop"]


def test_the_call_says_how_arrays_lie() -> None:
    plan = plan_convolution(_thunk())
    assert not isinstance(plan, str)
    form = plan.form
    assert form.one == Laid((2, 4, 7, 6), (168, 1, 24, 4))
    assert form.two == Laid((6, 4, 3, 2), (24, 1, 8, 4))
    assert form.result == Laid((2, 6, 4, 5), (120, 1, 30, 6))
    assert (form.pre_padding, form.post_padding) == ((1, 0), (2, 1))
    assert (form.stride, form.dilation) == ((2, 1), (1, 2))
    line = ConvolutionNumbers((0, 2, 1), (1, 2, 0), (0, 2, 1))
    arrays = array(0, "f32", (2, 9, 4)), array(1, "f32", (3, 4, 8)), array(2, "f32", (2, 7, 8))
    plan = plan_convolution(ConvolutionThunk("c", "forward", *arrays, (WindowSpec(3),), line))
    assert not isinstance(plan, str)
    assert plan.form.one == Laid((2, 4, 1, 9), (36, 1, 36, 4))
    assert (plan.form.pre_padding, plan.form.stride) == ((0, 0), (1, 1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window": (WindowSpec(3, base_dilation=2), WindowSpec(2))}, "base dilation"),
        ({"window": (WindowSpec(3, is_reversed=True), WindowSpec(2, is_reversed=True))}, "reversed"),
        ({"window": (WindowSpec(3, pad_low=-1), WindowSpec(2))}, "negative"),
        ({"window": (WindowSpec(1),) * 4}, "4 dimensions"),
        ({"batch_groups": 2}, "no batch groups"),
        ({"activation": "kSwish"}, "kSwish"),
        ({"bias": array(3, "f32", (5,))}, "bias"),
        ({"side": array(3, "f32", (2, 4, 5, 5)), "side_scale": 1.0}, "side input"),
        ({"weights": array(1, "f16", (3, 2, 4, 6))}, "f16 and f32"),
        ({"result": array(2, "f32", (0, 4, 5, 6))}, "no elements"),
        ({"direction": "backward-input", "activation": "kRelu"}, "gradient"),
    ],
)
def test_what_is_left_to_numpy(change: dict[str, Any], reason: str) -> None:
    plan = plan_convolution(replace(_thunk(), **change))
    assert isinstance(plan, str)
    assert reason in plan


def test_numpy_does_what_cudnn_has_no_plan_for(bench: Bench) -> None:
    bench.bindings["cudnn"].supported = False
    _check(bench, _thunk())
    assert bench.log == []


@pytest.mark.parametrize("error", [ImportError("no module named cudnn"), RuntimeError("Unable to find symbol cudnnCreate")])
def test_numpy_convolves_where_there_is_no_cudnn(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> Any:
        raise error

    monkeypatch.setattr(libraries, "load_cudnn", fail)
    _check(bench, _thunk())
    assert bench.log == []


def test_a_failure_of_the_library_is_a_device_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    from fake_cudnn import FakeGraph

    monkeypatch.setattr(FakeGraph, "do_execute", fail)
    with pytest.raises(DeviceError, match="EXECUTION_FAILED"):
        _check(bench, _thunk())
