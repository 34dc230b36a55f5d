"""Read and write the files of literals of XLA's run_hlo_module: RunHloModuleLiterals, as a binary or a text proto.

jaxlib does not carry the schema of these messages, which is xla/tools/run_hlo_module.proto, so it is built here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from hlo_run.errors import UsageError
from hlo_run.formats.proto_literals import fill_proto, literal_of_proto
from hlo_run.formats.protos import Message, message_types, schema_pool
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.options.text_files import read_bytes
from hlo_run.whole_files import write_problem, write_whole

_FILE, _WHOLE, _ITERATION = "xla/tools/run_hlo_module.proto", "RunHloModuleLiterals", "RunHloModuleIterationLiterals"
_LITERAL_FILE, _LITERAL = "xla/xla_data.proto", ".xla.LiteralProto"
_TEXT_ENDINGS = (".pbtxt", ".textproto", ".txt")


class IterationLiterals(Struct):
    """The arguments and results of an iteration, each with its shape. A result that is not computed is None."""

    arguments: Sequence[tuple[Literal, Shape]] = field(default_factory=tuple[tuple[Literal, Shape], ...])
    result: tuple[Literal, Shape] | None = None
    reference_result: tuple[Literal, Shape] | None = None


def read_arguments(path: str, flag: str) -> list[tuple[Literal, ...]]:
    """Return the arguments of each iteration in a file; an iteration may have none.

    A file with one RunHloModuleIterationLiterals is one iteration, as in XLA. Raises UsageError for a file that cannot be read
    or holds neither, ParseError for a literal whose data does not fit its shape.
    """
    data = read_bytes(path, f"--{flag}={path}")
    types = _message_types(f"--{flag}={path}")
    whole = _parsed(types(_WHOLE), data)
    if whole is not None and whole.iterations:
        iterations = list(whole.iterations)
    else:
        single = _parsed(types(_ITERATION), data)
        # protobuf accepts other messages too: their fields are unknown.
        if single is None or not (single.arguments or single.HasField("result") or single.HasField("reference_result")):
            raise UsageError(
                f"--{flag}={path} holds neither {_WHOLE} nor {_ITERATION}",
                hint="--output_literals_file=FILE writes such a file; --inputs reads .npz and .npy",
            )
        iterations = [single]
    return [
        tuple(literal_of_proto(each, f"argument {number} of '{path}'") for number, each in enumerate(iteration.arguments))
        for iteration in iterations
    ]


def write_iterations(path: str, iterations: Sequence[IterationLiterals], flag: str) -> None:
    """Write RunHloModuleLiterals: as text if the name ends in .pbtxt, .textproto or .txt, else binary, as XLA does.

    Raises UsageError if the file cannot be written or a package is missing, Unsupported for an element type without a field.
    """
    message = _message_types(f"--{flag}={path}")(_WHOLE)()
    for iteration in iterations:
        made = message.iterations.add()
        for literal, shape in iteration.arguments:
            fill_proto(made.arguments.add(), literal, shape)
        for value, into in ((iteration.result, made.result), (iteration.reference_result, made.reference_result)):
            if value is not None:
                fill_proto(into, *value)
    if path.endswith(_TEXT_ENDINGS):
        from google.protobuf import text_format

        data = text_format.MessageToString(message).encode()
    else:
        data = message.SerializeToString(deterministic=True)
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(f"--{flag}={path} cannot be written: {write_problem(error)}") from None


def require_packages(path: str, flag: str) -> None:
    """Raise UsageError if a package that reads and writes these files is missing."""
    _message_types(f"--{flag}={path}")


def _parsed(message_type: Message, data: bytes) -> Message | None:
    """Return a message from text or, if that fails, from binary data, as XLA reads it; None if it is neither."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    try:
        return text_format.Parse(data.decode(), message_type())
    except (text_format.ParseError, ValueError, RecursionError):
        pass
    try:
        return message_type.FromString(data)
    except DecodeError:
        return None


def _message_types(what: str) -> Callable[[str], Message]:
    message_types(what)  # checks the packages
    _add_schema()
    known = message_types(what)
    return lambda name: known(f"xla.{name}")


@functools.cache
def _add_schema() -> None:
    from google.protobuf import descriptor_pb2

    proto: Any = descriptor_pb2.FieldDescriptorProto
    schema = descriptor_pb2.FileDescriptorProto(name=_FILE, package="xla", syntax="proto3", dependency=[_LITERAL_FILE])

    def add(message: str, name: str, number: int, type_name: str, repeated: bool) -> None:
        owner = next((each for each in schema.message_type if each.name == message), None) or schema.message_type.add(
            name=message
        )
        label = proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL
        owner.field.add(name=name, number=number, label=label, type=proto.TYPE_MESSAGE, type_name=type_name)

    add(_ITERATION, "arguments", 2, _LITERAL, repeated=True)
    add(_ITERATION, "result", 3, _LITERAL, repeated=False)
    add(_ITERATION, "reference_result", 4, _LITERAL, repeated=False)
    add(_WHOLE, "iterations", 1, f".xla.{_ITERATION}", repeated=True)
    schema_pool().Add(schema)
