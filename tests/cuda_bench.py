"""Helpers of the tests of the CUDA platform's libraries: a backend on stand-ins, arrays, and the results of numpy."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from fake_bindings import fake_bindings
from fake_cuda import FakeDriver

from hlo_run.artifact import ArraySpec, BufferAllocation, BufferSlice, Executable, Thunk
from hlo_run.backends.cuda import device as cuda_device
from hlo_run.backends.cuda import graphs, libraries
from hlo_run.backends.cuda.backend import CudaBackend
from hlo_run.backends.library.calls import library_call
from hlo_run.hlo.values.dtype import DTYPES


class Bench:
    """A backend on stand-ins: `log` has the calls of libraries in order, `bindings` what they were asked of."""

    def __init__(self, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = driver
        self.log: list[str] = []
        self.bindings = fake_bindings(driver, self.log)
        monkeypatch.setattr(cuda_device, "device_problem", lambda: "")
        monkeypatch.setattr(cuda_device, "load_driver", lambda: driver)
        monkeypatch.setattr(libraries, "load_binding", self.bindings.__getitem__)
        monkeypatch.setattr(graphs, "load_cuda", lambda: self.bindings["driver"])
        self.backend = CudaBackend()

    def run(self, thunk: Thunk, inputs: dict[ArraySpec, Any], outputs: list[ArraySpec]) -> list[Any]:
        """Run one thunk on fresh memory and return its outputs."""
        return self.run_all((thunk,), inputs, outputs)

    def run_all(self, thunks: tuple[Thunk, ...], inputs: dict[ArraySpec, Any], outputs: list[ArraySpec]) -> list[Any]:
        count = 1 + max(spec.slice.allocation for spec in (*inputs, *outputs))
        sizes = {spec.slice.allocation: spec.slice.size_bytes for spec in (*inputs, *outputs)}
        order = list(inputs)
        numbers = {spec.slice.allocation: n for n, spec in enumerate(order)}
        out = {spec.slice.allocation for spec in outputs}
        allocations = tuple(BufferAllocation(n, sizes.get(n, 4), numbers.get(n), is_output=n in out) for n in range(count))
        program = Executable("m", "a100", (), thunks, allocations, tuple(order), tuple(outputs))
        result = self.backend.run(program, [inputs[spec] for spec in order])
        assert isinstance(result, tuple)
        return list(result)


def array(number: int, dtype: str, dims: tuple[int, ...], order: tuple[int, ...] | None = None) -> ArraySpec:
    layout = tuple(reversed(range(len(dims)))) if order is None else order
    return ArraySpec(dtype, dims, layout, BufferSlice(number, 0, prod(dims) * DTYPES[dtype].bits // 8))


def values(rng: np.random.Generator, spec: ArraySpec) -> Any:
    kind = DTYPES[spec.dtype]
    if kind.is_integer:
        return rng.integers(-9, 9, spec.dims).astype(kind.numpy)
    drawn = rng.standard_normal(spec.dims)
    return (drawn + 1j * rng.standard_normal(spec.dims) if kind.is_complex else drawn).astype(kind.numpy)


def by_numpy(thunk: Thunk, inputs: dict[ArraySpec, Any]) -> list[Any]:
    """What the stand-in for libraries computes."""
    call = library_call(thunk)
    assert call is not None
    results = [np.zeros(spec.dims, DTYPES[spec.dtype].numpy) for spec in call.outputs]
    call.compute([inputs[spec] for spec in call.inputs], results)
    return results


def agree(actual: list[Any], expected: list[Any], tolerance: float = 2e-4) -> None:
    for one, other in zip(actual, expected, strict=True):
        wide = np.complex128 if np.iscomplexobj(other) else np.float64
        np.testing.assert_allclose(one.astype(wide), other.astype(wide), rtol=tolerance, atol=tolerance * 10)
