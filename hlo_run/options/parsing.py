"""Reads command lines, `XLA_FLAGS` and flag files into the texts of flags, by name.

Precedence: command line > XLA_FLAGS > --debug_options_file > default. Flags are spelled as in XLA, `--name=value`, or as
`--name value`. A boolean may omit its value (true); its value cannot be a word of its own. Dashes are accepted for underscores.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hlo_run.errors import UsageError
from hlo_run.options.programs import FLAGS, Flags
from hlo_run.options.text_files import read_text


@dataclass(frozen=True, slots=True)
class RawFlags:
    """The texts of flags by field name, before their types are checked.

    `given` are the flags of the command line. They override `defaults`, the flags of XLA_FLAGS and the flag file. `files` are
    in the order of the command line. `warnings` are printed to stderr.
    """

    given: dict[str, str]
    defaults: dict[str, str]
    files: tuple[str, ...]
    warnings: tuple[str, ...]


def read_flags(arguments: Iterable[str], environment: Mapping[str, str], flags: Flags = FLAGS) -> RawFlags:
    """Read `flags` from `arguments` (without the program's name), `XLA_FLAGS` and the flag file.

    An argument that does not begin with `-` is a file, `-` alone is stdin, and `--` ends the flags. Raises UsageError for an
    unknown flag, a flag without its value, and a file of flags that cannot be read.
    """
    given: dict[str, str] = {}
    unknown: list[str] = []
    files = _split(arguments, given, unknown, flags)
    from_environment: dict[str, str] = {}
    tokens, rest = _xla_flags(environment.get("XLA_FLAGS", ""))
    _split(tokens, from_environment, unknown, flags)
    path = given.get("debug_options_file", from_environment.get("debug_options_file", ""))
    from_file = _debug_options(path, unknown, flags) if path else {}
    defaults = from_file | from_environment
    distinct = list(dict.fromkeys(unknown))
    if distinct and given.get("strict_flags", defaults.get("strict_flags", "false")).lower() in ("true", "1"):
        raise UsageError(f"unknown flag --{distinct[0]}", hint=_did_you_mean(distinct[0], flags))
    warnings: list[str] = []
    if distinct:
        warnings.append(f"unknown XLA flags are ignored: {', '.join('--' + name for name in distinct)}")
    if rest:
        warnings.append(f"XLA_FLAGS: '{rest[0]}' is not a flag, so it and what follows are ignored: {' '.join(rest)}")
    return RawFlags(given, defaults, tuple(files), tuple(warnings))


def _split(tokens: Iterable[str], values: dict[str, str], unknown: list[str], flags: Flags) -> list[str]:
    """Add flag values (by field name) to `values` and names of unknown xla_* flags to `unknown`; return the files."""
    files: list[str] = []
    pending = list(tokens)
    while pending:
        token = pending.pop(0)
        if token == "--":
            return files + pending
        if not token.startswith("-") or token == "-":
            files.append(token)
            continue
        name, equals, text = token.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = flags.short_names.get(name, name)
        if name in flags.fields:
            bare = "true" if flags.fields[name].type == "bool" else flags.fields[name].metadata["bare"]
            if not equals and not bare:
                # As in XLA's own tools a value follows `=`; as in most others it may be the next word.
                if not pending or (pending[0].startswith("--") and pending[0] != "--"):
                    raise UsageError(f"--{name} needs a value", hint=f"write --{name}=VALUE")
                text = pending.pop(0)
            values[name] = text if equals or not bare else bare
        elif name.startswith("xla_"):
            unknown.append(name)
        else:
            raise UsageError(f"unknown flag {token}", hint=_did_you_mean(name, flags))
    return files


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


def _debug_options(path: str, unknown: list[str], flags: Flags) -> dict[str, str]:
    """Read a DebugOptions text proto. A field that occurs several times, or is a list, becomes a comma-separated list.

    Raises UsageError for malformed text.
    """
    from hlo_run.options.text_proto import text_proto_fields  # few command lines need it

    found: dict[str, list[str]] = {}
    for name, texts in text_proto_fields(read_text(path, "--debug_options_file"), f"--debug_options_file '{path}'"):
        if name in _RUNS_CODE:
            raise UsageError(f"--debug_options_file={path} sets {name}, which runs code", hint=f"pass --{name} yourself")
        if name not in flags.fields:
            unknown.append(name)
        elif flags.fields[name].type == "str":
            found.setdefault(name, []).extend(texts)
        else:
            found[name] = texts[-1:]
    return {name: ",".join(texts) for name, texts in found.items()}
