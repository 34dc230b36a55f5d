"""The interface of the console that a run prints to, and the place of a file on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from hlo_run.errors import HloRunError

if TYPE_CHECKING:
    from hlo_run.analysis.cost.side_by_side import XlaDiff
    from hlo_run.reference.compare.findings import Findings


class Console(Protocol):
    """The console of a run: results go to `out`, everything else to `err`. Both add the last newline.

    All methods escape control characters, except `out_bytes`, and `artefact` if stdout is not a terminal.
    """

    def out(self, text: str) -> None:
        """Print a result to stdout, with a newline at the end."""
        ...

    def artefact(self, text: str) -> None:
        """Print a module, IR or PTX to stdout exactly as it is, with a newline at the end."""
        ...

    def out_bytes(self, data: bytes) -> None:
        """Write a binary result to stdout, without a newline."""
        ...

    def record(self, line: str) -> None:
        """Print a line of `--report_jsonl` to stdout at once, also while the output of earlier files is incomplete."""
        ...

    def err(self, text: str) -> None:
        """Print a message to stderr, with a newline at the end."""
        ...

    def error(self, error: HloRunError) -> None:
        """Print an error to stderr: place, message, source line, notes and hint."""
        ...

    def verdict(self, text: str, good: bool, is_result: bool = False) -> None:
        """Print whether results agree: to stdout if the text is a result itself, else to stderr."""
        ...

    def difference(self, text: str, is_result: bool = True) -> None:
        """Print the lines of a difference: to stdout if they are a result, else to stderr."""
        ...

    def mismatch(self, findings: Findings) -> None:
        """Print the report about a result that differs from the reference to stdout."""
        ...

    def xla_diff(self, diff: XlaDiff) -> None:
        """Print the comparison with XLA's compilation to stdout."""
        ...


class SilentConsole:
    """A console that prints nothing."""

    def out(self, text: str) -> None:
        """Print nothing."""

    def artefact(self, text: str) -> None:
        """Print nothing."""

    def out_bytes(self, data: bytes) -> None:
        """Print nothing."""

    def record(self, line: str) -> None:
        """Print nothing."""

    def err(self, text: str) -> None:
        """Print nothing."""

    def error(self, error: HloRunError) -> None:
        """Print nothing."""

    def mismatch(self, findings: Findings) -> None:
        """Print nothing."""

    def xla_diff(self, diff: XlaDiff) -> None:
        """Print nothing."""

    def verdict(self, text: str, good: bool, is_result: bool = False) -> None:
        """Print nothing."""

    def difference(self, text: str, is_result: bool = True) -> None:
        """Print nothing."""


class FilePosition(Struct, frozen=True):
    """The index of a file on the command line, from 0, and the number of files."""

    number: int
    count: int
