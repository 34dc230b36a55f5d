"""Reads command lines, `XLA_FLAGS` and flag files into the texts of flags, by name.

Precedence: command line > XLA_FLAGS > --debug_options_file > default. Flags are spelled as in XLA, `--name=value`, or as
`--name value`. A boolean may omit its value (true); its value cannot be a word of its own. Dashes are accepted for underscores.
"""

from __future__ import annotations

import difflib
import importlib
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hlo_run.errors import UsageError
from hlo_run.options.programs import FLAGS, Flags
from hlo_run.options.text_files import read_text
from hlo_run.version import XLA_RELEASE

if TYPE_CHECKING:
    from hlo_run.options.other_flags import OtherFlags


_OPPOSITES = {"true": "false", "1": "false", "false": "true", "0": "true"}
_SHORT_DIGITS = 9  # fit into 32 bits
_ENUM_LISTS = frozenset({"xla_gpu_disable_async_collectives"})  # their default is empty


@dataclass(frozen=True, slots=True)
class RawFlags:
    """The texts of flags by field name, before their types are checked.

    `given` are the flags of the command line. They override `defaults`, the flags of XLA_FLAGS and the flag file. `files` are
    in the order of the command line. `others` are flags of XLA that are not options of hlo-run, with values of their types.
    `warnings` are printed to stderr.
    """

    given: dict[str, str]
    defaults: dict[str, str]
    files: tuple[str, ...]
    others: dict[str, str]
    warnings: tuple[str, ...]


def read_flags(arguments: Iterable[str], environment: Mapping[str, str], flags: Flags = FLAGS) -> RawFlags:
    """Read `flags` from `arguments` (without the program's name), `XLA_FLAGS` and the flag file.

    An argument that does not begin with `-` is a file, `-` alone is stdin, and `--` ends the flags. Raises UsageError for an
    unknown flag, a flag without its value, a value of another type, a flag of XLA that is refused, and a file of flags that
    cannot be read.
    """
    command_line = _Words(flags, is_command_line=True)
    files = command_line.read(arguments)
    environment_flags = _Words(flags)
    tokens, rest = _xla_flags(environment.get("XLA_FLAGS", ""))
    environment_flags.read(tokens)
    given, from_environment = command_line.values, environment_flags.values
    path = given.get("debug_options_file", from_environment.get("debug_options_file", ""))
    file = _Words(flags)
    if path:
        _read_debug_options(path, file)
    defaults = file.values | from_environment
    sources = (file, environment_flags, command_line)
    is_strict = given.get("strict_flags", defaults.get("strict_flags", "false")).lower() in ("true", "1")
    others = {name: value for source in sources for name, value in source.others.items()}
    warnings = list(_judged(sources, flags, is_strict))
    if rest:
        warnings.append(f"XLA_FLAGS: '{rest[0]}' is not a flag, so it and what follows are ignored: {' '.join(rest)}")
    return RawFlags(given, defaults, tuple(files), others, tuple(warnings))


def _judged(sources: Iterable[_Words], flags: Flags, is_strict: bool) -> Iterator[str]:
    """Yield warnings about flags that XLA does not have and flags that are refused; raises UsageError if `is_strict`."""
    judged = [source.judged for source in sources if source.judged is not None]
    for reason in dict.fromkeys(reason for other in judged for reason in other.refused):
        if is_strict:
            raise UsageError(reason.rstrip("."), hint="leave it out of XLA_FLAGS, or leave out --strict_flags")
        yield reason.rstrip(".") + "; it is ignored"
    dropped = list(dict.fromkeys(name for other in judged for name in other.dropped))
    if dropped and is_strict:
        raise UsageError(
            f"XLA of jaxlib {XLA_RELEASE} has dropped --{dropped[0]}", hint="leave it out, or leave out --strict_flags"
        )
    if dropped:
        yield f"XLA of jaxlib {XLA_RELEASE} has dropped flags that are ignored: {', '.join(f'--{name}' for name in dropped)}"
    unknown = {name: other for other in judged for name in other.unknown}
    if not unknown:
        return
    nearest = {name: other.near(name, tuple(flags.fields)) for name, other in unknown.items()}
    if is_strict:
        name, near = next(iter(nearest.items()))
        raise UsageError(f"unknown flag --{name}", hint=f"did you mean --{near}?" if near else "--help lists every flag")
    words = (f"--{name}" + (f" (did you mean --{near}?)" if near else "") for name, near in nearest.items())
    yield f"unknown XLA flags are ignored: {', '.join(words)}"


