"""The modes of hlo-run: one flag chooses each, and without such a flag the module runs."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from hlo_run.options import Options


class Kind(Enum):
    """The work that a mode does with the module."""

    COMPILATION = "it compiles the module, and shows or writes what it made"
    QUESTION = "it compiles the module, and answers a question about it"
    REPLAY = "it runs the module once on Host beside the reference"
    RUN = "it runs the module"


class Mode(NamedTuple):
    """A mode: the flag that chooses it (empty: the run), and its work with the module."""

    flag: str
    kind: Kind


# The modes that exclude each other.
MODES = (
    Mode("stage", Kind.COMPILATION),
    Mode("output", Kind.COMPILATION),
    Mode("xla_diff", Kind.QUESTION),
    Mode("explain", Kind.QUESTION),
    Mode("golden_dir", Kind.QUESTION),
    Mode("localize", Kind.REPLAY),
    Mode("isolate_instructions", Kind.REPLAY),
    Mode("compile_only", Kind.COMPILATION),
)
# What a command line without such a mode does.
_RUNS = (Mode("check_each_pass", Kind.RUN), Mode("", Kind.RUN))


def chosen_modes(options: Options) -> list[str]:
    """Return the flags of `MODES` that a command line has, at most one if it is valid."""
    return [mode.flag for mode in MODES if getattr(options, mode.flag)]


def mode_of(options: Options) -> Mode:
    """Return the mode of a valid command line."""
    return next(mode for mode in (*MODES, *_RUNS) if not mode.flag or getattr(options, mode.flag))
