"""The flags of XLA's DebugOptions, from the table `debug_options.tsv`: types, defaults, and the meaning of each here.

Most of them are not options of hlo-run. The table says of these why they cannot matter (`accepted`), or why a value other than
the default is `refused`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hlo_run.options.flag_values import choice, choice_list, collective_filter, from_proto, scalar

_TABLE = Path(__file__).with_suffix(".tsv")
_LIST = "list of "
# A list of kinds of collectives with limits.
_FILTERS = "filters of "


@dataclass(frozen=True, slots=True)
class DebugOption:
    """One row of the table, whose head explains the columns. `effect` is the column `changes`, `always` the column `here`.


    `number` is 0 if released XLA has no such field. `choices` are the values of an enum, in XLA's order.
    """

    name: str
    number: int
    presence: str
    source: str
    type: str
    default: str
    verdict: str
    reason: str
    effect: str = ""
    always: str = ""

    @property
    def is_dropped(self) -> bool:
        """True if an older release had the flag, and the mirrored one ends at it."""
        return self.source == "dropped"

    @property
    def changes(self) -> frozenset[str]:
        """A property of modules for which the flag changes released XLA's result; empty if no such module is known."""
        return frozenset(self.effect.split(",")) if self.effect not in ("", "-", "?") else frozenset()

    @property
    def here(self) -> tuple[str, ...]:
        """The values with which hlo-run always compiles."""
        return tuple(filter(None, self.always.split("|")))

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enum; empty for other types."""
        kind = self.type.removeprefix(_LIST).removeprefix(_FILTERS)
        return tuple(kind.split("|")) if "|" in kind else ()

    @property
    def is_list(self) -> bool:
        """True if the flag has several values, separated by commas."""
        return self.type.startswith((_LIST, _FILTERS)) or self.type == "map"

    @property
    def has_filters(self) -> bool:
        """True if a value is a kind of collectives, with their most bytes and element type if it is limited."""
        return self.type.startswith(_FILTERS)

    def normal(self, text: str) -> str:
        """Return the value `text` as the table writes values; raises ValueError with the reason if it is not of the type."""
        default = [value for value in self.default.split(",") if value]
        if self.type == "map":
            # As in XLA, a value replaces that of its key alone.
            by_key = {word.partition("=")[0]: word for word in (*default, *filter(None, text.split(",")))}
            return ",".join(word for _, word in sorted(by_key.items()))
        if self.has_filters:
            return ",".join(collective_filter(self.choices, word) for word in text.split(",") if word)
        if self.choices:
            return ",".join(choice_list(self.choices, text, default)) if self.is_list else choice(self.choices, text)
        return ",".join(_words(text)) if self.is_list else scalar(self.type, text)

    def from_proto(self, text: str) -> str:
        """Return a value of a text proto as the command line writes it."""
        return from_proto(self.type.removeprefix(_LIST), self.choices, text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@functools.cache
def debug_options() -> Mapping[str, DebugOption]:
    """Return all flags by name: released XLA's flags in the order of its fields, then the flags that it lacks."""
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
