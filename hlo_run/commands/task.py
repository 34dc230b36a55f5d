"""One input file on its way through a mode of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hlo_run.commands.stage_output import StageOutput
from hlo_run.commands.watch import Watch
from hlo_run.execution.console import Console, Place
from hlo_run.execution.results import FileResult
from hlo_run.hlo.values.literal import Literal
from hlo_run.options import Options

if TYPE_CHECKING:
    from hlo_run.artifact import Executable


@dataclass
class Task:
    """A file, the options it is read and run with, and what becomes of it.

    A kernel dump and an isolated fusion change `options` and `file` before the mode runs. `given` are the arguments of a snapshot
    or of an isolated fusion, `given_from` says so to people; `executable` is that of a file that holds one.
    """

    options: Options
    place: Place
    result: FileResult
    console: Console
    file: str
    watch: Watch
    stage_output: StageOutput
    given: list[Literal] = field(default_factory=list[Literal])
    given_from: str = "the input file"
    executable: Executable | None = None

    @staticmethod
    def of(options: Options, place: Place, result: FileResult, console: Console) -> Task:
        """Return the task of a file of the command line."""
        watch, output = Watch(place.number, console), StageOutput(options, console)
        return Task(options, place, result, console, result.file, watch, output)

    @property
    def folder(self) -> str:
        """Where files go that are written beside a run: the directory of dumps, or the working directory."""
        return self.options.xla_dump_to if self.options.xla_dump_to not in ("", "-") else "."