class _Words:
    """Reads the flags of one source. `values` are the texts of options by name; `judged` the other flags of XLA, if any."""

    def __init__(self, flags: Flags, is_command_line: bool = False) -> None:
        self.values: dict[str, str] = {}
        self.judged: OtherFlags | None = None
        self._flags = flags
        self._fields = flags.fields
        self._is_command_line = is_command_line
        self._open_files: list[str] = []

    @property
    def types(self) -> dict[str, str]:
        """The types of the options by name: bool, int, float, str."""
        return {name: str(field.type) for name, field in self._fields.items()}

    @property
    def others(self) -> dict[str, str]:
        """The accepted flags of XLA that are not options, with their values."""
        return {} if self.judged is None else self.judged.accepted

    def read(self, tokens: Iterable[str]) -> list[str]:
        """Read words and return the files among them."""
        files: list[str] = []
        pending = list(tokens)
        while pending:
            token = pending.pop(0)
            if token == "--":
                return files + pending
            if not token.startswith("-") or token == "-":
                files.append(token)
            else:
                self._flag(token, pending)
        return files

    def _flag(self, token: str, pending: list[str]) -> None:
        """Read one flag, and its value from `pending` if the flag has none."""
        name, equals, text = token.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = self._flags.short_names.get(name, name)
        if name in self._fields:
            bare = "true" if self._fields[name].type == "bool" else self._fields[name].metadata["bare"]
        elif name.startswith("xla_"):
            bare = "" if self._xla_flags().takes_value(name) else "true"
        elif name == "run":
            bare = "true"
        else:
            raise UsageError(f"unknown flag {token}", hint=_did_you_mean(name, self._flags))
        if not equals and not bare:
            # As in XLA's own tools a value follows `=`; as in most others it may be the next word.
            if not pending or (pending[0].startswith("--") and pending[0] != "--"):
                raise UsageError(f"--{name} needs a value", hint=f"write --{name}=VALUE")
            text = pending.pop(0)
        elif not equals:
            text = bare
        self.take(name, text)
        if name == "flagfile" and text:
            self._read_file(text)

    def take(self, name: str, text: str) -> None:
        """Add a flag with its value.

        Raises UsageError for a value that XLA does not take, and for a NUL byte, which only a file of flags can have.
        """
        if "\0" in text:
            raise UsageError(f"--{name}: the value has a NUL byte")
        if name == "run" and "compile_only" in self._fields:  # of hlo_runner_main
            name, text = "compile_only", _OPPOSITES.get(text.lower(), text)
        if name in self._fields:
            is_plain = not name.startswith("xla_") or _is_plain(self._fields[name], text)
            self.values[name] = text if is_plain else self._xla_flags().checked(name, text)
            return
        judged: OtherFlags = self._xla_flags().OtherFlags() if self.judged is None else self.judged
        self.judged = judged
        judged.take(name, text, self._is_command_line and not self._open_files)

    def _xla_flags(self) -> Any:
        """Return the module that knows XLA's other flags. Few command lines need it."""
        return importlib.import_module("hlo_run.options.other_flags")

    def _read_file(self, path: str) -> None:
        """Read the flags of a flag file in place, one or more per line; `#` begins a comment."""
        if path in self._open_files:
            raise UsageError(f"--flagfile={path} names itself")
        try:
            tokens = shlex.split(read_text(path, "--flagfile"), comments=True)
        except ValueError as error:
            raise UsageError(f"--flagfile={path}: {error}") from None
        self._open_files.append(path)
        code = [name for token in tokens if (name := token.lstrip("-").partition("=")[0].replace("-", "_")) in _RUNS_CODE]
        if code:
            raise UsageError(f"--flagfile={path} sets {code[0]}, which runs code", hint=f"pass --{code[0]} yourself")
        words = self.read(tokens)
        if words:
            raise UsageError(f"--flagfile={path}: '{words[0]}' is not a flag", hint="write --NAME=VALUE")
        self._open_files.pop()


def _is_plain(option: Any, text: str) -> bool:
    """True if a value of an option is valid for XLA, whatever the table of flags says about the option.

    Texts are: enums and their lists have a default in capitals.
    """
    match option.type:
        case "bool":
            return text in ("true", "false")
        case "int":
            return text.isascii() and text.isdecimal() and len(text) <= _SHORT_DIGITS
        case _:
            return not option.default.isupper() and option.name not in _ENUM_LISTS


def _did_you_mean(name: str, flags: Flags) -> str:
    close = difflib.get_close_matches(name, (*flags.fields, *flags.short_names), n=1)
    return f"did you mean --{close[0]}?" if close else "--help lists every flag"


def _xla_flags(text: str) -> tuple[list[str], list[str]]:
    """Return the flags of `XLA_FLAGS`, split at blanks, and what follows the first word that is not a flag.

    A text that does not begin with `-` is the name of a file of flags.
    """
    if text.strip() and not text.lstrip().startswith("-"):
        text = read_text(text.strip(), "XLA_FLAGS names a file that")
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"XLA_FLAGS: {error}") from None
    # As in XLA, the first token without `-` ends the flags.
    end = next((i for i, token in enumerate(tokens) if not token.startswith("-")), len(tokens))
    return tokens[:end], tokens[end:]


# Flags that let files run code with the user's rights. A file of flags, which may be from someone else, cannot set them.
_RUNS_CODE = frozenset({"custom_calls", "trust_machine_code"})


def _read_debug_options(path: str, words: _Words) -> None:
    """Read a DebugOptions text proto. A field that occurs several times, or is a list, becomes a comma-separated list.

    Raises UsageError for malformed text.
    """
    from hlo_run.options.debug_options import debug_options
    from hlo_run.options.text_proto import text_proto_fields  # few command lines need them

    found: dict[str, list[str]] = {}
    for name, texts in text_proto_fields(read_text(path, "--debug_options_file"), f"--debug_options_file '{path}'"):
        if name in _RUNS_CODE:
            raise UsageError(f"--debug_options_file={path} sets {name}, which runs code", hint=f"pass --{name} yourself")
        known = debug_options().get(name)
        if known is not None:
            texts = [known.from_proto(value) for value in texts]
        if words.types.get(name) == "str" or (known is not None and known.is_list):
            found.setdefault(name, []).extend(texts)
        elif texts or known is None:
            found[name] = texts[-1:]
    for name, texts in found.items():
        words.take(name, ",".join(texts))
