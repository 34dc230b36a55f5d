"""The command line: flags to `Options`, results to text and exit code. The only place that prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hlo_run.errors import HloRunError, UsageError
from hlo_run.interrupts import ends_when_interrupted
from hlo_run.options import FIELDS, SHORT_NAMES, Options, read_flags

if TYPE_CHECKING:
    from hlo_run.reference.findings import Findings

_TYPES: dict[str, click.ParamType[Any]] = {"bool": click.BOOL, "int": click.INT, "float": click.FLOAT, "str": click.STRING}
_INTRODUCTION = """Compile HLO modules as XLA:GPU does, run them, and compare with a reference.

FILE is HLO text (.hlo, .txt; - is stdin) or, with 'hlo-run[xla]' installed, an HLO proto or snapshot (.pb, .pbtxt),
StableHLO or MHLO (.mlir, .stablehlo, .mhlo, .mlirbc). Exit codes: 0 agrees, 1 differs, 2 bad flags or file, 3 not valid HLO,
4 not supported yet, 5 device error, 70 our bug. XLA_FLAGS is read; the command line wins."""


class _Command(click.Command):
    """Prints flags by section and as XLA spells them (`--name=VALUE`)."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        shorts = {name: short for short, name in SHORT_NAMES.items()}
        for name, info in FIELDS.items():
            metavar = info.metadata["metavar"]
            value = "" if info.type == "bool" else f"={'|'.join(info.metadata['choices']) or metavar}"
            spelled = f"--{name}{value}" + (f", --{shorts[name]}{value}" if name in shorts else "")
            default = f" [{str(info.default).lower() if info.type == 'bool' else info.default}]" if info.default != "" else ""
            sections.setdefault(info.metadata["section"], []).append((spelled, info.metadata["help"] + default))
        sections["Other"] = [("--version", "Print the version."), ("--help", "Print this text.")]
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=38)


def _make_command() -> click.Command:
    parameters: list[click.Parameter] = [click.Argument(["files"], nargs=-1, metavar="FILE...")]
    for name, info in FIELDS.items():
        choices: tuple[str, ...] = info.metadata["choices"]
        kind = click.Choice(choices) if choices else _TYPES[str(info.type)]
        parameters.append(click.Option([f"--{name}"], type=kind, default=info.default))
    return _Command("hlo-run", params=parameters, help=_INTRODUCTION, callback=_collect, add_help_option=True)


def _collect(files: tuple[str, ...], **values: Any) -> tuple[Options, tuple[str, ...]]:
    return Options(**values), files


def parse_arguments(arguments: Sequence[str]) -> tuple[Options, tuple[str, ...], tuple[str, ...]]:
    """Return (options, files, warnings) of a command line; raises UsageError, and prints help on `--help` (SystemExit)."""
    command = _make_command()
    if "--help" in arguments:
        command.main(["--help"], prog_name="hlo-run")
    if "--version" in arguments:
        _print_version()
    raw = read_flags(arguments, os.environ)
    normal = [f"--{name}={text}" for name, text in raw.given.items()]
    try:
        context = command.make_context("hlo-run", [*normal, "--", *raw.files], default_map=dict(raw.defaults))
        options, files = command.invoke(context)
    except click.ClickException as error:
        raise UsageError(error.format_message(), hint="--help lists every flag") from None
    if options.only_rows and options.disabled_rows:
        raise UsageError("--xla_enable_hlo_passes_only and --xla_disable_hlo_passes exclude each other")
    return options, files, raw.warnings


def _print_version() -> None:
    from importlib.metadata import version  # slow to import, and only this flag needs it

    _stdout(f"hlo-run {version('hlo-run')}")
    raise SystemExit(0)


class PlainConsole:
    """Text as it is: for files, pipes and tests."""

    def out(self, text: str) -> None:
        _stdout(text)

    def out_bytes(self, data: bytes) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def err(self, text: str) -> None:
        _stderr(text)

    def error(self, error: HloRunError) -> None:
        _stderr(error.render())

    def mismatch(self, findings: Findings) -> None:
        if sys.stdout.isatty():
            from hlo_run.terminal import show_mismatch  # imports rich: only on a terminal

            show_mismatch(findings)
            return
        # Whoever has findings has imported the reference already.
        from hlo_run.reference.report import report

        _stdout(report(findings))

    @contextmanager
    def busy(self, what: str) -> Generator[None]:
        del what
        yield


class TerminalConsole(PlainConsole):
    """For a person: colour and a spinner on stderr, through rich."""

    def __init__(self) -> None:
        from rich.console import Console  # costs 40 ms: only on a terminal

        self._rich = Console(stderr=True, highlight=False, soft_wrap=True)

    def error(self, error: HloRunError) -> None:
        first, newline, rest = error.render().partition("\n")
        self._rich.print(first, style="bold red", markup=False)
        if newline:
            self._rich.print(rest, markup=False)

    @contextmanager
    def busy(self, what: str) -> Generator[None]:
        with self._rich.status(what):
            yield


def _stdout(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; errors of the family are printed, no other leaves."""
    try:
        options, files, warnings = parse_arguments(arguments)
        for warning in warnings:
            _stderr(f"warning: {warning}")
        # Imported late: --help and bad flags must not wait for numpy.
        from hlo_run.driver import run_files

        with ends_when_interrupted():
            return run_files(options, files, TerminalConsole() if sys.stderr.isatty() else PlainConsole())
    except HloRunError as error:
        _stderr(error.render())
        return error.exit_code
    except KeyboardInterrupt:
        _stderr("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of stdout went away (`| head`); that is no failure of ours, but Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def main() -> None:
    """Entry point of the console script."""
    raise SystemExit(run(sys.argv[1:]))
