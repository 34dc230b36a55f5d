"""Write a module in the format of `--output_format`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hlo_run.errors import UsageError
from hlo_run.formats import protos, xla
from hlo_run.formats.proto_literals import fill_proto
from hlo_run.formats.snapshot_stream import write_stream
from hlo_run.formats.wire import delimited
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape

# Values with their shapes.
Values: TypeAlias = "Sequence[tuple[Literal, Shape]]"


def module_to_bytes(module: HloModule, output_format: str) -> bytes:
    """Return `module` as an HloProto (`pb`, `pbtxt`) or as StableHLO text, with full constants.

    Raises UsageError if jaxlib is missing, Unsupported for a module that XLA cannot convert.
    """
    text = module_to_string(module, FULL)
    match output_format:
        case "pb":
            return hlo_proto(module_proto(module))
        case "pbtxt":
            return protos.proto_to_text(xla.text_to_proto(text, module.name), module.name).encode()
        case "stablehlo":
            return xla.text_to_stablehlo(text, module.name).encode()
        case _:
            raise UsageError(f"output format '{output_format}' is not supported")


def snapshot(module: HloModule, arguments: Values, result: tuple[Literal, Shape], platform: str) -> bytes:
    """Return a serialized HloSnapshot: a module with the arguments and the result of an execution on a platform.

    Raises UsageError if a package is missing, Unsupported for a module or an element type that XLA's protos do not hold.
    """
    message = protos.message_types("a snapshot")("xla.HloSnapshot")()
    message.hlo.hlo_module.ParseFromString(module_proto(module))
    for value, shape in arguments:
        fill_proto(message.arguments.add(), value, shape)
    fill_proto(message.result, *result)
    message.execution_platform = platform
    return message.SerializeToString(deterministic=True)


def unoptimized_snapshot(module: HloModule, devices: Sequence[Values], kind: str) -> bytes:
    """Return an HloUnoptimizedSnapshot, a module with the arguments of each device. Raises the errors of `snapshot`.

    `kind`: `message`, `text` (the message in protobuf's text format) or `stream` (XLA's format of `snapshot_stream`).
    """
    message = protos.message_types("a snapshot")("xla.HloUnoptimizedSnapshot")()
    message.hlo_module.ParseFromString(module_proto(module))
    for arguments in devices:
        inputs = message.partitions.add()
        for value, shape in arguments:
            fill_proto(inputs.arguments.add(), value, shape)
    if kind == "stream":
        return write_stream(message)
    if kind == "message":
        return message.SerializeToString(deterministic=True)
    from google.protobuf import text_format

    return text_format.MessageToString(message).encode()


def module_proto(module: HloModule) -> bytes:
    """Return `module` as a serialized HloModuleProto. Raises the errors of `module_to_bytes`."""
    return xla.text_to_proto(module_to_string(module, FULL), module.name)


def hlo_proto(module: bytes) -> bytes:
    """Return a serialized HloProto, the message of XLA's dumps, that contains a serialized HloModuleProto."""
    return delimited(1, module)
