"""Convert modules with real XLA, in one child process per conversion; see `conversions.py`."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from typing import Any

from hlo_run.containment.board import native
from hlo_run.containment.children import run_command
from hlo_run.containment.crash import reproducer_notes, signal_name
from hlo_run.errors import HloRunError, InternalError, ParseError, Unsupported, UsageError, Where
from hlo_run.formats import conversions
from hlo_run.formats.spelling import for_installed

INSTALL_HINT = "pip install 'hlo-run[xla]'"


def require(package: str, what: str, hint: str = INSTALL_HINT) -> None:
    """Raise UsageError if `package` is not installed; `what` needs it, and `hint` says how to install it."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{what} needs {package}, which is not installed", hint=hint)


def full_text(module: Any) -> str:
    """Return jaxlib's HloModule as HLO text with full constants."""
    return _keep_signed_zeros(conversions.print_in_full(module).decode())


def proto_to_text(module: bytes, file: str) -> str:
    """Convert a serialized HloModuleProto to HLO text with full constants; raises ParseError if XLA refuses it."""
    return _keep_signed_zeros(_convert("proto-to-text", module, file))


def mlir_to_text(source: bytes, file: str) -> str:
    """Convert StableHLO or MHLO (text or bytecode) to HLO text with full constants; raises ParseError if XLA refuses it."""
    return _keep_signed_zeros(_convert("mlir-to-text", source, file))


def text_to_proto(text: str, file: str) -> bytes:
    """Convert HLO text to a serialized HloModuleProto; raises Unsupported if XLA refuses it."""
    return _ask_about_ours("text-to-proto", text, file)


def text_to_stablehlo(text: str, file: str) -> str:
    """Convert HLO text to StableHLO text; raises Unsupported if XLA refuses it."""
    return _ask_about_ours("text-to-stablehlo", text, file).decode()


def _convert(name: str, data: bytes, file: str) -> str:
    code, output, message = _ask(name, data, file)
    if code == 0:
        return output.decode()
    if code == conversions.REFUSED:
        raise _refusal(message, data, file)
    raise ParseError(f"'{file}' crashes XLA's own reader: {last_words(message, code)}", notes=_reproducer(name, data, message))


def _ask_about_ours(name: str, text: str, file: str) -> bytes:
    """Convert the text of our printer; raises Unsupported if XLA refuses it, as it is not an error of the user's input."""
    text = for_installed(text)
    code, output, message = _ask(name, text.encode(), file)
    if code == 0:
        return output
    if code == conversions.REFUSED:
        raise Unsupported(f"'{file}': XLA cannot convert the module ({name}): {refusal_text(message)}")
    words = last_words(message, code)
    notes = _reproducer(name, text.encode(), message)
    raise Unsupported(f"'{file}': XLA cannot convert the module ({name}): {words}", notes=notes)


def _reproducer(name: str, data: bytes, message: str) -> tuple[str, ...]:
    return reproducer_notes(f"xla-{name}", {"input": data, "stderr.txt": message.encode()})


def _ask(name: str, data: bytes, file: str) -> tuple[int, bytes, str]:
    """Run one conversion, and return the exit code, stdout and stderr."""
    require("jaxlib", f"'{file}'")
    # -P: Python must not import modules from the program's own folder.
    command = [sys.executable, "-P", conversions.__file__, name]
    try:
        with native("XLA's converter", f"'{file}'"):
            done = run_command(command, data, child_environment())
    except OSError as error:
        raise InternalError(f"cannot start {sys.executable}: {error}") from None
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def child_environment(xla_flags: str = "") -> dict[str, str]:
    """Return the environment of a child process with this process's module path, and with these XLA flags."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "XLA_FLAGS": xla_flags}


_MLIR_PLACE = re.compile(r"^(?:UNKNOWN: )?-:(\d+):(\d+): error: (.*)$", re.MULTILINE)
_STATUS = re.compile(r"^(?!WARNING)[A-Z_]{3,}: ")


def _refusal(message: str, data: bytes, file: str) -> HloRunError:
    """Convert XLA's refusal to our error; MLIR's line and column become a location in the user's file."""
    found = _MLIR_PLACE.search(message)
    if found is None:
        return ParseError(f"'{file}': XLA refuses it: {refusal_text(message)}")
    line, column = int(found[1]), int(found[2])
    lines = data.decode(errors="replace").splitlines() if not data.startswith(b"ML\xefR") else []
    if not 0 < line <= len(lines):
        return ParseError(f"'{file}': {found[3]}")
    return ParseError(found[3], Where(file, line, column, lines[line - 1]))


def refusal_text(message: str) -> str:
    """Return the line of XLA's message with the status code, else the first one, without the code. Logs may come before it."""
    lines = message.strip().splitlines()
    first = next((line for line in lines if _STATUS.match(line)), lines[0] if lines else "")
    return _STATUS.sub("", first)


_FATAL = re.compile(r"^F\d{4}[^\]\n]*\] (.*)$", re.MULTILINE)


def last_words(message: str, code: int) -> str:
    """Return the failed check that XLA printed before it aborted, else the signal or exit code."""
    if -code == signal.SIGXCPU:
        return "it does not end"
    found = _FATAL.search(message)
    if found:
        return found[1]
    if code < 0:
        return signal_name(-code)
    # Python prints the error below its traceback.
    is_traceback = message.startswith("Traceback")
    return f"exit code {code}, {message.strip().splitlines()[-1] if is_traceback else refusal_text(message)}"


_CONSTANT = re.compile(r"(?m)^( *(?:ROOT )?%?[\w.\-]+ = .*? constant\()(.*?\))(?=, [a-z_\-]+=|$)")
_ZERO = re.compile(r"(?<![\w.\-+])-0(?![\w.])")


def _keep_signed_zeros(text: str) -> str:
    """Return XLA's text with `-0` in constants replaced by `-0.0`: XLA prints -0, but parses it as the integer 0."""
    return _CONSTANT.sub(lambda found: found[1] + _ZERO.sub("-0.0", found[2]), text) if "-0" in text else text
