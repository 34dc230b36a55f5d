"""The passes that `hlo-opt --passes=` names, with their options: `dot-merger{max_size_to_merge_bytes=4096},dce`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from hlo_run.errors import UsageError
from hlo_run.pipeline.table_rows import PassAt, pass_class
from hlo_run.records import field_types, replace

if TYPE_CHECKING:
    from hlo_run.pipeline.table import HloRow

_NAMED = re.compile(r"([^{}=]+)(?:\{(.*)\})?")


class AskedPass(Struct, frozen=True):
    """A pass by name, with the texts of its options."""

    name: str
    options: Mapping[str, str]


def split_passes(text: str) -> list[str]:
    """Split at the commas outside of braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", text) if part.strip()]


def parse_asked(text: str) -> AskedPass:
    """Read `NAME` or `NAME{OPTION=VALUE,..}`; an option without a value is true. Raises UsageError."""
    match = _NAMED.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read the pass '{text}'", hint="write NAME, or NAME{OPTION=VALUE,OPTION=VALUE}")
    options: dict[str, str] = {}
    for part in (match[2] or "").split(","):
        name, equals, value = part.partition("=")
        if name.strip():
            options[name.strip()] = value.strip() if equals else "true"
    return AskedPass(match[1].strip(), options)


def with_options(row: HloRow, asked: AskedPass) -> HloRow:
    """Return the row with these options of its pass; raises UsageError for an unknown option or a bad value."""
    if not asked.options:
        return row
    make = row.make
    assert isinstance(make, PassAt), "every row names its pass's module"
    fields = field_types(pass_class(make.module))
    options: dict[str, object] = dict(make.options)
    for name, text in asked.options.items():
        if name not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise UsageError(f"pass {asked.name} has no option '{name}'", hint=known)
        options[name] = _value(asked.name, name, str(fields[name]), text)
    return replace(row, make=PassAt(make.module, options))


def _value(pass_name: str, option: str, type_name: str, text: str) -> object:
    kind = type_name.removesuffix(" | None")
    if kind != type_name and text in ("none", "None"):
        return None
    try:
        match kind:
            case "bool":
                return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
            case "int":
                return int(text, 0)
            case "float":
                return float(text)
            case _:
                return text
    except (KeyError, ValueError):
        raise UsageError(f"option {option} of pass {pass_name} takes a {kind}, got '{text}'") from None
