"""Judges flags of XLA that are not options of hlo-run, by the table of DebugOptions."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from hlo_run.errors import UsageError
from hlo_run.options.debug_options import DebugOption, debug_options, is_default


def takes_value(name: str) -> bool | None:
    """Return True for a flag of the table that needs a value, False for a boolean, None for an unknown flag."""
    option = debug_options().get(name)
    return None if option is None else option.type != "bool"


def checked(name: str, text: str) -> str:
    """Return the value of an option of hlo-run that XLA has, too, as the table writes it; lists and texts as they are.

    Raises UsageError for a value that XLA does not take.
    """
    option = debug_options().get(name)
    if option is None:
        return text
    value = _normal(option, text)
    return text if option.is_list or option.type == "string" else value


def _normal(option: DebugOption, text: str) -> str:
    try:
        return option.normal(text)
    except ValueError as error:
        raise UsageError(f"--{option.name}: {error}", hint=f"its type is {option.type}") from None


@dataclass
class OtherFlags:
    """The flags of XLA that a command line gives and that are not options of hlo-run.

    `accepted` maps their names to their values. `unknown` are names that no XLA has, `dropped` those that the mirrored release
    has no more, `refused` the reasons of flags that XLA_FLAGS or a file sets.
    """

    accepted: dict[str, str] = field(default_factory=dict[str, str])
    unknown: list[str] = field(default_factory=list[str])
    dropped: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])

    def take(self, name: str, text: str, is_on_command_line: bool) -> None:
        """Add a flag. Raises UsageError for a value of another type, and for a refused flag on the command line.

        Other programs read XLA_FLAGS too, so a refused flag there is only reported.
        """
        option = debug_options().get(name)
        if option is None:
            self.unknown.append(name)
            return
        value = _normal(option, text)
        if option.is_dropped:
            self.dropped.append(name)
            return
        if option.verdict == "refused" and not is_default(option, value):
            problem = f"--{name}={value} is not supported: {option.reason}"
            if is_on_command_line:
                raise UsageError(problem.rstrip("."), hint=f"leave out --{name}")
            self.refused.append(problem)
            return
        self.accepted[name] = value

    def near(self, name: str, own: tuple[str, ...]) -> str:
        """Return the flag, of XLA or of hlo-run (`own`), whose name is nearest to `name`; empty if none is near."""
        close = difflib.get_close_matches(name, (*own, *debug_options()), n=1, cutoff=0.75)
        return close[0] if close else ""
