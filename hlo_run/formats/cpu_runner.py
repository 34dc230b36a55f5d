"""The program of a child process in which real XLA:CPU runs modules: `python cpu_runner.py`, requests on stdin.

A request is a pickled pair (HLO text, list of arrays: the leaves of the arguments). The answer on stdout is a pickled pair
(stage, result) after its length in bytes as 8 bytes, lowest first: an empty stage and the list of the result's leaves, or the
stage that refuses (`parse`, `convert`, `compile` or `run`) and XLA's message. The process serves requests until stdin ends.
XLA aborts it if one of its checks fails. Like `conversions.py` it imports no module of hlo_run.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import sys
from typing import Any

# XLA:CPU emits no code for these HLO ops, but the CHLO ops of the same names are expanded into others.
_NO_EMITTER = re.compile(r"\bmhlo\.((?:acosh?|asinh?|atanh|cosh|sinh) %\S+ : (tensor<[^>]*>))")


class _Refused(Exception):
    """A refusal: the stage and XLA's message."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class _Runner:
    """XLA:CPU with one device."""

    def __init__(self) -> None:
        self._jax: Any = importlib.import_module("jaxlib._jax")
        self._hlo: Any = importlib.import_module("jaxlib._hlo")
        self._client_module: Any = importlib.import_module("jaxlib.xla_client")
        self._numpy: Any = importlib.import_module("numpy")
        jax, hlo = self._jax, self._hlo

        class Sharding(jax.SingleDeviceSharding):
            """The part of jax's sharding class that jaxlib calls, so that jax itself is not needed."""

            memory_kind = None

            def _to_xla_hlo_sharding(self, _rank: int) -> Any:
                return hlo.HloSharding.replicate()

        self._client: Any = self._client_module.make_cpu_client()
        self._device = self._client.devices()[0]
        self._sharding = Sharding(self._device)
        self._compiled: tuple[str, Any] | None = None

    def run(self, text: str, arguments: list[Any]) -> list[Any]:
        """Compile and run a module without excess precision; raises _Refused.

        Keeps the last executable, since the iterations of a module follow each other.
        """
        if self._compiled is None or self._compiled[0] != text:
            self._compiled = None
            self._compiled = text, self._compile(text)
        executable = self._compiled[1]
        try:
            shards = executable.execute_sharded([self._put(each) for each in arguments])
            parts = shards.disassemble_into_single_device_arrays()
            return [self._numpy.array(part[0]._single_device_array_to_np_array_did_copy()[0]) for part in parts]
        except Exception as error:  # jaxlib raises errors of several types
            raise _Refused("run", str(error)) from None

    def _compile(self, text: str) -> Any:
        stage = "parse"
        try:
            module = self._hlo.hlo_module_from_text(text)
            stage = "convert"
            computation = self._hlo.XlaComputation(module.as_serialized_hlo_module_proto())
            mlir = self._jax.mlir.xla_computation_to_mlir_module(computation)
            mlir = _NO_EMITTER.sub(r"chlo.\1 -> \2", mlir)
            stage = "compile"
            options = self._client_module.CompileOptions()
            options.env_option_overrides = [("xla_allow_excess_precision", False)]
            devices = self._client_module.DeviceList((self._device,))
            return self._client.compile_and_load(mlir, devices, options)
        except Exception as error:  # as above
            raise _Refused(stage, str(error)) from None

    def _put(self, array: Any) -> Any:
        whole = self._numpy.ascontiguousarray(array).reshape(array.shape)
        semantics = self._jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
        aval = _Aval(whole)
        return self._jax.batched_device_put(aval, self._sharding, [whole], [self._device], True, False, semantics, True)


class _Aval:
    weak_type = False

    def __init__(self, array: Any) -> None:
        self.shape, self.dtype = array.shape, array.dtype


def main() -> int:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what XLA prints is not part of the answer
    runner = _Runner()
    while True:
        try:
            text, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return 0
        try:
            answer: tuple[str, Any] = "", runner.run(text, arguments)
        except _Refused as error:
            answer = error.stage, str(error)
        data = pickle.dumps(answer)
        answers.write(len(data).to_bytes(8, "little") + data)
        answers.flush()


if __name__ == "__main__":
    raise SystemExit(main())
