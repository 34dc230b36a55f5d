"""Write a module in the format of `--output_format`."""

from __future__ import annotations

from hlo_run.errors import UsageError
from hlo_run.formats import protos, xla
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string


def module_to_bytes(module: HloModule, output_format: str) -> bytes:
    """Return `module` as an HloProto (`pb`, `pbtxt`) or as StableHLO text, with full constants.

    Raises UsageError if jaxlib is missing, Unsupported for a module that XLA cannot convert.
    """
    text = module_to_string(module, FULL)
    match output_format:
        case "pb":
            return hlo_proto(xla.text_to_proto(text, module.name))
        case "pbtxt":
            return protos.proto_to_text(xla.text_to_proto(text, module.name), module.name).encode()
        case "stablehlo":
            return xla.text_to_stablehlo(text, module.name).encode()
        case _:
            raise UsageError(f"output format '{output_format}' is not supported")


def hlo_proto(module: bytes) -> bytes:
    """Return a serialized HloProto, the message of XLA's dumps, that contains a serialized HloModuleProto."""
    # Field 1, length-delimited; the length follows as a varint.
    size, length = len(module), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return b"\n" + bytes(length) + bytes([size]) + module
