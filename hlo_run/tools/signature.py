"""`hlo-tool signature`: the parameters and the result of a module."""

from __future__ import annotations

import click

from hlo_run.execution.console import Console
from hlo_run.tools.read import read


@click.command("signature", help="Print 'FILE: MODULE :: (NAME: SHAPE, ..) -> SHAPE' for the entry of each FILE.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.pass_obj
def command(console: Console, files: tuple[str, ...]) -> None:
    """Print one line per file."""
    for file in files:
        module = read(file)
        parameters = ", ".join(f"{parameter.name}: {parameter.shape}" for parameter in module.entry.parameters)
        console.out(f"{file}: {module.name} :: ({parameters}) -> {module.entry.root.shape}")
