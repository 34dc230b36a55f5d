"""A stand-in for cuDNN's Python frontend: graphs take the recorded parameters only, and do in numpy, on a stand-in driver's
memory, what the manual says: cross-correlations of (batch, features, spatial ...) tensors that lie by their strides.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from fake_cuda import DriverMemory

Array: TypeAlias = "np.ndarray[Any, Any]"
_KINDS: dict[str, Any] = {"HALF": np.float16, "BFLOAT16": ml_dtypes.bfloat16, "FLOAT": np.float32, "DOUBLE": np.float64}
_WORKSPACE_BYTES = 512


@cache
def record() -> dict[str, Any]:
    """What `scripts/record_bindings.py cudnn` wrote."""
    path = Path(__file__).parent / "data" / "cudnn_frontend.json"
    return json.loads(path.read_text(encoding="utf-8"))


class NotSupported(Exception):
    """What cuDNN says of a graph that it has no plan for."""


def _checked(name: str, known: list[str], given: dict[str, Any]) -> None:
    unknown = sorted(set(given) - set(known))
    assert not unknown, f"{name} takes {known}, not {unknown}"


class FakeTensor:
    """A tensor of a graph; `value` computes it from the tensors that are bound."""

    def __init__(self, value: Callable[[dict[int, int]], Array] | None = None, **facts: Any) -> None:
        self.value: Callable[[dict[int, int]], Array] | None = value
        self.facts = facts

    def bound(self, places: dict[int, int]) -> Array:
        assert self.value is not None, "somebody computes it"
        return self.value(places)

    def _set(self, name: str, value: Any) -> FakeTensor:
        assert f"set_{name}" in record()["tensor"]
        self.facts[name] = value
        return self

    def set_output(self, value: bool) -> FakeTensor:
        return self._set("output", value)

    def set_uid(self, value: int) -> FakeTensor:
        return self._set("uid", value)

    def set_data_type(self, value: str) -> FakeTensor:
        return self._set("data_type", value)

    def set_dim(self, value: list[int]) -> FakeTensor:
        return self._set("dim", value)

    def set_stride(self, value: list[int]) -> FakeTensor:
        return self._set("stride", value)


class FakeCudnn:
    """The module. `supported` says whether a graph has plans; `log` has what was executed."""

    cudnnGraphNotSupportedError = NotSupported

    def __init__(self, driver: DriverMemory, log: list[str]) -> None:
        self.driver, self.log = driver, log
        self.live: set[int] = set()
        self.supported = True
        self.graphs: list[FakeGraph] = []
        self._ids = itertools.count(500)
        for name, members in record()["enums"].items():
            setattr(self, name, SimpleNamespace(**{member: member for member in members}))

    def create_handle(self) -> int:
        self.live.add(made := next(self._ids))
        return made

    def destroy_handle(self, handle: int) -> None:
        self.live.remove(handle)

    def set_stream(self, **given: Any) -> None:
        _checked("set_stream", record()["functions"]["set_stream"], given)
        assert given["handle"] in self.live
        assert given["stream"] == 77, "the driver's only stream"

    def pygraph(self, **given: Any) -> FakeGraph:
        _checked("pygraph", record()["pygraph"], given)
        assert given["handle"] in self.live
        self.graphs.append(made := FakeGraph(self, given))
        return made


class FakeGraph:
    """A graph: operations are noted, and done when it is executed."""

    def __init__(self, module: FakeCudnn, given: dict[str, Any]) -> None:
        self._module, self.given = module, given
        self._steps: list[str] = []
        self.made: list[FakeTensor] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in record()["graph"]:
            raise AttributeError(name)

        def call(*arguments: Any, **given: Any) -> Any:
            known: list[str] = record()["graph"][name]
            given = {**dict(zip(known, arguments, strict=False)), **given}
            assert len(arguments) <= len(known)
            _checked(name, known, given)
            return getattr(self, f"do_{name}")(**given)

        return call

    # ---- tensors and operations ---------------------------------------------------------------------------------

    def _view(self, facts: dict[str, Any], places: dict[int, int]) -> Array:
        """Device memory as the tensor's declaration says it lies; of a factor, memory of this process."""
        kind = np.dtype(_KINDS[facts["data_type"]])
        address = places[facts["uid"]]
        if facts.get("is_pass_by_value"):
            memory: Any = (ctypes.c_char * kind.itemsize).from_address(address)
            return np.frombuffer(memory, kind).reshape(facts["dim"])
        assert all(stride > 0 for stride in facts["stride"])
        last = sum((size - 1) * stride for size, stride in zip(facts["dim"], facts["stride"], strict=True))
        memory = self._module.driver.view(address, (last + 1) * kind.itemsize)
        return np.ndarray(facts["dim"], kind, memory, strides=[stride * kind.itemsize for stride in facts["stride"]])

    def do_tensor(self, **facts: Any) -> FakeTensor:
        assert len(facts["dim"]) == len(facts["stride"]) in (4, 5), "two or three dimensions besides batch and features"
        made = FakeTensor(**facts)
        made.value = lambda places: self._view(facts, places).astype(np.float64)
        return made

    def _made(self, value: Callable[[dict[int, int]], Array]) -> FakeTensor:
        self.made.append(made := FakeTensor(value))
        return made

    def _one(self, work: Callable[[Array], Array], x: FakeTensor) -> FakeTensor:
        return self._made(lambda places: work(x.bound(places)))

    def _two(self, work: Callable[[Array, Array], Array], a: FakeTensor, b: FakeTensor) -> FakeTensor:
        return self._made(lambda places: work(a.bound(places), b.bound(places)))

    def do_conv_fprop(self, image: FakeTensor, weight: FakeTensor, **how: Any) -> FakeTensor:
        self._steps.append("fprop")
        return self._two(lambda x, w: _correlate(x, w, how), image, weight)

    def do_conv_dgrad(self, loss: FakeTensor, filter: FakeTensor, **how: Any) -> FakeTensor:
        self._steps.append("dgrad")
        return self._gradient(how, loss, filter, by_input=True)

    def do_conv_wgrad(self, image: FakeTensor, loss: FakeTensor, **how: Any) -> FakeTensor:
        self._steps.append("wgrad")
        return self._gradient(how, loss, image, by_input=False)

    def _gradient(self, how: dict[str, Any], loss: FakeTensor, other: FakeTensor, by_input: bool) -> FakeTensor:
        """The dimensions of the result, which several inputs and filters have in common, are set afterwards."""

        def work(dy: Array, value: Array) -> Array:
            return _gradient(dy, value, how, made.facts["dim"], by_input)

        made = self._two(work, loss, other)
        return made

    def do_add(self, a: FakeTensor, b: FakeTensor) -> FakeTensor:
        return self._two(np.add, a, b)

    def do_mul(self, a: FakeTensor, b: FakeTensor) -> FakeTensor:
        return self._two(np.multiply, a, b)

    def do_bias(self, input: FakeTensor, bias: FakeTensor) -> FakeTensor:
        assert all(size == 1 for dim, size in enumerate(bias.facts["dim"]) if dim != 1), "along the features"
        return self._two(np.add, input, bias)

    def do_relu(self, input: FakeTensor, lower_clip: float = 0.0, upper_clip: float = np.inf) -> FakeTensor:
        return self._one(lambda x: np.clip(x, lower_clip, upper_clip), input)

    def do_leaky_relu(self, input: FakeTensor, negative_slope: float) -> FakeTensor:
        return self._one(lambda x: np.where(x > 0, x, x * negative_slope), input)

    def do_elu(self, input: FakeTensor) -> FakeTensor:
        return self._one(lambda x: np.where(x > 0, x, np.expm1(x)), input)

    def do_sigmoid(self, input: FakeTensor) -> FakeTensor:
        return self._one(lambda x: 1 / (1 + np.exp(-x)), input)

    def do_tanh(self, input: FakeTensor) -> FakeTensor:
        return self._one(np.tanh, input)

    # ---- plans --------------------------------------------------------------------------------------------------

    def do_validate(self) -> None:
        self._steps.append("validate")

    def do_build_operation_graph(self) -> None:
        assert self._steps[-1] == "validate"
        self._steps.append("operations")

    def do_create_execution_plans(self, heuristics: list[str]) -> None:
        assert self._steps[-1] == "operations"
        assert heuristics
        self._steps.append("plans")

    def do_check_support(self) -> None:
        assert self._steps[-1] == "plans"
        if not self._module.supported:
            raise NotSupported("no engine configuration")
        self._steps.append("supported")

    def do_build_plans(self) -> None:
        assert self._steps[-1] == "supported"
        self._steps.append("built")

    def do_get_workspace_size(self) -> int:
        assert self._steps[-1] == "built"
        return _WORKSPACE_BYTES

    def do_execute(self, tensor_dict: dict[int, int], workspace: int, handle: int) -> None:
        assert self._steps[-1] == "built"
        assert handle in self._module.live
        assert workspace > 0
        self._module.log.append(f"cudnn.{self._steps[0]}")
        (output,) = [tensor for tensor in self.made if tensor.facts.get("output")]
        value = output.bound(tensor_dict)
        assert list(value.shape) == output.facts["dim"]
        self._view(output.facts, tensor_dict)[...] = value


