"""Read a module from a file or stdin, in the format of its extension or of `--input_format`.

Every format is first converted to HLO text, so that errors, dumps and reproducers refer to readable text.
"""

from __future__ import annotations

import os
import re
import sys

from msgspec import Struct

from hlo_run.containment.board import keep_input
from hlo_run.errors import UsageError
from hlo_run.hlo.values.literal import Literal
from hlo_run.options.module_parts import module_of, split_name
from hlo_run.options.text_files import read_bytes, read_stream

_HLO, _PROTO, _TEXT_PROTO, _MLIR = "HLO text", "binary proto", "text proto", "MLIR"
# Format by the name of run_hlo_module, which is also the file extension, or by that of hlo_runner_main.
FORMATS = {
    "hlo": _HLO,
    "txt": _HLO,
    "pb": _PROTO,
    "pbtxt": _TEXT_PROTO,
    "textproto": _TEXT_PROTO,
    "stablehlo": _MLIR,
    "mhlo": _MLIR,
    "mlir": _MLIR,
    "mlirbc": _MLIR,
    "text": _HLO,
    "proto_text": _TEXT_PROTO,
    "proto_binary": _PROTO,
    "snapshot_proto_binary": _PROTO,
    "unoptimized_snapshot_proto_text": _TEXT_PROTO,
    "unoptimized_snapshot_proto_binary": _PROTO,
}
_EXECUTABLE = "serialized_pjrt_executable"
_BYTECODE = b"ML\xefR"
# The prefix of the lines of a module in a log: `I0521 12:04:45.883483    1509 file.cc:186] `.
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [^\]\n]+\] ?", re.MULTILINE)
_LOOKS_LIKE_MLIR = re.compile(r"^(?:#\w+ = loc|module\b[^{\n]*\{|(?:func\.)?func @|\"builtin\.module\")", re.MULTILINE)


class ModuleInput(Struct, frozen=True):
    """A module as HLO text, and the arguments of a snapshot; None for other formats."""

    text: str
    arguments: tuple[Literal, ...] | None = None


def read_module(path: str, input_format: str = "", *, whole: bool = False) -> ModuleInput:
    """Read the module in file `path` (`-`: stdin; `FILE#2`: the second module of an HLO text of several).

    The default of `input_format` is the extension. `whole`: return the text with all modules. Raises UsageError for a file that
    cannot be read, has another format or several modules, ParseError for one that XLA refuses.
    """
    path, number = split_name(path)
    known = _format(path, input_format)
    data = _read(path)
    if known == _HLO:
        text = _LOG_PREFIX.sub("", _hlo_text(data, path))
        return ModuleInput(text if whole and not number else module_of(text, path, number))
    if number:
        raise UsageError(f"'{path}' is {known}, which holds one module", hint=f"give {path}")
    if data.lstrip().startswith(b"HloModule"):
        raise UsageError(f"'{path}' is HLO text, not {known}", hint="pass --input_format=hlo")
    # Imported late, because HLO text, the most common format, does not need it.
    from hlo_run.formats import xla

    if known == _MLIR:
        if not data.startswith(_BYTECODE):
            _decode(data, path)
        return ModuleInput(xla.mlir_to_text(data, path))
    from hlo_run.formats import protos

    contents = protos.read_binary(data, path) if known == _PROTO else protos.read_text(_decode(data, path), path)
    return ModuleInput(xla.proto_to_text(contents.module, path), contents.arguments)


def _format(path: str, input_format: str) -> str:
    """Return the format of `path`; raises UsageError for an unknown format, a directory or a missing file."""
    extension = os.path.splitext(path)[1].lstrip(".")
    # A pipe such as /dev/fd/63 has a name that the shell chose.
    is_unnamed = path == "-" or (not extension and os.path.exists(path) and not os.path.isfile(path))
    name = (input_format or ("hlo" if is_unnamed else extension)).lower()
    if path != "-" and os.path.isdir(path):
        raise UsageError(f"'{path}' is a directory", hint="give the files in it")
    if path != "-" and not os.path.exists(path):
        raise UsageError(f"'{path}' does not exist")
    if name == "riegeli":
        raise UsageError(
            f"'{path}': riegeli files are not supported, since their records are compressed and no package here reads them",
            hint="write the record to a .pb file where riegeli is installed: "
            "open('m.pb', 'wb').write(next(riegeli.RecordReader(open(FILE, 'rb')).read_records()))",
        )
    if name == _EXECUTABLE:
        hint = "hlo-run --output=FILE.hlox saves an executable of hlo-run, and hlo-run FILE.hlox runs it"
        raise UsageError(f"'{path}': executables of PjRt have no module, and only the XLA that wrote them reads them", hint=hint)
    if name not in FORMATS:
        raise UsageError(f"'{path}': format '{name}' is not supported", hint=f"--input_format is one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _read(path: str) -> bytes:
    # Python sets stdin to None if the caller closed it.
    if path == "-" and sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise UsageError("stdin is closed", hint="pipe a module into it, or name a file")
    try:
        if path == "-":
            data = read_stream(sys.stdin.buffer, "stdin")
            keep_input(data)
            return data
    except OSError as error:
        raise UsageError(f"input file '{path}' cannot be read: {os.strerror(error.errno or 0)}") from None
    return read_bytes(path, f"input file '{path}'")


def _hlo_text(data: bytes, path: str) -> str:
    """Return the bytes as text; raises UsageError if they are clearly of another format."""
    if data.startswith(_BYTECODE):
        raise UsageError(f"'{path}' is MLIR bytecode, not HLO text", hint="pass --input_format=stablehlo")
    text = _decode(data, path)
    if "\0" in text:
        hint = "for a binary proto, pass --input_format=pb"
        raise UsageError(f"'{path}' is not a text file: it has NUL bytes", hint=hint)
    if _LOOKS_LIKE_MLIR.search(text) and re.search(r"\b(?:stablehlo|mhlo|func)\.", text):
        raise UsageError(f"'{path}' is MLIR, not HLO text", hint="pass --input_format=stablehlo")
    return text


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        hint = "for a binary proto, pass --input_format=pb"
        raise UsageError(f"'{path}' is not a text file", hint=hint) from None
