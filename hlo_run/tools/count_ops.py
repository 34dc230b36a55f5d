"""`hlo-tool count-ops`: how often each opcode occurs."""

from __future__ import annotations

from collections import Counter

import click

from hlo_run.execution.console import Console
from hlo_run.tools.read import read


@click.command("count-ops", help="Print how often each opcode occurs in FILE, the most frequent first.")
@click.argument("file")
@click.pass_obj
def command(console: Console, file: str) -> None:
    """Print one line per opcode, as `COUNT OPCODE`."""
    module = read(file)
    counts = Counter(instruction.opcode for computation in module.computations for instruction in computation.instructions)
    for opcode, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        console.out(f"{count:8} {opcode}")
