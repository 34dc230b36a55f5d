"""Helpers for records of options: their class, the dataclass field of a flag, and the values of a comma-separated list."""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

_KindT = TypeVar("_KindT", bound="type[FlagRecord]")


class FlagRecord:
    """The base of records of flags. Only values that were given lie in the record; the class has the defaults.

    `dataclass` would write and compile 300 kB of source for the methods below, which takes as long as reading a small module.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - self.__dataclass_fields__.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no flag {', '.join(sorted(unknown))}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        named = zip(fields(self), self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{item.name}={value!r}' for item, value in named)})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def flag_record(kind: _KindT) -> _KindT:
    """Make a class of flags a dataclass with the methods of `FlagRecord`."""
    return dataclass(init=False, repr=False, eq=False)(kind)


def flag(
    default: Any,
    help_text: str,
    metavar: str = "",
    choices: tuple[str, ...] = (),
    bare: str = "",
    no_effect: str = "",
    acts: str | None = None,
    least: float | None = None,
    hidden: bool = False,
) -> Any:
    """Return the dataclass field of a flag.

    `bare` is the value of a flag that is written without one, `--profile` (booleans: true). For a flag of compilation,
    `no_effect` is the reason why the result of a compilation does not depend on it. Without a reason the value is part of the
    keys of the caches. `acts` are the uses of a command line (blanks between them) that the flag needs to have an effect;
    None: those of its record (`effects.py`). `least` is the smallest number that is valid. A `hidden` field is not a flag: the
    command line sets it from others.
    """
    meta = {
        "help": help_text,
        "metavar": metavar,
        "choices": choices,
        "bare": bare,
        "no_effect": no_effect,
        "acts": acts,
        "least": least,
        "hidden": hidden,
    }
    return field(default=default, metadata=meta)


def names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, without blanks and empty names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
