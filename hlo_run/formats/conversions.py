"""The program of a child process in which real XLA converts a module: `python conversions.py NAME < input > output`.

XLA aborts the process on some malformed inputs; in a child process, that is only an error message for the user.
The program imports no module of hlo_run, so it runs by its path in any environment. XLA's refusals are printed to
stderr, with exit code `REFUSED`.
"""

from __future__ import annotations

import importlib
import math
import re
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

REFUSED = 3
_LEAST_SECONDS = 10
# XLA reads a hundred times as much.
_BYTES_PER_SECOND = 20_000


def print_in_full(module: Any) -> bytes:
    """Return the text of jaxlib's HloModule, with all elements of constants."""
    options = _hlo().HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options).encode()


def _hlo() -> Any:
    return importlib.import_module("jaxlib._hlo")


def _mlir() -> Any:
    return importlib.import_module("jaxlib._jax").mlir


def proto_to_text(data: bytes) -> bytes:
    """Convert an HloModuleProto to HLO text with full constants."""
    return print_in_full(_hlo().HloModule.from_serialized_hlo_module_proto(data))


def text_to_proto(data: bytes) -> bytes:
    """Convert HLO text to an HloModuleProto."""
    return _hlo().hlo_module_from_text(data.decode()).as_serialized_hlo_module_proto()


def mlir_to_text(data: bytes) -> bytes:
    """Convert StableHLO or MHLO, text or bytecode, to HLO text with full constants.

    Several results become one tuple, as in run_hlo_module. The header has the numbers of replicas and partitions that a text's
    module has as `mhlo.num_replicas` and `mhlo.num_partitions`; jaxlib forgets them.
    """
    source = data if data.startswith(b"ML\xefR") else data.decode()
    computation = _mlir().mlir_module_to_xla_computation(source, use_tuple_args=False, return_tuple=False)
    header, newline, rest = print_in_full(computation.get_hlo_module()).partition(b"\n")
    return header + _device_counts(source) + newline + rest


def _device_counts(source: str | bytes) -> bytes:
    """Return what the header of a module says of its devices: `, replica_count=2, num_partitions=4`."""
    if isinstance(source, bytes):
        return b""
    attributes = re.search(r"^\s*module\b[^{\n]*attributes\s*\{([^\n]*)\}", source, re.MULTILINE)
    found = ""
    for name, attribute in (("replica_count", "num_replicas"), ("num_partitions", "num_partitions")):
        count = re.search(rf"\bmhlo\.{attribute} = (\d+) :", attributes[1]) if attributes else None
        if count and int(count[1]) > 1:
            found += f", {name}={int(count[1])}"
    return found.encode()


def text_to_stablehlo(data: bytes) -> bytes:
    """Convert HLO text to StableHLO text."""
    return _mlir().xla_computation_to_mlir_module(_hlo().XlaComputation(text_to_proto(data))).encode()


CONVERSIONS: dict[str, Callable[[bytes], bytes]] = {
    "proto-to-text": proto_to_text,
    "text-to-proto": text_to_proto,
    "mlir-to-text": mlir_to_text,
    "text-to-stablehlo": text_to_stablehlo,
}


def limit_time(data: bytes) -> None:
    """Let the process end by SIGXCPU if XLA works much longer than on real input: some malformed bytecode never ends."""
    seconds = math.ceil(time.process_time() + _LEAST_SECONDS + len(data) / _BYTES_PER_SECOND)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))


def main() -> int:
    """Convert stdin to stdout by the conversion named on the command line."""
    try:
        data = sys.stdin.buffer.read()
        limit_time(data)
        result = CONVERSIONS[sys.argv[1]](data)
    except (RuntimeError, UnicodeError) as error:  # jaxlib raises its subclass of RuntimeError; a name may not be UTF-8
        sys.stderr.write(f"{error}\n")
        return REFUSED
    sys.stdout.buffer.write(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