# ---- what the operations are ----------------------------------------------------------------------------------------


def _correlate(x: Array, w: Array, how: dict[str, Any]) -> Array:
    """Every place of the window by itself; the features of the filter say how many groups there are."""
    groups = x.shape[1] // w.shape[1]
    edges = [(0, 0), (0, 0), *zip(how["pre_padding"], how["post_padding"], strict=True)]
    padded = np.pad(x, edges)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(w.shape[2:], how["dilation"], strict=True)]
    counts = [(n - r) // s + 1 for n, r, s in zip(padded.shape[2:], reach, how["stride"], strict=True)]
    result = np.zeros((x.shape[0], w.shape[0], *counts))
    deep, wide = w.shape[1], w.shape[0] // groups
    for tap in np.ndindex(*w.shape[2:]):
        seen = padded[(slice(None), slice(None), *_places(tap, counts, how))]
        for group in range(groups):
            out = slice(group * wide, (group + 1) * wide)
            part = seen[:, group * deep : (group + 1) * deep]
            result[:, out] += np.einsum("nc...,kc->nk...", part, w[(out, slice(None), *tap)])
    return result


def _places(tap: tuple[int, ...], counts: list[int], how: dict[str, Any]) -> list[slice]:
    starts = [at * dilation for at, dilation in zip(tap, how["dilation"], strict=True)]
    return [slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, counts, how["stride"], strict=True)]


