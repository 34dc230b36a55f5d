"""Asking real XLA for a conversion: one child process per question, see `conversions.py`."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from typing import Any

from hlo_run.errors import HloRunError, InternalError, ParseError, Unsupported, UsageError, Where
from hlo_run.formats import conversions

INSTALL_HINT = "pip install 'hlo-run[xla]'"


def require(package: str, what: str, hint: str = INSTALL_HINT) -> None:
    """Raise UsageError if `package` is missing; `what` needs it, and `hint` says how to install it."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{what} needs {package}, which is not installed", hint=hint)


def full_text(module: Any) -> str:
    """Return one of jaxlib's own HloModules as HLO text in full."""
    return _keep_signed_zeros(conversions.print_in_full(module).decode())


def proto_to_text(module: bytes, file: str) -> str:
    """Return a serialized HloModuleProto as HLO text in full; raises ParseError if XLA refuses it."""
    return _keep_signed_zeros(_convert("proto-to-text", module, file))


def mlir_to_text(source: bytes, file: str) -> str:
    """Return StableHLO or MHLO (text or bytecode) as HLO text in full; raises ParseError if XLA refuses it."""
    return _keep_signed_zeros(_convert("mlir-to-text", source, file))


def text_to_proto(text: str, file: str) -> bytes:
    """Return HLO text as a serialized HloModuleProto."""
    return _ask_about_ours("text-to-proto", text, file)


def text_to_stablehlo(text: str, file: str) -> str:
    """Return HLO text as StableHLO text."""
    return _ask_about_ours("text-to-stablehlo", text, file).decode()


def _convert(name: str, data: bytes, file: str) -> str:
    code, output, message = _ask(name, data, file)
    if code == 0:
        return output.decode()
    if code == conversions.REFUSED:
        raise _refusal(message, data, file)
    raise ParseError(f"'{file}' ends XLA's own reader: {last_words(message, code)}")


def _ask_about_ours(name: str, text: str, file: str) -> bytes:
    """Convert a text of our printer; what XLA refuses of it is beyond it or our bug."""
    code, output, message = _ask(name, text.encode(), file)
    if code == 0:
        return output
    if code == conversions.REFUSED:
        raise Unsupported(f"'{file}': XLA cannot convert the module ({name}): {refusal_text(message)}")
    raise Unsupported(f"'{file}': XLA cannot convert the module ({name}): {last_words(message, code)}")


def _ask(name: str, data: bytes, file: str) -> tuple[int, bytes, str]:
    """Run one conversion and return the exit code, its output and what it said."""
    require("jaxlib", f"'{file}'")
    # -P: the child's own folder must not be searched for modules.
    command = [sys.executable, "-P", conversions.__file__, name]
    try:
        done = subprocess.run(command, input=data, capture_output=True, env=child_environment(), check=False)
    except OSError as error:
        raise InternalError(f"cannot start {sys.executable}: {error}") from None
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def child_environment(xla_flags: str = "") -> dict[str, str]:
    """Return the environment of a child process that finds the modules that this one finds, with these flags for XLA."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "XLA_FLAGS": xla_flags}


_MLIR_PLACE = re.compile(r"^(?:UNKNOWN: )?-:(\d+):(\d+): error: (.*)$", re.MULTILINE)
_STATUS = re.compile(r"^[A-Z_]+: ")


def _refusal(message: str, data: bytes, file: str) -> HloRunError:
    """Return XLA's refusal as our error: MLIR's own place becomes a place in the user's file."""
    found = _MLIR_PLACE.search(message)
    if found is None:
        return ParseError(f"'{file}': XLA refuses it: {refusal_text(message)}")
    line, column = int(found[1]), int(found[2])
    lines = data.decode(errors="replace").splitlines() if not data.startswith(b"ML\xefR") else []
    if not 0 < line <= len(lines):
        return ParseError(f"'{file}': {found[3]}")
    return ParseError(found[3], Where(file, line, column, lines[line - 1]))


def refusal_text(message: str) -> str:
    """Return what XLA says of a refusal, without the kind of its status."""
    return _STATUS.sub("", message.strip().partition("\n")[0])


_FATAL = re.compile(r"^F\d{4}[^\]\n]*\] (.*)$", re.MULTILINE)


def last_words(message: str, code: int) -> str:
    """Return the failed check that XLA printed before it ended, else the signal or exit code."""
    found = _FATAL.search(message)
    return found[1] if found else f"signal {-code}" if code < 0 else f"exit code {code}, {refusal_text(message)}"


_CONSTANT = re.compile(r"(?m)^( *(?:ROOT )?%?[\w.\-]+ = .*? constant\()(.*?\))(?=, [a-z_\-]+=|$)")
_ZERO = re.compile(r"(?<![\w.\-+])-0(?![\w.])")


def _keep_signed_zeros(text: str) -> str:
    """Return XLA's text with `-0` of constants as `-0.0`: XLA prints the former and reads it as the integer 0."""
    return _CONSTANT.sub(lambda found: found[1] + _ZERO.sub("-0.0", found[2]), text) if "-0" in text else text
