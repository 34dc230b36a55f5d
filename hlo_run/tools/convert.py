"""`hlo-tool convert`: a module in another format."""

from __future__ import annotations

from pathlib import Path

import click

from hlo_run.errors import UsageError
from hlo_run.execution.console import Console
from hlo_run.execution.output_files import write_output
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.tools.read import read

_ENDINGS = {
    ".hlo": "hlo",
    ".txt": "hlo",
    ".pb": "pb",
    ".pbtxt": "pbtxt",
    ".textproto": "pbtxt",
    ".mlir": "stablehlo",
    ".stablehlo": "stablehlo",
}
FORMATS = ("hlo", "pb", "pbtxt", "stablehlo")


@click.command("convert", help="Print FILE, in any format that hlo-run reads, in another format. Constants are complete.")
@click.argument("file")
@click.option("--output", "-o", default="", metavar="FILE", help="Write here instead of stdout; the ending chooses the format.")
@click.option("--format", "form", default="", type=click.Choice(("", *FORMATS)), help="Write this format [hlo].")
@click.pass_obj
def command(console: Console, file: str, output: str, form: str) -> None:
    """Print or write the module. Raises UsageError for an unknown ending or without jaxlib, Unsupported if XLA cannot convert."""
    write_module(console, read(file), output, form)


def write_module(console: Console, module: HloModule, output: str, form: str) -> None:
    """Write a module to the file `output`, by default to stdout, in the format `form`, by default that of the file's ending."""
    form = form or _format_of(output)
    if form == "pb" and not output:
        raise UsageError("a proto is not text", hint="--output=FILE.pb")
    data = _converted(module, form)
    if output:
        write_output(output, data)
    else:
        console.artefact(data.decode().rstrip("\n"))


def _format_of(output: str) -> str:
    if not output:
        return "hlo"
    ending = Path(output).suffix
    if ending not in _ENDINGS:
        raise UsageError(f"'{output}' has no ending that names a format", hint=f"--format, or one of {', '.join(_ENDINGS)}")
    return _ENDINGS[ending]


def _converted(module: HloModule, form: str) -> bytes:
    """Return the module in a format that keeps every instruction. Raises Unsupported if it does not survive being read back."""
    if form == "hlo":
        return module_to_string(module, FULL).encode()
    from hlo_run.execution.survival import check_survival  # needs jaxlib
    from hlo_run.formats.write import module_to_bytes

    data = module_to_bytes(module, form)
    check_survival(module, data, form)
    return data