def _flat(value: Array) -> Array:
    return value.reshape(*value.shape[:2], -1)


def _gradient(dy: Array, other: Array, how: dict[str, Any], dims: list[int], by_input: bool) -> Array:
    """The forward operation is linear: its gradient adds up, for each place of the window, what that contributed."""
    if by_input:
        x_dims, w_dims = dims, list(other.shape)
    else:
        x_dims, w_dims = list(other.shape), dims
    groups = x_dims[1] // w_dims[1]
    deep, wide = w_dims[1], w_dims[0] // groups
    sizes = [n + a + b for n, a, b in zip(x_dims[2:], how["pre_padding"], how["post_padding"], strict=True)]
    padded = np.zeros((*x_dims[:2], *sizes))
    if not by_input:
        inner = [slice(a, a + n) for a, n in zip(how["pre_padding"], x_dims[2:], strict=True)]
        padded[(slice(None), slice(None), *inner)] = other
    dw = np.zeros(w_dims)
    for tap in np.ndindex(*w_dims[2:]):
        places = (slice(None), slice(None), *_places(tap, list(dy.shape[2:]), how))
        for group in range(groups):
            out = slice(group * wide, (group + 1) * wide)
            into = (slice(None), slice(group * deep, (group + 1) * deep), *places[2:])
            if by_input:
                padded[into] += np.einsum("nk...,kc->nc...", dy[:, out], other[(out, slice(None), *tap)])
            else:
                dw[(out, slice(None), *tap)] = np.einsum("nkp,ncp->kc", _flat(dy[:, out]), _flat(padded[into]))
    if not by_input:
        return dw
    inner = [slice(a, a + n) for a, n in zip(how["pre_padding"], x_dims[2:], strict=True)]
    return padded[(slice(None), slice(None), *inner)]
