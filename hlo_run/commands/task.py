"""The state of one input file in a mode of the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field, structs

from hlo_run.commands.compilation_observers import CompilationObservers
from hlo_run.commands.stage_output import StageOutput
from hlo_run.execution.console import Console, FilePosition
from hlo_run.execution.results import FileResult
from hlo_run.hlo.values.literal import Literal
from hlo_run.options import Options
from hlo_run.processes.launcher import Launch

if TYPE_CHECKING:
    from hlo_run.artifact import Executable

# Returns a name that no earlier file has, which the given function chooses from the names that those have.
Claim: TypeAlias = "Callable[[Callable[[Collection[str]], str]], str]"


class Task(Struct):
    """A file, the options to read and run it with, and its result.

    A kernel dump changes `options` and `file` before the mode runs, an isolated fusion changes `options`. `given` are the
    arguments of a snapshot or of an isolated fusion, and `given_from` is the text that names their source. `executable` is the
    content of a .hlox file. `claim` gives names that differ between the files of a command line. `launch` says which process this
    is of those that share the run. `has_met_others` is set once the
    processes that share the run learn of errors by their connections. `noted_flags` are those that an earlier file called without
    effect.
    """

    options: Options
    place: FilePosition
    result: FileResult
    console: Console
    file: str
    observers: CompilationObservers
    stage_output: StageOutput
    claim: Claim
    launch: Launch
    given: list[Literal] = field(default_factory=list[Literal])
    given_from: str = "the input file"
    executable: Executable | None = None
    has_met_others: bool = False
    noted_flags: set[str] = field(default_factory=set[str])

    @staticmethod
    def of(
        options: Options,
        place: FilePosition,
        result: FileResult,
        console: Console,
        claim: Claim,
        launch: Launch | None = None,
        noted_flags: set[str] | None = None,
    ) -> Task:
        """Return the task of the file of `result`. `claim` comes from the worker's relay, `noted_flags` from the worker.

        `launch` says which process this is of those that share the run; None: it does not share it.
        """
        observers, output = CompilationObservers(place.number, console), StageOutput(options, console)
        task = Task(options, place, result, console, result.file, observers, output, claim, launch or Launch())
        return task if noted_flags is None else structs.replace(task, noted_flags=noted_flags)

    @property
    def folder(self) -> str:
        """The folder of files that a run writes unasked: the directory of dumps, else the working directory."""
        return self.options.xla_dump_to if self.options.xla_dump_to not in ("", "-") else "."
