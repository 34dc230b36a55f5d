"""The flags of XLA's DebugOptions, from the table `debug_options.tsv`: types, defaults, and what each one means here.

Most of them are not options of hlo-run. The table says of these why they cannot matter (`accepted`), or why a value other than
the default is `refused`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_TABLE = Path(__file__).with_suffix(".tsv")
_BOOLS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_LIST = "list of "


@dataclass(frozen=True, slots=True)
class DebugOption:
    """One row of the table, whose head explains the columns. `number` is 0 if released XLA has no such field.

    `choices` are the values of an enum, in XLA's order.
    """

    name: str
    number: int
    presence: str
    source: str
    type: str
    default: str
    verdict: str
    reason: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enum; empty for other types."""
        kind = self.type.removeprefix(_LIST)
        return tuple(kind.split("|")) if "|" in kind else ()

    @property
    def is_list(self) -> bool:
        """True if the flag has several values, separated by commas."""
        return self.type.startswith(_LIST) or self.type == "map"

    def normal(self, text: str) -> str:
        """Return the value `text` as the table writes values; raises ValueError with the reason if it is not of the type."""
        if not self.is_list:
            return self._value(text)
        words = [word.strip() for word in text.split(",") if word.strip()]
        if self.type == "map":
            # As in XLA, a value replaces that of its key alone.
            by_key = {word.partition("=")[0]: word for word in (*self.default.split(","), *words) if word}
            return ",".join(word for _, word in sorted(by_key.items()))
        if not any(word[0] in "+-" for word in words):
            return ",".join(map(self._value, words))
        # As in XLA, words that begin with a sign change the default.
        if not all(word[0] in "+-" for word in words):
            raise ValueError(f"'{text}' has a sign before some values and not before others")
        values = [value for value in self.default.split(",") if value]
        for word in words:
            value = self._value(word[1:])
            values = [other for other in values if other != value] + [value] * (word[0] == "+")
        return ",".join(values)

    def _value(self, text: str) -> str:
        kind = self.type.removeprefix(_LIST)
        if self.choices:
            return self._choice(text)
        match kind:
            case "bool":
                if text.lower() not in _BOOLS:
                    raise ValueError(f"'{text}' is not a boolean (true, false)")
                return _BOOLS[text.lower()]
            case "int32" | "int64":
                return _integer(text, 32 if kind == "int32" else 64)
            case "float":
                return _float(text)
            case _:
                return text

    def _choice(self, text: str) -> str:
        """Return the value that `text` names, in full or by words of it: `private` is COLLECTIVES_PRIVATE_MEMORY."""
        word = text.strip().upper()
        if word in self.choices:
            return word
        found = [choice for choice in self.choices if word and f"_{word}_" in f"_{choice}_"]
        if len(found) != 1:
            raise ValueError(f"'{text}' is not one of {', '.join(self.choices)}")
        return found[0]


def _integer(text: str, bits: int) -> str:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"'{text}' is not an integer") from None
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"'{text}' does not fit into {bits} bits")
    return str(value)


def _float(text: str) -> str:
    try:
        return f"{float(text):.9g}"
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None


@functools.cache
def debug_options() -> Mapping[str, DebugOption]:
    """Return all flags by name: those of released XLA in the order of its fields, then those that it lacks."""
    rows = [line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    made = [DebugOption(name, int(number or 0), *rest) for name, number, *rest in rows]
    return MappingProxyType({option.name: option for option in made})


def differing(given: Mapping[str, str]) -> list[tuple[DebugOption, str]]:
    """Return the flags among `given` whose value is not XLA's default, with their values, in the order of the table.

    Names that are not in the table and values that are not of the type are left out.
    """
    found: list[tuple[DebugOption, str]] = []
    for name, option in debug_options().items():
        if name not in given:
            continue
        try:
            value = option.normal(given[name])
        except ValueError:
            continue
        if _key(option, value) != _key(option, option.default):
            found.append((option, value))
    return found


def _key(option: DebugOption, value: str) -> Sequence[str] | str:
    return sorted(value.split(",")) if option.is_list else value


def is_default(option: DebugOption, value: str) -> bool:
    """True if a value that `normal` returned is the default of the flag."""
    return _key(option, value) == _key(option, option.default)
