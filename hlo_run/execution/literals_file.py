"""`--output_literals_file`: keeps the arguments and results of all iterations of a file, and writes them at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hlo_run.execution.console import FilePosition
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import Options

if TYPE_CHECKING:
    from hlo_run.formats.run_literals import IterationLiterals

_FLAG = "output_literals_file"


class Recorder:
    """Collects the contents of the flag's file. Without the flag it does nothing."""

    def __init__(self, options: Options, place: FilePosition) -> None:
        self._path = _own_path(options.output_literals_file, place)
        self._iterations: list[IterationLiterals] = []

    def prepare(self) -> None:
        """Raise UsageError, before anything runs, if a package is missing that writes the file."""
        if self._path:
            from hlo_run.formats.run_literals import require_packages

            require_packages(self._path, _FLAG)

    def begin(self, arguments: Iterable[tuple[Literal, Shape]]) -> None:
        """Begin an iteration with these arguments."""
        if self._path:
            from hlo_run.formats.run_literals import IterationLiterals

            self._iterations.append(IterationLiterals(list(arguments)))

    def result(self, value: Literal, shape: Shape) -> None:
        """Keep the result of the iteration."""
        if self._path:
            self._iterations[-1].result = value, shape

    def reference_result(self, value: Literal, shape: Shape) -> None:
        """Keep the expected result of the iteration."""
        if self._path:
            self._iterations[-1].reference_result = value, shape

    def write(self) -> None:
        """Write the file, if an iteration has begun. Raises UsageError if it cannot be written."""
        if self._path and self._iterations:
            from hlo_run.formats.run_literals import write_iterations

            write_iterations(self._path, self._iterations, _FLAG)


def _own_path(path: str, place: FilePosition) -> str:
    """Return the file of one of several input files: its number comes before the ending."""
    stem, ending = os.path.splitext(path)
    return f"{stem}.{place.number:04d}{ending}" if path and place.count > 1 else path
