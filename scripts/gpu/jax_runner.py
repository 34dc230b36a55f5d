"""Run real XLA through JAX's client: compile StableHLO text, run it, time it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np


class JaxRunner:
    """The first device of JAX's default platform."""

    def __init__(self) -> None:
        self._jax: Any = importlib.import_module("jax")
        self._jax.config.update("jax_enable_x64", True)
        self._device = self._jax.devices()[0]
        self._client = self._device.client
        self._xla_client: Any = importlib.import_module("jaxlib.xla_client")

    @property
    def description(self) -> str:
        """JAX's version, the platform and the device."""
        return f"jax {self._jax.__version__}, {self._client.platform}, {self._device.device_kind}"

    def run(self, stablehlo: str, arguments: Sequence[Any], repeats: int) -> tuple[list[Any], float]:
        """Return the flat results as numpy arrays, and the median microseconds of `repeats` further runs (0.0 for none).

        Raises JAX's own errors for a module that it does not accept.
        """
        executable = self._compile(stablehlo)
        flat = [self._jax.device_put(value, self._device) for argument in arguments for value in _flat(argument)]
        results = self._execute(executable, flat)
        arrays = [np.asarray(result) for result in results]
        times: list[float] = []
        for _ in range(repeats):
            begin = time.perf_counter()
            for result in self._execute(executable, flat):
                result.block_until_ready()
            times.append(time.perf_counter() - begin)
        return arrays, 1e6 * median(times) if times else 0.0

    def _compile(self, stablehlo: str) -> Any:
        # The client parses the text.
        devices = self._xla_client.DeviceList((self._device,))
        options = self._xla_client.CompileOptions()
        return self._client.compile_and_load(stablehlo, devices, options)

    def _execute(self, executable: Any, flat: Sequence[Any]) -> list[Any]:
        return [shards[0] for shards in executable.execute_sharded(list(flat)).disassemble_into_single_device_arrays()]


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, tuple) else [value]
