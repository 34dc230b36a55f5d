"""The program of the child process in which real XLA converts modules: `python conversions.py NAME < input > output`.

XLA ends the process on some malformed inputs; in a process of its own that costs the user an error message and no more.
It imports nothing of ours, so that it runs by its path in any environment. Refusals go to stderr, with exit code `REFUSED`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

REFUSED = 3


def print_in_full(module: Any) -> bytes:
    """Return the text of jaxlib's HloModule, with every constant in full."""
    options = _hlo().HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options).encode()


def _hlo() -> Any:
    return importlib.import_module("jaxlib._hlo")


def _mlir() -> Any:
    return importlib.import_module("jaxlib._jax").mlir


def proto_to_text(data: bytes) -> bytes:
    """HloModuleProto to HLO text in full."""
    return print_in_full(_hlo().HloModule.from_serialized_hlo_module_proto(data))


def text_to_proto(data: bytes) -> bytes:
    """HLO text to HloModuleProto."""
    return _hlo().hlo_module_from_text(data.decode()).as_serialized_hlo_module_proto()


def mlir_to_text(data: bytes) -> bytes:
    """StableHLO or MHLO, text or bytecode, to HLO text in full; results as run_hlo_module has them (several: one tuple)."""
    source = data if data.startswith(b"ML\xefR") else data.decode()
    computation = _mlir().mlir_module_to_xla_computation(source, use_tuple_args=False, return_tuple=False)
    return print_in_full(computation.get_hlo_module())


def text_to_stablehlo(data: bytes) -> bytes:
    """HLO text to StableHLO text."""
    return _mlir().xla_computation_to_mlir_module(_hlo().XlaComputation(text_to_proto(data))).encode()


CONVERSIONS: dict[str, Callable[[bytes], bytes]] = {
    "proto-to-text": proto_to_text,
    "text-to-proto": text_to_proto,
    "mlir-to-text": mlir_to_text,
    "text-to-stablehlo": text_to_stablehlo,
}


def main() -> int:
    """Convert stdin to stdout by the conversion named on the command line."""
    try:
        result = CONVERSIONS[sys.argv[1]](sys.stdin.buffer.read())
    except Exception as error:  # jaxlib raises classes of its own; every one is a refusal
        sys.stderr.write(f"{error}\n")
        return REFUSED
    sys.stdout.buffer.write(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
