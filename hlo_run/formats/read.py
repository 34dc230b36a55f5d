"""Where a module comes from: a file or stdin, in the format that its extension or `--input_format` names.

Every format becomes HLO text first, so that errors, dumps and reproducers of all of them point into something readable.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from hlo_run.errors import UsageError
from hlo_run.hlo.values.literal import Literal

_HLO, _PROTO, _TEXT_PROTO, _MLIR = "HLO text", "binary proto", "text proto", "MLIR"
# XLA's names, which are extensions too.
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
}
_BYTECODE = b"ML\xefR"
# What a log line puts before a module that was printed into a log: `I0521 12:04:45.883483    1509 file.cc:186] `.
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [^\]\n]+\] ?", re.MULTILINE)
_LOOKS_LIKE_MLIR = re.compile(r"^(?:#\w+ = loc|module\b[^{\n]*\{|(?:func\.)?func @|\"builtin\.module\")", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModuleInput:
    """A module as HLO text, and the arguments that came with it (a snapshot's); None if none came."""

    text: str
    arguments: tuple[Literal, ...] | None = None


def read_module(path: str, input_format: str = "") -> ModuleInput:
    """Read the module in file `path` (`-`: stdin); without `input_format` the extension decides.

    Raises UsageError for a file that cannot be read or has another format, ParseError for one that XLA refuses.
    """
    known = _format(path, input_format)
    data = _read(path)
    if known == _HLO:
        return ModuleInput(_LOG_PREFIX.sub("", _hlo_text(data, path)))
    if data.lstrip().startswith(b"HloModule"):
        raise UsageError(f"'{path}' is HLO text, not {known}", hint="--input_format=hlo reads it")
    # Imported late: HLO text, which most inputs are, needs none of it.
    from hlo_run.formats import xla

    if known == _MLIR:
        if not data.startswith(_BYTECODE):
            _decode(data, path)
        return ModuleInput(xla.mlir_to_text(data, path))
    from hlo_run.formats import protos

    contents = protos.read_binary(data, path) if known == _PROTO else protos.read_text(_decode(data, path), path)
    return ModuleInput(xla.proto_to_text(contents.module, path), contents.arguments)


def _format(path: str, input_format: str) -> str:
    """Return the format of `path`; raises UsageError for a name that is none."""
    extension = os.path.splitext(path)[1].lstrip(".") if path != "-" else "hlo"
    name = (input_format or extension).lower()
    if path != "-" and os.path.isdir(path):
        raise UsageError(f"'{path}' is a directory", hint="give the files in it")
    if path != "-" and not os.path.exists(path):
        raise UsageError(f"'{path}' does not exist")
    if name not in FORMATS:
        raise UsageError(f"'{path}': format '{name}' is not read", hint=f"--input_format is one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"input file '{path}' cannot be read: {os.strerror(error.errno or 0)}") from None


def _hlo_text(data: bytes, path: str) -> str:
    """Return the bytes as text, unless they are plainly of another format."""
    if data.startswith(_BYTECODE):
        raise UsageError(f"'{path}' is MLIR bytecode, not HLO text", hint="--input_format=stablehlo reads it")
    text = _decode(data, path)
    if "\0" in text:
        hint = "--input_format=pb reads a binary proto"
        raise UsageError(f"'{path}' is not a text file: it holds NUL bytes", hint=hint)
    if _LOOKS_LIKE_MLIR.search(text) and re.search(r"\b(?:stablehlo|mhlo|func)\.", text):
        raise UsageError(f"'{path}' is MLIR, not HLO text", hint="--input_format=stablehlo reads it")
    return text


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        hint = "--input_format=pb reads a binary proto"
        raise UsageError(f"'{path}' is not a text file", hint=hint) from None
