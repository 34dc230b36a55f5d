"""The suspects that the user gave in place of the compiler's work: files that replace kernels, and inserted passes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from hlo_run.cli import parse_arguments
from hlo_run.options.command_line import REPLACING_FILES
from hlo_run.options.flag import names
from hlo_run.triage.predicates import RunPredicate

INSERTED = "insert_passes"


class Suspect(Struct, frozen=True):
    """One part of the value of a flag: a file, or `NAME:after:ROW`."""

    flag: str
    part: str

    @property
    def name(self) -> str:
        """The file, or the name of the pass."""
        return self.part.partition(":")[0] if self.flag == INSERTED else self.part

    @property
    def words(self) -> str:
        """The description of the suspect, for sentences."""
        return f"the {'inserted pass' if self.flag == INSERTED else 'replaced file'} '{self.name}'"


def suspects_of(run: RunPredicate) -> tuple[Suspect, ...]:
    """Return the replaced files and inserted passes of a command line."""
    options, _, _ = parse_arguments(run.flags)
    return tuple(Suspect(flag, part) for flag in (*REPLACING_FILES, INSERTED) for part in names(getattr(options, flag)))


def without(all_of_them: Sequence[Suspect], removed: Collection[Suspect]) -> tuple[str, ...]:
    """Return the flags that remove some of the suspects of a command line, and keep the others."""
    flags = dict.fromkeys(suspect.flag for suspect in removed)
    kept = {flag: [each.part for each in all_of_them if each.flag == flag and each not in removed] for flag in flags}
    return tuple(f"--{flag}={','.join(parts)}" for flag, parts in kept.items())


def listed(suspects: Sequence[Suspect]) -> str:
    """Return suspects as the words of a sentence."""
    return " and ".join(suspect.words for suspect in suspects)
